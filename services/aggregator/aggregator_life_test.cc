// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator_life.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/runtime/manual_clock.h"
#include "libs/transport/loopback/loopback_transport.h"

namespace talweg::aggregator {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr Incarnation kFirst{7};

using State = AggregatorLife::State;

// The requests to the links, and the functions that answer them.
struct Scheduler {
  std::vector<Incarnation> registered;
  SchedulerLink::OnEvent on_event;  // Belongs to the newest link.
  std::function<void(absl::StatusOr<uint32_t>)> drained;
  std::function<void(absl::Status)> left;
  int64_t drain_timeout_ns = 0;
  int64_t leave_timeout_ns = 0;
};

class FakeLink final : public SchedulerLink {
 public:
  explicit FakeLink(Scheduler* scheduler) : scheduler_(scheduler) {}
  void Register(view::ViewAggregator self) override {
    scheduler_->registered.push_back(self.incarnation);
  }
  void Drain(std::string, int64_t timeout_ns,
             std::function<void(absl::StatusOr<uint32_t>)> done) override {
    scheduler_->drained = std::move(done);
    scheduler_->drain_timeout_ns = timeout_ns;
  }
  void Deregister(std::string, int64_t timeout_ns,
                  std::function<void(absl::Status)> done) override {
    scheduler_->left = std::move(done);
    scheduler_->leave_timeout_ns = timeout_ns;
  }

 private:
  Scheduler* const scheduler_;
};

struct Fixture {
  // Calls the callback, which may be replaced meanwhile.
  void Say(const rpc::AggregatorEvent& event) {
    const SchedulerLink::OnEvent on_event = scheduler.on_event;
    on_event(event);
  }
  view::View ViewOf(uint64_t epoch) const {
    view::View view;
    view.job = JobId{3};
    view.epoch = Epoch{epoch};
    view.members.push_back({.id = {NodeRank{0}, Incarnation{100}}, .rank_count = 1, .name = "a"});
    view.aggregators.push_back({.incarnation = kFirst, .name = "agg"});
    return view;
  }
  // A view in which another aggregator serves.
  view::View ViewWithout(uint64_t job, uint64_t epoch) const {
    view::View view = ViewOf(epoch);
    view.job = JobId{job};
    view.aggregators[0] = {.incarnation = Incarnation{8}, .name = "other"};
    return view;
  }

