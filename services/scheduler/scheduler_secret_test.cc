// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/rpc/admin_client.h"
#include "libs/rpc/conversion.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/rpc/secret.h"
#include "libs/telemetry/log.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

namespace talweg::scheduler {
namespace {

// Makes the calls of a stranger who has guessed every name and number, but no secret.
class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        members_(v1::MembershipService::NewStub(channel_)),
        pool_(v1::PoolService::NewStub(channel_)) {}

  template <typename Request>
  static Request As(JobId job, uint32_t node, uint64_t incarnation, uint64_t epoch) {
    Request request;
    request.set_job_id(job.value());
    request.mutable_id()->set_node_rank(node);
    request.mutable_id()->set_incarnation(incarnation);
    request.set_epoch(epoch);
    request.set_session_secret(rpc::NewSecret());
    return request;
  }
  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    Response response;
    return (stub.*method)(&context, request, &response);
  }
  v1::MembershipService::Stub& members() { return *members_; }
  v1::PoolService::Stub& pool() { return *pool_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::MembershipService::Stub> members_;
  const std::unique_ptr<v1::PoolService::Stub> pool_;
};

TEST_CASE("Scheduler: a stranger speaks for nobody, and a running job does not notice",
          "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  TestMember second(Link(daemon.address()), Spec(1, 2, 2));
  const view::View view = first.events.Next<rpc::ViewPublished>().view;
  second.events.Next<rpc::ViewPublished>();
  Stranger stranger(daemon.address());
  const auto denied = [](const grpc::Status& status) {
    CHECK(status.error_code() == grpc::StatusCode::PERMISSION_DENIED);
    CHECK(Contains(status.error_message(), "does not show the secret"));
  };
  using MemberStub = v1::MembershipService::Stub;
  auto leave = Stranger::As<v1::LeaveRequest>(view.job, 1, 101, 1);
  for (const auto reason : {v1::LEAVE_REASON_STOPPED, v1::LEAVE_REASON_FINISHED}) {
    leave.set_reason(reason);
    denied(stranger.Call(stranger.members(), &MemberStub::Leave, leave));
  }
  leave.clear_session_secret();
  denied(stranger.Call(stranger.members(), &MemberStub::Leave, leave));
  denied(stranger.Call(stranger.members(), &MemberStub::RenewLease,
                       Stranger::As<v1::RenewLeaseRequest>(view.job, 1, 101, uint64_t{1} << 62)));
  auto lost = Stranger::As<v1::ReportLostRequest>(view.job, 1, 101, 1);
  lost.set_rank(2);
  denied(stranger.Call(stranger.members(), &MemberStub::ReportLost, lost));
  denied(stranger.Call(stranger.members(), &MemberStub::Quiesced,
                       Stranger::As<v1::QuiescedRequest>(view.job, 1, 101, 1)));
  auto watch = Stranger::As<v1::WatchViewsRequest>(view.job, 1, 101, 1);
  *watch.mutable_version() = rpc::ToProto(rpc::Version{});
  grpc::ClientContext watch_context;
  denied(stranger.members().WatchViews(&watch_context, watch)->Finish());

  using PoolStub = v1::PoolService::Stub;
  v1::DeregisterAggregatorRequest deregister;
  deregister.set_incarnation(200);
  deregister.set_leave(true);
  denied(stranger.Call(stranger.pool(), &PoolStub::DeregisterAggregator, deregister));
  v1::RenewAggregatorRequest renew;
  renew.set_incarnation(200);
  denied(stranger.Call(stranger.pool(), &PoolStub::RenewAggregator, renew));
  v1::WatchJobsRequest jobs;
  *jobs.mutable_version() = rpc::ToProto(rpc::Version{});
  jobs.set_incarnation(200);
  grpc::ClientContext jobs_context;
  denied(stranger.pool().WatchJobs(&jobs_context, jobs)->Finish());

  // Nothing has changed: each member still speaks for itself.
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  v1::GetJobRequest by_name;
  by_name.set_name("mnist");
  const auto job = admin.GetJob(by_name);
  REQUIRE(job.ok());
  CHECK(job->summary().state() == v1::JOB_STATE_RUNNING);
  CHECK(job->summary().epoch() == 1);
  CHECK(job->members(1).attached());
  CHECK(job->members(1).member().id().incarnation() == 0);
  CHECK(job->view().aggregators(0).incarnation() == 0);
  CHECK(job->view().aggregators(0).data_address() == "fi:tcp://127.0.0.1:1");
  const auto scheduler = admin.GetScheduler();
  REQUIRE(scheduler.ok());
  CHECK(scheduler->refused_by_code().at("PERMISSION_DENIED") == 10);
  CHECK_FALSE(first.events.Has<rpc::JobFailed>());
  CHECK_FALSE(second.events.Has<rpc::LeaseLost>());
}

TEST_CASE("Scheduler: a member's secret speaks only for the member, and only in its own job",
          "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  TestMember second(Link(daemon.address()), Spec(1, 2, 2));
  const view::View view = first.events.Next<rpc::ViewPublished>().view;
  // This is a member of another job, with the same node rank and incarnation there.
  Stranger member(daemon.address());
  using MemberStub = v1::MembershipService::Stub;
  const rpc::JoinSpec spec = Spec(1, 1, 2);
  v1::JoinRequest join;
  *join.mutable_version() = rpc::ToProto(rpc::Version{});
  join.set_job_name("another");
  *join.mutable_spec() = rpc::ToProto(spec.spec);
  join.mutable_id()->set_node_rank(1);
  join.mutable_id()->set_incarnation(101);
  join.set_rank_count(1);
  join.set_session_secret(rpc::NewSecret());
  grpc::ClientContext context;
  v1::JoinResponse joined;
  const grpc::Status status = member.members().Join(&context, join, &joined);
  INFO(status.error_message());
  REQUIRE(status.ok());
  const JobId own(joined.job_id());
  REQUIRE(own != view.job);
  const auto say =
      [&]<typename Request, typename Response>(
          grpc::Status (MemberStub::*method)(grpc::ClientContext*, const Request&, Response*),
          JobId job, const std::function<void(Request&)>& more = {}) {
        // Its own job has no view yet.
        auto request = Stranger::As<Request>(job, 1, 101, job == own ? 0 : 1);
        request.set_session_secret(join.session_secret());
        if (more) more(request);
        return member.Call(member.members(), method, request).error_code();
      };
  const auto denied = grpc::StatusCode::PERMISSION_DENIED;
  const std::function<void(v1::LeaveRequest&)> stopped = [](v1::LeaveRequest& request) {
    request.set_reason(v1::LEAVE_REASON_STOPPED);
  };
  const std::function<void(v1::ReportLostRequest&)> rank = [](v1::ReportLostRequest& request) {
    request.set_rank(1);
  };
  CHECK(say(&MemberStub::RenewLease, view.job) == denied);
  CHECK(say(&MemberStub::Quiesced, view.job) == denied);
  CHECK(say(&MemberStub::ReportLost, view.job, rank) == denied);
  CHECK(say(&MemberStub::Leave, view.job, stopped) == denied);
  auto watch = Stranger::As<v1::WatchViewsRequest>(view.job, 1, 101, 1);
  *watch.mutable_version() = rpc::ToProto(rpc::Version{});
  watch.set_session_secret(join.session_secret());
  grpc::ClientContext watch_context;
  CHECK(member.members().WatchViews(&watch_context, watch)->Finish().error_code() == denied);
  // It does not speak for an aggregator either.
  v1::DeregisterAggregatorRequest deregister;
  deregister.set_incarnation(200);
  deregister.set_leave(true);
  deregister.set_session_secret(join.session_secret());
  CHECK(member.Call(member.pool(), &v1::PoolService::Stub::DeregisterAggregator, deregister)
            .error_code() == denied);
  // In its own job it is heard.
  CHECK(say(&MemberStub::RenewLease, own) == grpc::StatusCode::OK);
  CHECK(say(&MemberStub::Leave, own, stopped) == grpc::StatusCode::OK);
  CHECK_FALSE(first.events.Has<rpc::JobFailed>());
  CHECK_FALSE(second.events.Has<rpc::LeaseLost>());
}

TEST_CASE("Scheduler: with a job secret, only a caller that shows it joins and registers",
          "[scheduler]") {
  SchedulerOptions options;
  options.job_secret = std::string(64, 's');
  const Daemon daemon(store::MakeMemoryStore(), options);
  rpc::SchedulerLinkOptions link = Link(daemon.address());
  for (const std::string& own : {std::string(), std::string(64, 't'), std::string(63, 's')}) {
    link.job_secret = own;
    TestMember stranger(link, Spec(0, 1, 1));
    const absl::Status status = stranger.Refusal();
    CHECK(status.code() == absl::StatusCode::kPermissionDenied);
    CHECK(Contains(Message(status),
                   own.empty() ? "refuses the agent of node 0, which shows no job secret"
                               : "does not prove that it knows the job secret of this process"));
    CHECK(Contains(Message(status), "TALWEG_SECRET_FILE"));
    CHECK_FALSE(Contains(Message(status), "sss"));
  }
  // An agent of an older release shows the secret itself.
  Stranger older(daemon.address());
  v1::JoinRequest join;
  *join.mutable_version() = rpc::ToProto(rpc::Version{});
  join.set_job_name("older");
  *join.mutable_spec() = rpc::ToProto(Spec(0, 1, 1).spec);
  join.mutable_id()->set_incarnation(7);
  join.set_rank_count(1);
  join.set_session_secret(rpc::NewSecret());
  for (const std::string& shown : {std::string(), std::string(64, 't'), std::string(63, 's')}) {
    join.set_job_secret(shown);
    const grpc::Status status =
        older.Call(older.members(), &v1::MembershipService::Stub::Join, join);
    CHECK(status.error_code() == grpc::StatusCode::PERMISSION_DENIED);
    CHECK(Contains(status.error_message(), "refuses the agent of node 0, which shows"));
  }
  join.set_job_secret(options.job_secret);
  CHECK(older.Call(older.members(), &v1::MembershipService::Stub::Join, join).ok());
  Events<rpc::AggregatorEvent> events;
  const view::ViewAggregator aggregator{
      .incarnation = Incarnation{200}, .name = "a0", .data_address = "x", .host_id = "h"};
  {
    link.job_secret.clear();
    rpc::AggregatorRegistration stranger(
        link, [&](rpc::AggregatorEvent event) { events.Put(std::move(event)); });
    stranger.Register(aggregator);
    CHECK(Contains(Message(events.Next<rpc::RegistrationRefused>().status),
                   "refuses aggregator a0, which shows no job secret"));
  }
  link.job_secret = options.job_secret;
  rpc::AggregatorRegistration pool(
      link, [&](rpc::AggregatorEvent event) { events.Put(std::move(event)); });
  pool.Register(aggregator);
  events.Next<rpc::Registered>();
  TestMember member(link, Spec(0, 1, 1));
  member.events.Next<rpc::ViewPublished>();
  // Without it nobody may lower with how many members a job begins.
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  v1::LowerBeginMembersRequest lower;
  lower.set_job_name("mnist");
  lower.set_begin_members(1);
  for (const std::string& shown : {std::string(), std::string(64, 't')}) {
    lower.set_job_secret(shown);
    CHECK(admin.LowerBeginMembers(lower).status().code() == absl::StatusCode::kPermissionDenied);
  }
  lower.set_job_secret(options.job_secret);
  const auto lowered = admin.LowerBeginMembers(lower);
  REQUIRE(lowered.ok());
  CHECK(lowered->has_begun());
  lower.set_begin_members(0);
  CHECK(admin.LowerBeginMembers(lower).status().code() == absl::StatusCode::kInvalidArgument);
  lower.set_begin_members(1);
  lower.set_job_name("another");
  CHECK(admin.LowerBeginMembers(lower).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("Scheduler: a member that joins without a secret of its own is told to draw one",
          "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  Stranger stranger(daemon.address());
  v1::JoinRequest join;
  *join.mutable_version() = rpc::ToProto(rpc::Version{});
  join.set_job_name("mnist");
  const grpc::Status status =
      stranger.Call(stranger.members(), &v1::MembershipService::Stub::Join, join);
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(Contains(status.error_message(), "session_secret of the agent of node 0 has 0 bytes"));
}

TEST_CASE("Scheduler: strangers who are refused do not fill a disk with the log", "[scheduler]") {
  constexpr int kCalls = 150;
  std::atomic<int> lines = 0;
  telemetry::SetLogSink([&](telemetry::LogLevel, const std::string& text) {
    if (Contains(text, "refused: ")) ++lines;
  });
  {
    SchedulerOptions options;
    options.job_secret = std::string(64, 's');
    const Daemon daemon(store::MakeMemoryStore(), options);
    Stranger stranger(daemon.address());
    v1::JoinRequest join;
    for (int i = 0; i < kCalls; ++i) {
      *join.mutable_version() = rpc::ToProto(rpc::Version{.major = i % 2 == 0 ? 2u : 77u});
      const grpc::Status status =
          stranger.Call(stranger.members(), &v1::MembershipService::Stub::Join, join);
      CHECK_FALSE(status.ok());
    }
  }
  telemetry::SetLogSink(nullptr);
  CHECK(lines >= telemetry::BoundedLog::kAtOnce);
  CHECK(lines < kCalls);
}

}  // namespace
}  // namespace talweg::scheduler
