// SPDX-License-Identifier: Apache-2.0
// Joiners that are in the view before they take part in steps.
#include <vector>

#include <catch2/catch.hpp>

#include "libs/membership/scheduler_core.h"
#include "libs/membership/scheduler_core_fixture.h"

namespace talweg::membership {
namespace {

const JobSpec kSpec = Spec(1, 4, LossPolicy::kContinue);

struct Standbys : Fixture {
  // Nodes 0 and 1 train.
  explicit Standbys(bool aggregator_knows = true, std::optional<bool> members_know = true) {
    REQUIRE(Register(Named("a0", 100)).ok());
    REQUIRE(AttachAggregator(100, {}, aggregator_knows).ok());
    JobSpec spec = kSpec;
    spec.min_members = 2;
    job = Enter("mnist", 0, 10, spec, members_know);
    Enter("mnist", 1, 11, spec, members_know);
    REQUIRE(view().members.size() == 2);
  }
  JobSpec spec() const {
    JobSpec spec = kSpec;
    spec.min_members = 2;
    return spec;
  }
  void Knock(uint32_t node, uint64_t incarnation) {
    Enter("mnist", node, incarnation, spec(), false);
  }
  void Ready(uint32_t node, uint64_t incarnation, bool ready = true) {
    REQUIRE(Renew(job, Id(node, incarnation), Epoch{0}, {.ready = ready}).ok());
  }
  // All members that are asked to stop end the step.
  void EndStep(uint64_t step) {
    for (int question = 0; question < 2; ++question) {
      REQUIRE(core->jobs().at(job).quiesce);
      const QuiesceState asked = *core->jobs().at(job).quiesce;
      for (const view::MemberIdentity& id : asked.waits_for) Quiesced(job, id, asked.id, step);
    }
  }
  const view::View& view() const { return *core->jobs().at(job).view; }
  std::vector<bool> StandbysInView() const {
    std::vector<bool> standbys;
    for (const view::ViewMember& member : view().members) standbys.push_back(member.standby);
    return standbys;
  }

