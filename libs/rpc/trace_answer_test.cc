// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/rpc/admin_client.h"
#include "libs/rpc/admin_service.h"
#include "libs/rpc/server.h"
#include "proto/talweg/agent/v1/agent.grpc.pb.h"

namespace talweg::rpc {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);
// More than gRPC takes before the client reads.
constexpr size_t kPieceBytes = 3 << 20;

// A client that asks for the timeline, and reads it later.
class LateReader {
 public:
  explicit LateReader(const std::string& address)
      : stub_(agent::v1::AdminService::NewStub(
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), Arguments()))) {
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    stream_ = stub_->GetTrace(&context_, {});
  }

  grpc::Status Read() {
    agent::v1::GetTraceResponse piece;
    while (stream_->Read(&piece)) ++pieces_;
    return stream_->Finish();
  }
  int pieces() const { return pieces_; }

 private:
  // Without these gRPC takes more and more before the client reads.
  static grpc::ChannelArguments Arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    return arguments;
  }

  const std::unique_ptr<agent::v1::AdminService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<agent::v1::GetTraceResponse>> stream_;
  int pieces_ = 0;
};

TEST_CASE("GetTrace: clients that do not read make way for others", "[rpc]") {
  constexpr int kLate = 2;
  std::mutex mutex;
  std::condition_variable asked;
  int late = 0;
  std::vector<Done<TracePiece>> others;
  AgentAdminHandlers handlers;
  handlers.get_trace = [&](const TraceRange&, const Done<TracePiece>& done) {
    const std::lock_guard lock(mutex);
    if (late == kLate) {
      others.push_back(done);
    } else {
      ++late;
      TracePiece piece{.rest = {.next = 1, .end = 3}};
      piece.events.add_events()->set_tensor(std::string(kPieceBytes, 't'));
      done(piece);
    }
    asked.notify_all();
  };
  const auto service = MakeAgentAdminService(std::move(handlers), {}, 100'000'000);
  const auto server = Server::Start({}, {service->service()});
  REQUIRE(server.ok());
  std::array<std::unique_ptr<LateReader>, kLate> readers;
  for (auto& reader : readers) reader = std::make_unique<LateReader>((*server)->address());
  {
    std::unique_lock lock(mutex);
    REQUIRE(asked.wait_for(lock, kPatience, [&] { return late == kLate; }));
  }
  // These get in when the others' time is over.
  const auto read = [&, end = std::chrono::steady_clock::now() + kPatience] {
    AgentAdminClient client((*server)->address(), 30'000'000'000);
    absl::Status status = client.GetTrace().status();
    while (absl::IsResourceExhausted(status) && std::chrono::steady_clock::now() < end) {
      status = client.GetTrace().status();
    }
    return status;
  };
  auto one = std::async(std::launch::async, read);
  auto other = std::async(std::launch::async, read);
  std::unique_lock lock(mutex);
  REQUIRE(asked.wait_for(lock, kPatience, [&] { return others.size() == 2; }));
  for (const auto& done : others) done(TracePiece{.rest = {.end = 0}});
  lock.unlock();
  CHECK(one.get().ok());
  CHECK(other.get().ok());
  // The late ones still get what was sent to them, and the reason.
  for (const auto& reader : readers) {
    const grpc::Status status = reader->Read();
    CHECK(status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
    CHECK(status.error_message() ==
          "a piece of the timeline was not read within 100 ms, and others may wait to read it; ask "
          "again, and read the answer as it comes");
    CHECK(reader->pieces() == 1);
  }
}

}  // namespace
}  // namespace talweg::rpc
