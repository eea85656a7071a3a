// SPDX-License-Identifier: Apache-2.0
//
// Calls a daemon without end, for tests.
//
//   caller ADDRESS look|renew|health|agent|aggregator [TLS_DIR]   as fast as it can, from several
//                                                                 threads
//
// It prints "refused: TEXT" when it is refused with that text for the first time, "other: TEXT" for
// the first other failure, and "calls N refused M" after each thousand.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libs/rpc/admin_client.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/credentials_access.h"
#include "proto/talweg/agent/v1/agent.grpc.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.grpc.pb.h"
#include "proto/talweg/scheduler/v1/admin.grpc.pb.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"

namespace talweg {
namespace {

namespace v1 = scheduler::v1;

constexpr int kThreads = 8;
constexpr uint64_t kTold = 1000;
constexpr auto kPatience = std::chrono::seconds(30);

class Caller {
 public:
  Caller(std::string address, std::string what, std::shared_ptr<const rpc::Credentials> credentials)
      : address_(std::move(address)),
        what_(std::move(what)),
        credentials_(std::move(credentials)) {}

  [[noreturn]] void Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([this] { Flood(); });
    for (std::thread& thread : threads) thread.join();
    std::abort();
  }

 private:
  [[noreturn]] void Flood() {
    grpc::ChannelArguments arguments;
    // Each thread has a connection of its own.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(
        address_, rpc::CredentialsAccess::Channel(credentials_, address_, {}), arguments);
    while (true) Note(CallOnce(channel));
  }

  grpc::Status CallOnce(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    if (what_ == "look") {
      v1::ListJobsResponse response;
      return v1::AdminService::NewStub(channel)->ListJobs(&context, {}, &response);
    }
    if (what_ == "renew") {  // The call shows a secret that nobody has.
      v1::RenewLeaseRequest request;
      request.set_session_secret(std::string(32, 'x'));
      v1::RenewLeaseResponse response;
      return v1::MembershipService::NewStub(channel)->RenewLease(&context, request, &response);
    }
    if (what_ == "agent") {
      agent::v1::GetStatusRequest request;
      request.set_with_tensors(true);
      agent::v1::GetStatusResponse response;
      return agent::v1::AdminService::NewStub(channel)->GetStatus(&context, request, &response);
    }
    if (what_ == "aggregator") {
      aggregator::v1::GetStatusRequest request;
      request.set_with_tensors(true);
      aggregator::v1::GetStatusResponse response;
      return aggregator::v1::AdminService::NewStub(channel)->GetStatus(&context, request,
                                                                       &response);
    }
    if (what_ == "health") {
      const absl::Status status = rpc::CheckHealth(address_, "", 30'000'000'000, credentials_);
      return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
    }
    std::fprintf(stderr, "caller: no such thing: %s\n", what_.c_str());
    std::exit(2);
  }

  void Note(const grpc::Status& status) {
    const std::lock_guard lock(mutex_);
    const bool refused = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    if (refused && refusals_.insert(status.error_message()).second) {
      std::printf("refused: %s\n", status.error_message().c_str());
    }
    if (refused) ++refused_;
    if (!refused && !status.ok() && others_++ == 0) {
      std::printf("other: %s\n", status.error_message().c_str());
    }
    if (++calls_ % kTold == 0) {
      std::printf("calls %llu refused %llu\n", static_cast<unsigned long long>(calls_),
                  static_cast<unsigned long long>(refused_));
    }
    std::fflush(stdout);
  }

  const std::string address_;
  const std::string what_;
  const std::shared_ptr<const rpc::Credentials> credentials_;  // Null: there is no TLS.
  std::mutex mutex_;
  uint64_t calls_ = 0;
  uint64_t refused_ = 0;
  std::set<std::string> refusals_;  // Their texts: each is printed once.
  uint64_t others_ = 0;
};

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "caller ADDRESS look|renew|health|agent|aggregator [TLS_DIR]\n");
    return 2;
  }
  const auto credentials =
      talweg::rpc::Credentials::Load({.tls_directory = argc == 4 ? argv[3] : ""});
  if (!credentials.ok()) {
    std::fprintf(stderr, "caller: %s\n", credentials.status().ToString().c_str());
    return 2;
  }
  talweg::Caller(argv[1], argv[2], *credentials).Run();
}
