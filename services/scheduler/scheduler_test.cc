// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <catch2/catch.hpp>

#include "libs/rpc/admin_client.h"
#include "libs/rpc/conversion.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/rpc/secret.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

namespace talweg::scheduler {
namespace {

using rpc::SchedulerClient;

// A store that outlives schedulers.
class LentStore final : public store::Store {
 public:
  explicit LentStore(store::Store* lender) : lender_(lender) {}
  absl::StatusOr<membership::Snapshot> Load() override { return lender_->Load(); }
  absl::Status Write(const membership::StoreWrite& write) override { return lender_->Write(write); }
  const std::string& name() const override { return lender_->name(); }

 private:
  store::Store* const lender_;
};

class BrokenStore final : public store::Store {
 public:
  absl::StatusOr<membership::Snapshot> Load() override { return membership::Snapshot{}; }
  absl::Status Write(const membership::StoreWrite&) override {
    if (writes_left_-- > 0) return absl::OkStatus();
    return absl::ResourceExhaustedError("disk is full");
  }
  const std::string& name() const override { return name_; }

 private:
  const std::string name_ = "broken";
  int writes_left_ = 2;
};

// Asks for job "mnist" until it is as wanted.
v1::GetJobResponse JobWhen(const Daemon& daemon,
                           const std::function<bool(const v1::GetJobResponse&)>& is_wanted) {
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  v1::GetJobRequest by_name;
  by_name.set_name("mnist");
  while (true) {
    const absl::StatusOr<v1::GetJobResponse> job = admin.GetJob(by_name);
    REQUIRE(job.ok());
    if (is_wanted(*job)) return *job;
  }
}

TEST_CASE("Scheduler: a job's dealing is in its view, is shown, and is the same at all members",
          "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  TestAggregator a1(daemon.address(), "a1", 201, "fi:tcp://127.0.0.1:1/0123456789abcdef", 3);
  a0.events.Next<rpc::Registered>();
  a1.events.Next<rpc::Registered>();
  rpc::JoinSpec spec = Spec(0, 1, 1);
  spec.spec.dealing = ParseDealing("djb2").value();
  TestMember first(Link(daemon.address()), spec);
  const view::View view = first.events.Next<rpc::ViewPublished>().view;
  CHECK(view.dealing == spec.spec.dealing);
  CHECK(a1.events.Next<rpc::JobViewPublished>().view.dealing == spec.spec.dealing);
  TestMember second(Link(daemon.address()), Spec(1, 1, 1));
  CHECK(
      Contains(Message(second.Refusal()), "dealing is djb2 in the job and striped in the request"));
  // A hash ignores weights.
  const v1::GetJobResponse job = JobWhen(daemon, [](const auto&) { return true; });
  CHECK(job.summary().spec().dealing().rule() == v1::DEALING_RULE_DJB2);
  REQUIRE(job.shares_size() == 2);
  CHECK(job.shares(0).share_of_bytes() == 0.5);
  CHECK(job.shares(1).share_of_bytes() == 0.5);
}

TEST_CASE("Scheduler: two agents and an aggregator get one view, train and leave", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  a0.events.Next<rpc::Registered>();
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  const rpc::Joined joined = first.events.Next<rpc::Joined>();
  CHECK(joined.lease_ns == 10 * kSecond);
  TestMember second(Link(daemon.address()), Spec(1, 2, 2));
  const view::View view = first.events.Next<rpc::ViewPublished>().view;
  CHECK(view == second.events.Next<rpc::ViewPublished>().view);
  CHECK(view.job == joined.job);
  CHECK(view.members.size() == 2);
  CHECK(view.aggregators.at(0).name == "a0");
  const rpc::JobViewPublished published = a0.events.Next<rpc::JobViewPublished>();
  CHECK(published.job_name == "mnist");
  CHECK(published.view.Digest() == view.Digest());
  // Aggregators connect to nobody, and get no key that opens a connection.
  CHECK(view.aggregators.at(0).data_address == "fi:tcp://127.0.0.1:1/0123456789abcdef");
  CHECK(published.view.aggregators.at(0).data_address == "fi:tcp://127.0.0.1:1");

  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  v1::GetJobRequest by_name;
  by_name.set_name("mnist");
  const auto job = admin.GetJob(by_name);
  REQUIRE(job.ok());
  CHECK(job->summary().state() == v1::JOB_STATE_RUNNING);
  CHECK(job->members_size() == 2);
  CHECK(job->members(0).attached());
  CHECK(job->shares(0).share_of_bytes() == 1.0);
  by_name.set_name("other");
  CHECK(Contains(Message(admin.GetJob(by_name).status()),
                 "'mnist' (" + std::to_string(joined.job.value()) + ")"));

  using Reason = SchedulerClient::LeaveReason;
  CHECK(first.client->Leave(Reason::kFinished, "done", 30 * kSecond).ok());
  CHECK(second.events.Next<rpc::MemberLeft>().id.node == NodeRank{0});
  CHECK(second.client->Leave(Reason::kFinished, "done", 30 * kSecond).ok());
  CHECK(a0.events.Next<rpc::JobClosed>().job == joined.job);
  const auto jobs = admin.ListJobs();
  REQUIRE(jobs.ok());
  CHECK(jobs->jobs(0).state() == v1::JOB_STATE_FINISHED);
  CHECK_FALSE(second.events.Has<rpc::JobFailed>());
  const auto aggregators = admin.ListAggregators();
  REQUIRE(aggregators.ok());
  CHECK(aggregators->aggregators(0).state() == v1::AggregatorStatus::STATE_LIVE);
  CHECK(*a0.client->Drain("SIGTERM", 30 * kSecond) == 0);
  CHECK(a0.client->Deregister("SIGTERM", 30 * kSecond).ok());
}

TEST_CASE("Scheduler: an agent whose connection breaks fails the job at once", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  a0.events.Next<rpc::Registered>();
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  TestMember second(Link(daemon.address()), Spec(1, 2, 2));
  first.events.Next<rpc::ViewPublished>();
  second.client.reset();
  CHECK(first.events.Next<rpc::JobFailed>().text ==
        "job 'mnist' has failed: agent of node 1 (host-1, incarnation 65) closed its connection");
  CHECK(Contains(a0.events.Next<rpc::JobClosed>().text, "node 1"));
}

TEST_CASE("Scheduler: the loss of an aggregator fails the job", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  std::optional<TestAggregator> a0;
  a0.emplace(daemon.address(), "a0", 200);
  // A view of one member does not wait for an aggregator.
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  absl::StatusOr<v1::ListAggregatorsResponse> aggregators;
  do {
    aggregators = admin.ListAggregators();
    REQUIRE(aggregators.ok());
  } while (aggregators->aggregators_size() == 0 || !aggregators->aggregators(0).attached());
  TestMember first(Link(daemon.address()), Spec(0, 1, 1));
  CHECK(first.events.Next<rpc::ViewPublished>().view.aggregators.size() == 1);
  a0.reset();
  CHECK(Contains(first.events.Next<rpc::JobFailed>().text,
                 "aggregator a0 (incarnation c8) closed its connection"));
}

TEST_CASE(
    "Scheduler: a dead rank and a stopped agent fail the job, and an unreachable peer does not",
    "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  TestMember second(Link(daemon.address()), Spec(1, 2, 2));
  first.events.Next<rpc::ViewPublished>();
  second.events.Next<rpc::ViewPublished>();
  SECTION("A rank has died") {
    second.client->ReportLostRank(Rank{3}, "killed by signal 9");
    CHECK(
        Contains(first.events.Next<rpc::JobFailed>().text, "rank 3 has died: killed by signal 9"));
    CHECK(Contains(second.events.Next<rpc::JobFailed>().text, "rank 3 has died"));
  }
  SECTION("An agent is stopped") {
    CHECK(
        second.client->Leave(SchedulerClient::LeaveReason::kStopped, "SIGTERM", 30 * kSecond).ok());
    CHECK(Contains(first.events.Next<rpc::JobFailed>().text, "was stopped: SIGTERM"));
  }
  SECTION("A peer out of reach is only noted") {
    second.client->ReportUnreachableAggregator(Incarnation{200}, "connection refused");
    const v1::GetJobResponse job =
        JobWhen(daemon, [](const v1::GetJobResponse& seen) { return seen.complaints_size() > 0; });
    CHECK(job.complaints(0).about() == "aggregator a0 (incarnation c8)");
    CHECK(job.summary().state() == v1::JOB_STATE_RUNNING);
  }
}

TEST_CASE("Scheduler: a joiner enters when the members have quiesced", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  const auto policy = membership::LossPolicy::kContinue;
  TestMember first(Link(daemon.address()), Spec(0, 2, 3, policy));
  TestMember second(Link(daemon.address()), Spec(1, 2, 3, policy));
  first.events.Next<rpc::ViewPublished>();
  TestMember third(Link(daemon.address()), Spec(2, 2, 3, policy), false);
  JobWhen(daemon, [](const v1::GetJobResponse& seen) {
    return seen.summary().state_text() == "node 2 can enter when all ranks are there";
  });
  third.client->SetRanksAttached(true);
  for (int asked = 0; asked < 2; ++asked) {
    const rpc::QuiesceRequested question = first.events.Next<rpc::QuiesceRequested>();
    CHECK(question.step == (asked == 0 ? 0 : 5));
    CHECK(second.events.Next<rpc::QuiesceRequested>().id == question.id);
    first.client->Quiesced(question.id, 5);
    second.client->Quiesced(question.id, 4);
  }
  const view::View entered = third.events.Next<rpc::ViewPublished>().view;
  CHECK(entered.members.size() == 3);
  CHECK(entered.steps == 5);
  CHECK(first.events.Next<rpc::ViewPublished>().view.epoch == Epoch{2});
  third.client.reset();
  CHECK(first.events.Next<rpc::ViewPublished>().view.members.size() == 2);
}

TEST_CASE("Scheduler: a refusal names the values", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  first.events.Next<rpc::Joined>();
  SECTION("The spec is another one") {
    TestMember other(Link(daemon.address()), Spec(1, 3, 3));
    const absl::Status status = other.Refusal();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(Contains(Message(status), "min_members is 2 in the job and 3 in the request"));
  }
  SECTION("There is no job name") {
    rpc::JoinSpec spec = Spec(1, 2, 2);
    spec.job_name = "";
    TestMember other(Link(daemon.address()), spec);
    CHECK(other.Refusal().code() == absl::StatusCode::kInvalidArgument);
  }
  SECTION("The job name is not UTF-8") {
    rpc::JoinSpec spec = Spec(1, 2, 2);
    spec.job_name = "caf\xe9";
    TestMember other(Link(daemon.address()), spec);
    const absl::Status status = other.Refusal();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(Contains(Message(status), "UTF-8"));
  }
  SECTION("The major version is another one") {
    rpc::SchedulerLinkOptions link = Link(daemon.address());
    link.version = {.major = 3, .minor = 3, .build = "2.3.4"};
    TestMember other(link, Spec(1, 2, 2));
    const absl::Status status = other.Refusal();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(Contains(Message(status), "the agent of node 1 speaks version 3.3 (build 2.3.4)"));
    CHECK(Contains(Message(status), "2.0 (build 0.1.0)"));
  }
  SECTION("Another minor version is admitted") {
    rpc::SchedulerLinkOptions link = Link(daemon.address());
    link.version.minor = 7;
    TestMember other(link, Spec(1, 2, 2));
    other.events.Next<rpc::Joined>();
  }
  SECTION("The node rank is held") {
    // The rank is held once the stream is open, which an admin call shows.
    rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
    v1::GetJobRequest by_name;
    by_name.set_name("mnist");
    absl::StatusOr<v1::GetJobResponse> job;
    do {
      job = admin.GetJob(by_name);
      REQUIRE(job.ok());
    } while (!job->members(0).attached());
    rpc::JoinSpec spec = Spec(0, 2, 2);
    spec.member.id.incarnation = Incarnation{999};
    TestMember other(Link(daemon.address()), spec);
    const absl::Status status = other.Refusal();
    CHECK(status.code() == absl::StatusCode::kAlreadyExists);
    CHECK(Contains(Message(status), "node rank 0 is held by the agent of node 0 (host-0"));
    const auto scheduler = admin.GetScheduler();
    REQUIRE(scheduler.ok());
    CHECK(scheduler->refused_by_code().at("ALREADY_EXISTS") == 1);
  }
}

TEST_CASE("Scheduler: a client that reaches nobody says so within its deadline", "[scheduler]") {
  const auto refusal = [](const std::string& address) {
    rpc::SchedulerLinkOptions link = Link(address);
    link.join_timeout_ns = kSecond;
    TestMember member(link, Spec(0, 1, 1));
    return member.Refusal();
  };
  SECTION("Nobody listens") {
    uint16_t port = 0;
    {
      const Daemon daemon(store::MakeMemoryStore());
      port = daemon.port();
    }
    const absl::Status status = refusal("127.0.0.1:" + std::to_string(port));
    CHECK(status.code() == absl::StatusCode::kUnavailable);
    CHECK(Contains(Message(status), "scheduler at 127.0.0.1:"));
    CHECK(Contains(Message(status), "is it running"));
  }
  SECTION("The name does not resolve") {
    const absl::Status status = refusal("no-such-host.invalid:7447");
    CHECK(Contains(Message(status), "no-such-host.invalid"));
  }
  SECTION("There is no address") {
    CHECK(Contains(Message(refusal("7447")), "'7447' is not host:port"));
    CHECK(Contains(Message(refusal("::1:7447")), "'::1:7447' is not host:port"));
    CHECK(refusal("host:99999").code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("Scheduler: members do not notice a restart, and losses are noticed after it",
          "[scheduler]") {
  const std::unique_ptr<store::Store> store = store::MakeMemoryStore();
  std::optional<Daemon> daemon;
  daemon.emplace(std::make_unique<LentStore>(store.get()));
  SchedulerOptions again;
  again.server.port_min = again.server.port_max = daemon->port();
  TestAggregator a0(daemon->address(), "a0", 200);
  TestMember first(Link(daemon->address()), Spec(0, 2, 2));
  TestMember second(Link(daemon->address()), Spec(1, 2, 2));
  first.events.Next<rpc::ViewPublished>();
  second.events.Next<rpc::ViewPublished>();
  daemon.reset();
  CHECK(Contains(first.events.Next<rpc::Unreachable>().text, "scheduler at 127.0.0.1:"));
  a0.events.Next<rpc::Unreachable>();
  daemon.emplace(std::make_unique<LentStore>(store.get()), again);
  first.events.Next<rpc::Reachable>();
  second.events.Next<rpc::Reachable>();
  a0.events.Next<rpc::Reachable>();
  CHECK_FALSE(first.events.Has<rpc::JobFailed>());
  CHECK_FALSE(first.events.Has<rpc::LeaseLost>());
  rpc::SchedulerAdminClient admin(daemon->address(), 30 * kSecond);
  const auto scheduler = admin.GetScheduler();
  REQUIRE(scheduler.ok());
  CHECK(scheduler->start_count() == 2);
  second.client.reset();
  CHECK(Contains(first.events.Next<rpc::JobFailed>().text, "node 1"));
  CHECK_FALSE(first.events.Has<rpc::ViewPublished>());  // The same epoch is not announced again.
  a0.events.Next<rpc::JobClosed>();
}

// Another program that has the scheduler's port, or a proxy that answers while the scheduler is
// away. It knows no call.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : members_(&unknown_), pool_(&unknown_) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&members_);
    builder.RegisterService(&pool_);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }

  // Waits until it has refused so many calls of each kind.
  void WaitFor(int count) { unknown_.WaitFor(count); }

 private:
  enum Kind { kRenewLease, kWatchViews, kRenewAggregator, kWatchJobs, kKinds };

  class Unknown {
   public:
    grpc::Status Refuse(Kind kind) {
      const std::lock_guard lock(mutex_);
      ++counts_[kind];
      changed_.notify_all();
      return {grpc::StatusCode::UNIMPLEMENTED, ""};
    }
    void WaitFor(int count) {
      std::unique_lock lock(mutex_);
      REQUIRE(changed_.wait_for(lock, kPatience,
                                [&] { return *std::ranges::min_element(counts_) >= count; }));
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::array<int, kKinds> counts_{};
  };

  struct Members final : v1::MembershipService::Service {
    explicit Members(Unknown* unknown) : unknown(unknown) {}
    grpc::Status RenewLease(grpc::ServerContext*, const v1::RenewLeaseRequest*,
                            v1::RenewLeaseResponse*) override {
      return unknown->Refuse(kRenewLease);
    }
    grpc::Status WatchViews(grpc::ServerContext*, const v1::WatchViewsRequest*,
                            grpc::ServerWriter<v1::WatchViewsResponse>*) override {
      return unknown->Refuse(kWatchViews);
    }
    Unknown* const unknown;
  };
  struct Pool final : v1::PoolService::Service {
    explicit Pool(Unknown* unknown) : unknown(unknown) {}
    grpc::Status RenewAggregator(grpc::ServerContext*, const v1::RenewAggregatorRequest*,
                                 v1::RenewAggregatorResponse*) override {
      return unknown->Refuse(kRenewAggregator);
    }
    grpc::Status WatchJobs(grpc::ServerContext*, const v1::WatchJobsRequest*,
                           grpc::ServerWriter<v1::WatchJobsResponse>*) override {
      return unknown->Refuse(kWatchJobs);
    }
    Unknown* const unknown;
  };

  Unknown unknown_;
  Members members_;
  Pool pool_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("Scheduler: whoever has its port for a while and knows no call puts nobody out",
          "[scheduler]") {
  const std::unique_ptr<store::Store> store = store::MakeMemoryStore();
  std::optional<Daemon> daemon(std::in_place, std::make_unique<LentStore>(store.get()));
  SchedulerOptions again;
  again.server.port_min = again.server.port_max = daemon->port();
  const std::string address = daemon->address();
  TestAggregator aggregator(address, "a0", 200);
  TestMember member(Link(address), Spec(0, 1, 1));
  member.events.Next<rpc::ViewPublished>();
  daemon.reset();
  Stranger(address).WaitFor(2);
  daemon.emplace(std::make_unique<LentStore>(store.get()), again);
  member.events.Next<rpc::Reachable>();
  aggregator.events.Next<rpc::Reachable>();
  CHECK_FALSE(member.events.Has<rpc::LeaseLost>());
  CHECK_FALSE(aggregator.events.Has<rpc::LeaseLost>());
}

TEST_CASE("Scheduler: after a lost store members are told, and aggregators register again",
          "[scheduler]") {
  std::optional<Daemon> daemon;
  daemon.emplace(store::MakeMemoryStore());
  SchedulerOptions again;
  again.server.port_min = again.server.port_max = daemon->port();
  TestAggregator a0(daemon->address(), "a0", 200);
  TestMember first(Link(daemon->address()), Spec(0, 1, 1));
  const JobId job = first.events.Next<rpc::ViewPublished>().view.job;
  a0.events.Next<rpc::JobViewPublished>();
  daemon.reset();
  daemon.emplace(store::MakeMemoryStore(), again);
  CHECK(Contains(first.events.Next<rpc::LeaseLost>().text,
                 "knows no job " + std::to_string(job.value())));
  CHECK(a0.events.Next<rpc::JobClosed>().job == job);
  rpc::JoinSpec spec = Spec(0, 1, 1);
  spec.member.id.incarnation = Incarnation{777};
  TestMember next(Link(daemon->address()), spec);
  CHECK(next.events.Next<rpc::Joined>().job > job);
}

TEST_CASE("Scheduler: a silent member loses its lease though its connection lives", "[scheduler]") {
  SchedulerOptions options;
  options.membership.lease_ns = 2 * kSecond;
  const Daemon daemon(store::MakeMemoryStore(), options);
  TestAggregator a0(daemon.address(), "a0", 200);
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  // This member never renews its lease.
  const auto channel = grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::MembershipService::NewStub(channel);
  const rpc::JoinSpec spec = Spec(1, 2, 2);
  v1::JoinRequest join;
  *join.mutable_version() = rpc::ToProto(rpc::Version{});
  join.set_job_name(spec.job_name);
  *join.mutable_spec() = rpc::ToProto(spec.spec);
  *join.mutable_id() = rpc::ToProto(spec.member.id);
  join.set_rank_count(1);
  join.set_session_secret(rpc::NewSecret());
  v1::JoinResponse joined;
  grpc::ClientContext join_context;
  REQUIRE(stub->Join(&join_context, join, &joined).ok());
  v1::WatchViewsRequest watch;
  *watch.mutable_version() = rpc::ToProto(rpc::Version{});
  watch.set_job_id(joined.job_id());
  *watch.mutable_id() = join.id();
  watch.set_session_secret(join.session_secret());
  grpc::ClientContext watch_context;
  watch_context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto stream = stub->WatchViews(&watch_context, watch);
  first.events.Next<rpc::ViewPublished>();
  CHECK(Contains(first.events.Next<rpc::JobFailed>().text, "was silent for 2 s"));
  v1::WatchViewsResponse response;
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(Contains(status.error_message(), "was silent"));
}

TEST_CASE("Scheduler: a view that the store cannot keep is not announced", "[scheduler]") {
  const Daemon daemon(std::make_unique<BrokenStore>());
  // The start and the join are stored, and the view is not.
  rpc::SchedulerLinkOptions link = Link(daemon.address());
  TestMember first(link, Spec(0, 1, 1));
  first.events.Next<rpc::Joined>();
  first.events.Next<rpc::Unreachable>();
  CHECK_FALSE(first.events.Has<rpc::ViewPublished>());
}

TEST_CASE("Scheduler: errors name bad bind addresses and taken ports", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  const auto start = [](rpc::ServerOptions options) { return rpc::Server::Start(options, {}); };
  rpc::ServerOptions options;
  options.port_min = options.port_max = daemon.port();
  const auto taken = start(options);
  REQUIRE(taken.status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(Contains(Message(taken.status()), "127.0.0.1:" + std::to_string(daemon.port())));
  CHECK(Contains(Message(taken.status()), "taken"));
  options.bind_host = "no-such-host.invalid";
  CHECK(Contains(Message(start(options).status()), "'no-such-host.invalid' does not resolve"));
  options.bind_host = "192.0.2.1";  // Nobody has this address.
  CHECK_FALSE(start(options).ok());
  options = {};
  options.port_min = 5;
  options.port_max = 4;
  CHECK(start(options).status().code() == absl::StatusCode::kInvalidArgument);
  // A range is tried to its end.
  options.port_min = daemon.port();
  options.port_max = static_cast<uint16_t>(std::min(65535, daemon.port() + 50));
  const auto next = start(options);
  REQUIRE(next.ok());
  CHECK((*next)->port() > daemon.port());
  CHECK((*next)->warning().empty());
  options = {};
  options.bind_host = "0.0.0.0";
  CHECK(Contains(start(options).status().ToString(), "will not listen on 0.0.0.0 without TLS"));
  options.insecure = true;
  const auto open = start(options);
  REQUIRE(open.ok());
  CHECK(Contains((*open)->warning(), "nothing is encrypted"));
  CHECK_FALSE(Contains((*open)->address(), "0.0.0.0"));
  options.bind_host = "::1";
  const auto six = start(options);
  if (six.ok()) CHECK((*six)->address() == "[::1]:" + std::to_string((*six)->port()));
}

TEST_CASE("Scheduler: an aggregator learns who has left a job before it came", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestAggregator a0(daemon.address(), "a0", 200);
  // The job begins when both are there.
  const auto spec = [](uint32_t node) {
    rpc::JoinSpec spec = Spec(node, 1, 2, membership::LossPolicy::kContinue);
    spec.spec.gather_ns = 600 * kSecond;
    return spec;
  };
  TestMember first(Link(daemon.address()), spec(0));
  {
    TestMember second(Link(daemon.address()), spec(1));
    CHECK(first.events.Next<rpc::ViewPublished>().view.members.size() == 2);
  }
  CHECK(first.events.Next<rpc::ViewPublished>().view.members.size() == 1);
  TestAggregator a1(daemon.address(), "a1", 201);
  const rpc::JobViewPublished published = a1.events.Next<rpc::JobViewPublished>();
  CHECK(published.gone == view::Gone{.members = {spec(1).member.id}});
}

}  // namespace
}  // namespace talweg::scheduler
