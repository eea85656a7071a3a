// SPDX-License-Identifier: Apache-2.0
//
// join_flood ADDRESS wrong|one-job|many-jobs: asks the scheduler there to be let in, over and over,
// by many connections at once. Reads the job secret from stdin. `wrong`: never shows that it has
// it, in every way in which a process can ask. `one-job`: joins the job "flood" as ever new nodes,
// which then say nothing. `many-jobs`: begins ever new jobs "flood-N". Says how many calls were
// made and what came of them: "code-N" of calls, and "sealed-N" in sealed answers.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "libs/rpc/conversion.h"
#include "libs/rpc/sealing.h"
#include "libs/rpc/version.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/sealed.grpc.pb.h"

namespace talweg {
namespace {

namespace v1 = scheduler::v1;

constexpr int kThreads = 16;
constexpr uint64_t kTold = 200;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr char kJoin[] = "/talweg.scheduler.v1.MembershipService/Join";

class Flood {
 public:
  Flood(std::string address, std::string what, std::string secret)
      : address_(std::move(address)), what_(std::move(what)), secret_(std::move(secret)) {}

  [[noreturn]] void Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([this] { Ask(); });
    for (std::thread& thread : threads) thread.join();
    std::abort();
  }

 private:
  // One connection. A thread has one at a time.
  struct Connection {
    explicit Connection(const std::string& address) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto channel =
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      members = v1::MembershipService::NewStub(channel);
      sealed = v1::SealedService::NewStub(channel);
    }
    std::unique_ptr<v1::MembershipService::Stub> members;
    std::unique_ptr<v1::SealedService::Stub> sealed;
    rpc::KeyPair keys;
    std::optional<rpc::SealedSession> session;
    uint64_t count = 0;
  };

  [[noreturn]] void Ask() {
    std::unique_ptr<Connection> connection;
    for (int asked = 0;; ++asked) {
      if (asked % 50 == 0) connection = std::make_unique<Connection>(address_);
      if (what_ == "wrong") {
        AskWrongly(*connection, asked);
      } else {
        AskRightly(*connection);
      }
    }
  }

  void AskWrongly(Connection& connection, int asked) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    if (asked % 3 == 0) {
      v1::JoinRequest join = Join();
      join.set_job_secret(std::string(64, 'w'));
      v1::JoinResponse response;
      Note(connection.members->Join(&context, join, &response));
    } else if (asked % 3 == 1) {
      v1::GreetRequest request;
      request.set_public_key(connection.keys.public_key());
      request.set_nonce(std::string(rpc::kNonceBytes, 'n'));
      v1::GreetResponse response;
      Note(connection.sealed->Greet(&context, request, &response));
    } else {
      v1::CallRequest request;
      request.set_public_key(rpc::KeyPair().public_key());
      request.set_count(1);
      request.set_method(kJoin);
      request.set_sealed(std::string(32 << 10, 'x'));
      v1::CallResponse response;
      Note(connection.sealed->Call(&context, request, &response));
    }
  }

  void AskRightly(Connection& connection) {
    if (!connection.session) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kPatience);
      v1::GreetRequest request;
      request.set_public_key(connection.keys.public_key());
      request.set_nonce(std::string(rpc::kNonceBytes, 'n'));
      v1::GreetResponse response;
      const grpc::Status status = connection.sealed->Greet(&context, request, &response);
      Note(status);
      if (!status.ok()) return;
      connection.session.emplace(secret_, *connection.keys.SharedWith(response.public_key()),
                                 connection.keys.public_key(), response.public_key());
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::CallRequest request;
    request.set_public_key(connection.keys.public_key());
    request.set_count(++connection.count);
    request.set_method(kJoin);
    request.set_sealed(
        connection.session->SealCall(request.count(), kJoin, Join().SerializeAsString()));
    v1::CallResponse response;
    const grpc::Status status = connection.sealed->Call(&context, request, &response);
    if (!status.ok()) return Note(status);
    v1::Answer answer;
    const auto opened =
        connection.session->AnswersTo(request.count(), response.salt()).Open(response.sealed());
    if (!opened || !answer.ParseFromString(*opened)) std::abort();
    Note({static_cast<grpc::StatusCode>(answer.code()), answer.text()}, "sealed");
  }

  // The request of a process that nobody has heard of.
  v1::JoinRequest Join() {
    const uint64_t number = ++number_;
    v1::JoinRequest join;
    *join.mutable_version() = rpc::ToProto(rpc::Version{});
    join.set_job_name(what_ == "many-jobs" ? "flood-" + std::to_string(number) : "flood");
    v1::JobSpec* spec = join.mutable_spec();
    spec->set_min_members(2);
    spec->set_max_members(60'000);
    spec->set_slice_bytes_max(1 << 20);
    spec->set_loss_policy(v1::LOSS_POLICY_CONTINUE);
    spec->mutable_join_timeout()->set_seconds(600);
    join.mutable_id()->set_node_rank(static_cast<uint32_t>(number % 60'000));
    join.mutable_id()->set_incarnation(number);
    join.set_rank_count(1);
    join.set_name(std::string(255, 'n'));
    join.set_admin_address(std::string(1024, 'a'));
    join.set_host_id(std::string(1024, 'h'));
    std::string session = std::to_string(number);
    session.resize(32, 's');
    join.set_session_secret(session);
    return join;
  }

  void Note(const grpc::Status& status, const std::string& kind = "code") {
    const std::lock_guard lock(mutex_);
    const std::string name = kind + "-" + std::to_string(status.error_code());
    if (++counts_[name] == 1) {
      std::printf("%s: %s\n", name.c_str(), status.error_message().c_str());
    }
    if (++calls_ % kTold == 0) {
      std::printf("calls %llu", static_cast<unsigned long long>(calls_));
      for (const auto& [name, count] : counts_) {
        std::printf(" %s %llu", name.c_str(), static_cast<unsigned long long>(count));
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }

  const std::string address_;
  const std::string what_;
  const std::string secret_;
  std::atomic<uint64_t> number_{0};
  std::mutex mutex_;
  uint64_t calls_ = 0;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) {
  std::string secret;
  if (argc != 3 || !std::getline(std::cin, secret)) return 2;
  talweg::Flood(argv[1], argv[2], secret).Run();
}