  runtime::ManualClock clock;
  std::unique_ptr<transport::LoopbackNetwork> network = transport::NewLoopbackNetwork();
  std::unique_ptr<transport::Transport> transport = network->NewTransport();
  AggregatorDataPlane data_plane{{.name = "agg", .incarnation = kFirst}, transport.get(), &clock};
  Scheduler scheduler;
  int ended = 0;
  AggregatorLife life{{.self = {.incarnation = kFirst, .name = "agg"},
                       .scheduler = "here:1",
                       .drain_timeout_ns = 10 * kSecond},
                      &data_plane,
                      &clock,
                      [this](Incarnation, SchedulerLink::OnEvent on_event) {
                        scheduler.on_event = std::move(on_event);
                        return std::make_unique<FakeLink>(&scheduler);
                      },
                      [this] { ++ended; }};
};

TEST_CASE("AggregatorLife: a refused registration ends it, and says why", "[aggregator]") {
  Fixture f;
  f.life.Start();
  CHECK(f.scheduler.registered == std::vector{kFirst});
  f.Say(rpc::RegistrationRefused{absl::FailedPreconditionError("another version")});
  CHECK(f.life.state() == State::kEnded);
  CHECK(f.ended == 1);
  CHECK(f.life.result().message() == "another version");
}

TEST_CASE("AggregatorLife: it can say whether the scheduler answers", "[aggregator]") {
  Fixture f;
  CHECK(f.life.scheduler_text() == "not registered yet");
  f.life.Start();
  f.Say(rpc::Registered{});
  CHECK(f.life.scheduler_reachable());
  f.Say(rpc::Unreachable{"no route"});
  CHECK_FALSE(f.life.scheduler_reachable());
  CHECK(f.life.scheduler_text() == "no route");
  f.Say(rpc::Reachable{});
  CHECK(f.life.scheduler_reachable());
  CHECK(f.life.scheduler_text().empty());
}

TEST_CASE("AggregatorLife: a lost lease ends all jobs, and another incarnation registers",
          "[aggregator]") {
  Fixture f;
  f.life.Start();
  f.Say(rpc::Registered{});
  f.Say(rpc::JobViewPublished{"job", f.ViewOf(1)});
  REQUIRE(f.data_plane.jobs().size() == 1);
  const SchedulerLink::OnEvent old = f.scheduler.on_event;
  f.Say(rpc::LeaseLost{"it was silent"});
  CHECK(f.life.state() == State::kServing);
  CHECK(f.data_plane.jobs().empty());
  REQUIRE(f.scheduler.registered.size() == 2);
  CHECK(f.scheduler.registered[1] != kFirst);
  CHECK(f.data_plane.options().incarnation == f.scheduler.registered[1]);
  // Events of the old link are ignored.
  old(rpc::JobViewPublished{"job", f.ViewOf(2)});
  CHECK(f.data_plane.jobs().empty());
}

TEST_CASE(
    "AggregatorLife: a job's rules hold from its view on, and change when the scheduler says so",
    "[aggregator]") {
  Fixture f;
  f.life.Start();
  f.Say(rpc::Registered{});
  const auto quota = [&f] { return f.data_plane.jobs().at(0)->quota(); };
  f.Say(rpc::JobViewPublished{"job", f.ViewOf(1), {.weight = 2, .limit = {.tensors_max = 7}}});
  CHECK(quota() == view::JobQuota{.weight = 2, .limit = {.tensors_max = 7}});
  CHECK(f.data_plane.jobs().at(0)->place().limit().tensors_max == 7);
  f.Say(rpc::JobQuotaPublished{JobId{3}, {.weight = 5}});
  CHECK(quota() == view::JobQuota{.weight = 5});
  CHECK(f.data_plane.jobs().at(0)->place().limit() == view::PlaceLimit{});
  f.Say(rpc::JobQuotaPublished{JobId{4}, {.weight = 9}});  // That job is not here.
  CHECK(quota() == view::JobQuota{.weight = 5});
}

TEST_CASE("AggregatorLife: a shutdown waits for its jobs, then says goodbye", "[aggregator]") {
  Fixture f;
  f.life.Start();
  f.Say(rpc::Registered{});
  f.Say(rpc::JobViewPublished{"job", f.ViewOf(1)});
  f.Say(rpc::JobViewPublished{"a job that never uses it", f.ViewWithout(4, 1)});
  f.life.Shutdown("SIGTERM");
  f.life.Shutdown("SIGTERM again");
  CHECK(f.life.state() == State::kDraining);
  CHECK(f.scheduler.drain_timeout_ns == 10 * kSecond);
  f.life.Tick();
  CHECK(f.scheduler.left == nullptr);  // The scheduler has not answered.
  f.scheduler.drained(1U);
  f.life.Tick();
  CHECK(f.life.state() == State::kDraining);

  SECTION("The jobs end") { f.Say(rpc::JobClosed{JobId{3}, "all have left"}); }
  SECTION("The jobs move to another aggregator") {
    f.Say(rpc::JobViewPublished{"job", f.ViewWithout(3, 2)});
  }
  SECTION("The jobs have had their time") { f.clock.Advance(10 * kSecond); }
  f.life.Tick();
  CHECK(f.life.state() == State::kLeaving);
  REQUIRE(f.scheduler.left != nullptr);
  CHECK(f.scheduler.leave_timeout_ns >= kSecond);
  CHECK(f.ended == 0);
  f.scheduler.left(absl::OkStatus());
  CHECK(f.life.state() == State::kEnded);
  CHECK(f.ended == 1);
}

TEST_CASE("AggregatorLife: a shutdown does not wait for a scheduler that is away", "[aggregator]") {
  Fixture f;
  f.life.Start();
  f.Say(rpc::JobViewPublished{"job", f.ViewOf(1)});
  f.life.Shutdown("SIGTERM");
  f.scheduler.drained(absl::UnavailableError("nobody answers"));
  CHECK(f.life.state() == State::kLeaving);
  f.scheduler.left(absl::UnavailableError("nobody answers"));
  CHECK(f.life.state() == State::kEnded);
}

TEST_CASE("AggregatorLife: an aggregator that is lost while it drains just ends", "[aggregator]") {
  Fixture f;
  f.life.Start();
  f.life.Shutdown("SIGTERM");
  f.Say(rpc::LeaseLost{"it was silent"});
  CHECK(f.life.state() == State::kEnded);
  CHECK(f.scheduler.registered.size() == 1);
  f.scheduler.drained(0U);  // This comes too late to matter.
  CHECK(f.scheduler.left == nullptr);
  CHECK(f.ended == 1);
}

TEST_CASE("AggregatorLife: an aggregator that never registered ends at once", "[aggregator]") {
  Fixture f;
  f.life.Shutdown("SIGTERM");
  CHECK(f.life.state() == State::kEnded);
  f.life.Start();
  CHECK(f.scheduler.registered.empty());
}

}  // namespace
}  // namespace talweg::aggregator