  JobId job;
};

using Flags = std::vector<bool>;

TEST_CASE("SchedulerCore: a joiner has the state when its ranks say so", "[membership]") {
  Standbys f;
  const auto has_state = [&](uint32_t node) {
    const LiveJob& live = f.core->jobs().at(f.job);
    return live.HasState(live.members.at(NodeRank{node}));
  };
  const auto say = [&](bool have_state) {
    REQUIRE(f.Renew(f.job, Id(2, 12), Epoch{0}, {.have_state = have_state}).ok());
  };
  CHECK(has_state(0));  // An older agent does not say, and counts as one that has the state.
  f.Knock(2, 12);
  say(false);
  CHECK_FALSE(has_state(2));
  f.EndStep(7);
  REQUIRE(f.StandbysInView() == Flags{false, false, true});
  f.Ready(2, 12);
  CHECK_FALSE(has_state(2));
  f.EndStep(9);
  REQUIRE(f.StandbysInView() == Flags{false, false, false});
  CHECK_FALSE(has_state(2));
  say(true);
  CHECK(has_state(2));
  REQUIRE(f.Renew(f.job, Id(2, 12)).ok());  // A renewal that does not say changes nothing.
  CHECK(has_state(2));
}

TEST_CASE("SchedulerCore: a joiner that is not ready is a standby until it is", "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.EndStep(7);
  CHECK(f.StandbysInView() == Flags{false, false, true});
  CHECK(f.view().steps == 7);
  CHECK(f.view().RankCount() == 4);
  CHECK_FALSE(f.core->jobs().at(f.job).quiesce);
  CHECK(Contains(f.core->StateText(f.core->jobs().at(f.job)), "node 2: a standby until"));
  CHECK(f.Told<view::View>(Id(2, 12)).back() == f.view());

  f.Ready(2, 12);
  REQUIRE(f.core->jobs().at(f.job).quiesce);
  // A standby takes part in no step, so it is not asked to stop.
  CHECK(f.core->jobs().at(f.job).quiesce->waits_for == std::set{Id(0, 10), Id(1, 11)});
  CHECK(f.Told<Quiesce>(Id(2, 12)).empty());
  CHECK(f.StandbysInView() == Flags{false, false, true});
  f.EndStep(9);
  CHECK(f.StandbysInView() == Flags{false, false, false});
  CHECK(f.view().steps == 9);
  CHECK_FALSE(f.core->jobs().at(f.job).quiesce);
}

TEST_CASE("SchedulerCore: a joiner that is ready in time is a full member at once",
          "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.Ready(2, 12);
  f.EndStep(7);
  CHECK(f.StandbysInView() == Flags{false, false, false});
}

TEST_CASE("SchedulerCore: one view takes in standbys and makes full members of others",
          "[membership]") {
  Standbys f;
  f.Knock(3, 13);
  f.EndStep(4);
  f.Knock(2, 12);
  f.Ready(3, 13);
  f.EndStep(5);
  CHECK(f.StandbysInView() == Flags{false, false, true, false});
}

TEST_CASE("SchedulerCore: a standby that is no longer ready stays a standby", "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.EndStep(4);
  f.Ready(2, 12);
  const QuiesceId quiesce = f.Told<Quiesce>(Id(0, 10)).back().id;
  f.Ready(2, 12, false);
  CHECK(f.Told<QuiesceCancelled>(Id(0, 10)).back().id == quiesce);
  CHECK(f.StandbysInView() == Flags{false, false, true});
}

TEST_CASE("SchedulerCore: after the loss of a standby comes a view without it", "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.EndStep(4);
  const Epoch before = f.EpochOf(f.job);
  f.Break(Id(2, 12));
  CHECK(f.EpochOf(f.job) > before);
  CHECK(f.StandbysInView() == Flags{false, false});
  CHECK(f.StateOf(f.job) == JobState::kRunning);
}

TEST_CASE("SchedulerCore: a standby does not count as a member that a job can go on with",
          "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.EndStep(4);
  SECTION("Too few full members are left") {
    f.Break(Id(1, 11));
    CHECK(f.StateOf(f.job) == JobState::kFailed);
    CHECK(f.Told<JobFailed>(Id(2, 12)).size() == 1);
  }
  SECTION("All full members have left") {
    f.Leave(f.job, Id(0, 10));
    f.Leave(f.job, Id(1, 11));
    CHECK(f.StateOf(f.job) == JobState::kFinished);
    CHECK(Contains(f.Told<JobFailed>(Id(2, 12)).at(0).text, "before node 2 could enter"));
  }
}

TEST_CASE("SchedulerCore: a standby stays one when a member is lost", "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.EndStep(4);
  f.Knock(3, 13);
  f.Ready(3, 13);
  f.EndStep(5);
  CHECK(f.StandbysInView() == Flags{false, false, true, false});
  f.Ready(2, 12);  // Others are stopping for it.
  f.Break(Id(0, 10));
  CHECK(f.StandbysInView() == Flags{false, true, false});
  f.EndStep(6);
  CHECK(f.StandbysInView() == Flags{false, false, false});
}

TEST_CASE("SchedulerCore: a joiner enters in one stage where one participant knows no standbys",
          "[membership]") {
  SECTION("An aggregator knows none") {
    Standbys f(false);
    f.Knock(2, 12);
    f.EndStep(4);
    CHECK(f.StandbysInView() == Flags{false, false, false});
  }
  SECTION("A full member knows none") {
    Standbys f(true, std::nullopt);
    f.Knock(2, 12);
    f.EndStep(4);
    CHECK(f.StandbysInView() == Flags{false, false, false});
  }
  SECTION("The joiner knows none") {
    Standbys f;
    f.Enter("mnist", 2, 12, f.spec());
    f.EndStep(4);
    CHECK(f.StandbysInView() == Flags{false, false, false});
  }
}

TEST_CASE("SchedulerCore: an aggregator that knows no standbys is in no view that has one",
          "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.EndStep(4);
  REQUIRE(f.Register(Fixture::Named("b0", 200)).ok());
  REQUIRE(f.AttachAggregator(200, {}, false).ok());
  f.Break(Id(2, 12));
  CHECK(f.view().aggregators.size() == 1);
  f.Knock(2, 22);
  f.EndStep(5);
  CHECK(f.view().HasStandby() == (f.view().aggregators.size() == 1));
}

TEST_CASE("SchedulerCore: a standby stays one when the scheduler restarts", "[membership]") {
  Standbys f;
  f.Knock(2, 12);
  f.EndStep(4);
  const Epoch epoch = f.EpochOf(f.job);
  f.Start();
  CHECK(f.StandbysInView() == Flags{false, false, true});
  REQUIRE(f.AttachAggregator(100, {{f.job, epoch}}).ok());
  for (const uint32_t node : {0, 1}) {
    REQUIRE(f.Attach(f.job, Id(node, 10 + node), epoch, {.ready = true}).ok());
  }
  CHECK_FALSE(f.core->jobs().at(f.job).quiesce);  // It has not said yet that it is ready.
  REQUIRE(f.Attach(f.job, Id(2, 12), epoch, {.ready = false}).ok());
  CHECK_FALSE(f.core->jobs().at(f.job).quiesce);
  f.Ready(2, 12);
  // It may attach again while others stop.
  REQUIRE(f.Attach(f.job, Id(2, 12), epoch, {.ready = true}).ok());
  CHECK(f.Told<Attached>(Id(2, 12)).back().quiesce == QuiesceId{0});
  CHECK(f.Told<Quiesce>(Id(2, 12)).empty());
  f.EndStep(6);
  CHECK(f.StandbysInView() == Flags{false, false, false});
}

}  // namespace
}  // namespace talweg::membership
