// SPDX-License-Identifier: Apache-2.0
//
// A client without credentials, for tests. It makes the calls of the scheduler's protocol, and
// prints the answers.
//
//   stranger ADDRESS look                            reads all that AdminService shows
//   stranger ADDRESS join JOB NODE                   joins, and asks for the views
//   stranger ADDRESS leave JOB NODE INCARNATION      leaves as stopped, then as finished
//   stranger ADDRESS renew JOB NODE INCARNATION      renews, and holds the highest epoch
//   stranger ADDRESS lost JOB NODE INCARNATION       reports that its rank has died
//   stranger ADDRESS deregister INCARNATION          deregisters that aggregator for good
//   stranger AGENTS_ADDRESS trace                    switches the agent's timeline on
//
// INCARNATION has hexadecimal digits. 0 means the one that AdminService shows.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "libs/rpc/conversion.h"
#include "proto/talweg/agent/v1/agent.grpc.pb.h"
#include "proto/talweg/scheduler/v1/admin.grpc.pb.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"

namespace talweg {
namespace {

namespace v1 = scheduler::v1;

constexpr auto kPatience = std::chrono::seconds(30);

class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        admin_(v1::AdminService::NewStub(channel_)),
        members_(v1::MembershipService::NewStub(channel_)),
        pool_(v1::PoolService::NewStub(channel_)) {}

  void Look() {
    v1::ListJobsResponse jobs;
    v1::ListAggregatorsResponse aggregators;
    v1::GetSchedulerResponse scheduler;
    Say("ListJobs", Call(*admin_, &Admin::ListJobs, v1::ListJobsRequest(), &jobs), jobs);
    for (const v1::JobSummary& job : jobs.jobs()) {
      v1::GetJobResponse details;
      v1::GetJobRequest request;
      request.set_job_id(job.job_id());
      Say("GetJob", Call(*admin_, &Admin::GetJob, request, &details), details);
    }
    Say("ListAggregators",
        Call(*admin_, &Admin::ListAggregators, v1::ListAggregatorsRequest(), &aggregators),
        aggregators);
    Say("GetScheduler", Call(*admin_, &Admin::GetScheduler, v1::GetSchedulerRequest(), &scheduler),
        scheduler);
  }

  void Join(const std::string& job, uint32_t node) {
    v1::JoinRequest request;
    *request.mutable_version() = rpc::ToProto(rpc::Version{});
    request.set_job_name(job);
    v1::JobSpec* spec = request.mutable_spec();
    spec->set_min_members(node + 1);
    spec->set_max_members(node + 1);
    spec->set_slice_bytes_max(1 << 20);
    spec->set_loss_policy(v1::LOSS_POLICY_FAIL_JOB);
    request.mutable_id()->set_node_rank(node);
    request.mutable_id()->set_incarnation(12345);
    request.set_rank_count(1);
    request.set_session_secret(std::string(32, 's'));
    v1::JoinResponse response;
    Say("Join", Call(*members_, &Members::Join, request, &response), response);
  }

  template <typename Request>
  Request As(const std::string& job, uint32_t node, uint64_t incarnation) {
    v1::GetJobRequest ask;
    ask.set_name(job);
    v1::GetJobResponse details;
    Call(*admin_, &Admin::GetJob, ask, &details);
    Request request;
    request.set_job_id(details.summary().job_id());
    request.set_epoch(details.summary().epoch());
    request.mutable_id()->set_node_rank(node);
    request.mutable_id()->set_incarnation(incarnation);
    for (const v1::MemberStatus& member : details.members()) {
      if (incarnation == 0 && member.member().id().node_rank() == node) {
        *request.mutable_id() = member.member().id();
      }
    }
    return request;
  }

  void Leave(const std::string& job, uint32_t node, uint64_t incarnation) {
    for (const auto reason : {v1::LEAVE_REASON_STOPPED, v1::LEAVE_REASON_FINISHED}) {
      auto request = As<v1::LeaveRequest>(job, node, incarnation);
      request.set_reason(reason);
      v1::LeaveResponse response;
      Say("Leave", Call(*members_, &Members::Leave, request, &response), response);
    }
  }
  void Renew(const std::string& job, uint32_t node, uint64_t incarnation) {
    auto request = As<v1::RenewLeaseRequest>(job, node, incarnation);
    request.set_epoch(uint64_t{1} << 62);
    v1::RenewLeaseResponse response;
    Say("RenewLease", Call(*members_, &Members::RenewLease, request, &response), response);
  }
  void Lost(const std::string& job, uint32_t node, uint64_t incarnation) {
    auto request = As<v1::ReportLostRequest>(job, node, incarnation);
    request.set_rank(node);
    v1::ReportLostResponse response;
    Say("ReportLost", Call(*members_, &Members::ReportLost, request, &response), response);
  }
  void Deregister(uint64_t incarnation) {
    v1::ListAggregatorsResponse aggregators;
    Call(*admin_, &Admin::ListAggregators, v1::ListAggregatorsRequest(), &aggregators);
    v1::DeregisterAggregatorRequest request;
    request.set_incarnation(incarnation);
    if (incarnation == 0 && aggregators.aggregators_size() > 0) {
      request.set_incarnation(aggregators.aggregators(0).aggregator().incarnation());
    }
    request.set_leave(true);
    v1::DeregisterAggregatorResponse response;
    Say("DeregisterAggregator", Call(*pool_, &Pool::DeregisterAggregator, request, &response),
        response);
  }

  void Trace() {
    agent::v1::SetTraceRequest request;
    request.set_enabled(true);
    agent::v1::SetTraceResponse response;
    const auto agent = AgentAdmin::NewStub(channel_);
    Say("SetTrace", Call(*agent, &AgentAdmin::Stub::SetTrace, request, &response), response);
  }

 private:
  using AgentAdmin = agent::v1::AdminService;
  using Admin = v1::AdminService::Stub;
  using Members = v1::MembershipService::Stub;
  using Pool = v1::PoolService::Stub;

  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return (stub.*method)(&context, request, response);
  }

  static void Say(const char* call, const grpc::Status& status,
                  const google::protobuf::Message& response) {
    std::printf("%s: code %d %s\n%s", call, static_cast<int>(status.error_code()),
                status.error_message().c_str(), response.DebugString().c_str());
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Admin> admin_;
  const std::unique_ptr<Members> members_;
  const std::unique_ptr<Pool> pool_;
};

int Main(const std::vector<std::string>& words) {
  if (words.size() < 2) return 2;
  Stranger stranger(words[0]);
  const std::string& what = words[1];
  const std::string job = words.size() > 2 ? words[2] : "";
  const uint32_t node =
      words.size() > 3 ? static_cast<uint32_t>(std::strtoul(words[3].c_str(), nullptr, 10)) : 0;
  const uint64_t incarnation =
      words.size() > 2 ? std::strtoull(words.back().c_str(), nullptr, 16) : 0;
  if (what == "look") {
    stranger.Look();
  } else if (what == "join") {
    stranger.Join(job, node);
  } else if (what == "leave") {
    stranger.Leave(job, node, incarnation);
  } else if (what == "renew") {
    stranger.Renew(job, node, incarnation);
  } else if (what == "lost") {
    stranger.Lost(job, node, incarnation);
  } else if (what == "deregister") {
    stranger.Deregister(incarnation);
  } else if (what == "trace") {
    stranger.Trace();
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) { return talweg::Main({argv + 1, argv + argc}); }
