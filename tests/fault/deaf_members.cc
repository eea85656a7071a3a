// SPDX-License-Identifier: Apache-2.0
//
// A job whose members never read, for tests.
//
//   deaf_members ADDRESS COUNT
//
// Joins as COUNT nodes of the job 'deaf' with texts as long as they may be, and opens a watch
// stream for each. Prints "running" when the scheduler has made the job's view. Holds the streams
// until its standard input ends.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libs/rpc/conversion.h"
#include "proto/talweg/scheduler/v1/admin.grpc.pb.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"

namespace talweg {
namespace {

namespace v1 = scheduler::v1;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kPause = std::chrono::milliseconds(20);
// A connection may have 128 calls open.
constexpr uint32_t kStreamsOfConnection = 100;

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Without these gRPC takes more and more before the program reads.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Repeats a call that is refused because this peer calls too often.
template <typename Ask>
void Insist(const Ask& ask) {
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const grpc::Status status = ask(&context);
    if (status.ok()) return;
    if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) {
      std::fprintf(stderr, "deaf_members: %s\n", status.error_message().c_str());
      std::exit(1);
    }
    std::this_thread::sleep_for(kPause);
  }
}

class Node {
 public:
  Node(std::shared_ptr<grpc::Channel> channel, uint32_t rank, uint32_t count)
      : stub_(v1::MembershipService::NewStub(channel)) {
    v1::JoinRequest join;
    *join.mutable_version() = rpc::ToProto(rpc::Version{});
    join.set_job_name("deaf");
    v1::JobSpec* spec = join.mutable_spec();
    spec->set_min_members(count);
    spec->set_max_members(count);
    spec->set_slice_bytes_max(1 << 20);
    spec->set_loss_policy(v1::LOSS_POLICY_FAIL_JOB);
    spec->mutable_join_timeout()->set_seconds(60);
    join.mutable_id()->set_node_rank(rank);
    join.mutable_id()->set_incarnation(1000 + rank);
    join.set_rank_count(1);
    join.set_name(std::string(255, 'n'));
    join.set_admin_address(std::string(1024, 'a'));
    join.set_host_id(std::string(1024, 'h'));
    std::string secret(32, 's');
    secret.replace(0, 8, std::to_string(10'000'000 + rank));
    join.set_session_secret(secret);
    v1::JoinResponse joined;
    Insist([&](grpc::ClientContext* context) { return stub_->Join(context, join, &joined); });
    v1::WatchViewsRequest watch;
    *watch.mutable_version() = join.version();
    watch.set_job_id(joined.job_id());
    *watch.mutable_id() = join.id();
    watch.set_session_secret(secret);
    stream_ = stub_->WatchViews(&context_, watch);
  }
  ~Node() {
    context_.TryCancel();
    stream_->Finish();
  }

 private:
  const std::unique_ptr<v1::MembershipService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchViewsResponse>> stream_;
};

int Main(const std::string& address, uint32_t count) {
  std::vector<std::unique_ptr<Node>> nodes;
  std::shared_ptr<grpc::Channel> channel;
  for (uint32_t rank = 0; rank < count; ++rank) {
    if (rank % kStreamsOfConnection == 0) channel = Connect(address);
    nodes.push_back(std::make_unique<Node>(channel, rank, count));
  }
  const auto admin = v1::AdminService::NewStub(Connect(address));
  v1::GetJobRequest request;
  request.set_name("deaf");
  v1::GetJobResponse job;
  do {
    std::this_thread::sleep_for(kPause);
    Insist([&](grpc::ClientContext* context) { return admin->GetJob(context, request, &job); });
  } while (job.summary().state() == v1::JOB_STATE_FORMING);
  std::printf("running\n");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return talweg::Main(argv[1], static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)));
}
