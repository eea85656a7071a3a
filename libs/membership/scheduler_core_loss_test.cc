// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/membership/scheduler_core.h"
#include "libs/membership/scheduler_core_fixture.h"

namespace talweg::membership {
namespace {

TEST_CASE("SchedulerCore: a broken stream fails the job at once and says who died",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  f.Break(Id(1, 11));
  CHECK(f.StateOf(job) == JobState::kFailed);
  const std::string text =
      "job 'mnist' has failed: agent of node 1 (host-1, incarnation b) closed its connection";
  REQUIRE(f.Told<JobFailed>(Id(0, 10)).size() == 1);
  CHECK(f.Told<JobFailed>(Id(0, 10))[0].text == text);
  REQUIRE(f.AggregatorTold<JobClosed>(100).size() == 1);
  CHECK(f.AggregatorTold<JobClosed>(100)[0] == JobClosed{job, text});

  // A member that missed the failure is told when it comes back. The dead one is not admitted
  // again.
  REQUIRE(f.Attach(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Told<JobFailed>(Id(0, 10)).size() == 1);
  CHECK(f.Renew(job, Id(1, 11)).code == Code::kRefused);
  const JoinAnswer back = f.Join(Fixture::Request("mnist", 1, 11, Spec(2, 2)));
  CHECK(back.answer.code == Code::kRefused);
  CHECK(Contains(back.answer.text, "new incarnation"));

  // The name is free for another job with another id.
  CHECK(f.Enter("mnist", 0, 20, Spec(2, 2)) != job);
}

TEST_CASE("SchedulerCore: a member that is silent loses its lease", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  f.Pass(9 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kRunning);
  f.Pass(kSecond, job, {Id(0, 10)});  // This is no longer than a lease.
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text,
                 "node 1 (host-1, incarnation b) was silent for 10 s"));
}

TEST_CASE("SchedulerCore: a dead rank fails the job, and its own agent is told as well",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  REQUIRE(f.ReportLost(job, Id(1, 11), LostRank{Rank{3}}, "killed by signal 9").ok());
  for (const view::MemberIdentity id : {Id(0, 10), Id(1, 11)}) {
    REQUIRE(f.Told<JobFailed>(id).size() == 1);
    CHECK(Contains(f.Told<JobFailed>(id)[0].text,
                   "agent of node 1 (host-1, incarnation b) reports that rank 3 has died: killed "
                   "by signal 9"));
  }
  CHECK(f.ReportLost(job, Id(1, 11), LostRank{Rank{3}}, "killed by signal 9").ok());
  CHECK(f.Told<JobFailed>(Id(0, 10)).size() == 1);
}

TEST_CASE("SchedulerCore: a member that cannot go on says so itself", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  // Another member's report about it decides nothing.
  REQUIRE(f.ReportLost(job, Id(0, 10), LostMember{Id(1, 11)}, "refused").ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
  REQUIRE(f.ReportLost(job, Id(1, 11), LostMember{Id(1, 11)}, "no way to a0").ok());
  for (const view::MemberIdentity id : {Id(0, 10), Id(1, 11)}) {
    REQUIRE(f.Told<JobFailed>(id).size() == 1);
    CHECK(Contains(f.Told<JobFailed>(id)[0].text,
                   "agent of node 1 (host-1, incarnation b) gives up: no way to a0"));
  }
}

TEST_CASE("SchedulerCore: a report that a peer is out of reach is noted and decides nothing",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  REQUIRE(f.ReportLost(job, Id(0, 10), LostAggregator{Incarnation{100}}, "refused").ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
  REQUIRE(f.core->jobs().at(job).complaints.size() == 1);
  CHECK(f.core->jobs().at(job).complaints[0].about == "aggregator a0 (incarnation 64)");
}

TEST_CASE("SchedulerCore: an agent that is stopped is a loss, and one that has finished is none",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  REQUIRE(f.Leave(job, Id(1, 11)).ok());
  CHECK(f.Leave(job, Id(1, 11)).ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
  REQUIRE(f.Told<MemberLeft>(Id(0, 10)).size() == 1);
  CHECK(f.Told<MemberLeft>(Id(0, 10))[0].id == Id(1, 11));
  CHECK(f.EpochOf(job) == Epoch{1});
  // Its ranks can join another job of that name once the others have left this one, too.
  CHECK(f.Join(Fixture::Request("mnist", 1, 12, Spec(2, 2))).answer.code == Code::kNotYet);
  REQUIRE(f.Leave(job, Id(0, 10)).ok());
  CHECK(f.StateOf(job) == JobState::kFinished);
  CHECK(f.AggregatorTold<JobClosed>(100).size() == 1);

  const JobId second = f.Enter("mnist", 0, 20, Spec(2, 2));
  f.Enter("mnist", 1, 21, Spec(2, 2));
  REQUIRE(f.Leave(second, Id(1, 21), LeaveReason::kStopped, "SIGTERM").ok());
  CHECK(f.StateOf(second) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 20)).at(0).text, "was stopped: SIGTERM"));
}

TEST_CASE("SchedulerCore: kContinue goes on without lost members while min_members remain",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 3, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  CHECK(f.EpochOf(job) == Epoch{1});
  f.Enter("mnist", 2, 12, spec);
  f.QuiesceAll(job);
  CHECK(f.EpochOf(job) == Epoch{2});
  f.Break(Id(1, 11));
  CHECK(f.EpochOf(job) == Epoch{3});
  CHECK(f.Told<view::View>(Id(0, 10)).back().members.size() == 2);
  f.Break(Id(2, 12));
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(
      Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text, "1 member left, the job needs at least 2"));
}

TEST_CASE("SchedulerCore: an aggregator is told who is out, also of views that it has not had",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(1, 3, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.Enter("mnist", 2, 12, spec);
  const auto gone = [&f](uint64_t aggregator) {
    return f.AggregatorTold<JobView>(aggregator).back().gone;
  };
  f.QuiesceAll(job);
  CHECK(gone(100) == view::Gone{});
  f.Break(Id(1, 11));
  CHECK(gone(100) == view::Gone{.members = {Id(1, 11)}});
  f.Break(Id(2, 12));
  CHECK(gone(100) == view::Gone{.members = {Id(1, 11), Id(2, 12)}});
  // One that comes later has had none of those views.
  f.AddAggregator("a1", 101);
  CHECK(gone(101) == gone(100));
  // Another incarnation of the node is another member.
  f.Enter("mnist", 1, 13, spec);
  f.QuiesceAll(job);
  CHECK(gone(101) == view::Gone{.members = {Id(1, 11), Id(2, 12)}});
  // What the core has forgotten, nobody can be told.
  for (uint64_t i = 0; i < LiveJob::kGoneMax; ++i) {
    REQUIRE_FALSE(gone(101).is_everybody);
    const view::MemberIdentity next = Id(2, 1000 + i);
    f.Enter("mnist", 2, 1000 + i, spec);
    f.QuiesceAll(job);
    f.Break(next);
    if (f.core->jobs().at(job).gone.size() == LiveJob::kGoneMax) break;
  }
  CHECK(gone(101).is_everybody);
  CHECK(gone(100).is_everybody);
}

TEST_CASE("SchedulerCore: a member that has left is no loss, however many others go after it",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 4, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.QuiesceAll(job);
  // The job needs two members, so this one stays in the view.
  REQUIRE(f.Leave(job, Id(1, 11)).ok());
  for (uint64_t i = 0; i <= LiveJob::kGoneMax; ++i) {
    REQUIRE(f.Join(Fixture::Request("mnist", 2, 1000 + i, spec)).answer.ok());
    REQUIRE(f.Attach(job, Id(2, 1000 + i), Epoch{0}, {.attached = false}).ok());
    f.Break(Id(2, 1000 + i));
  }
  const LiveJob& live = f.core->jobs().at(job);
  CHECK(live.gone.size() == LiveJob::kGoneMax);
  REQUIRE(live.FindGone(Id(1, 11)) != nullptr);
  CHECK(live.FindGone(Id(1, 11))->state == MemberState::kLeft);
  CHECK(live.FindGone(Id(2, 1000)) == nullptr);
  CHECK(live.state == JobState::kRunning);
}

TEST_CASE("SchedulerCore: nobody waits for a joiner whose ranks are not there", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 4, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  // The job begins although its ranks have not attached: they wait for each other anyway.
  REQUIRE(f.Join(Fixture::Request("mnist", 1, 11, spec)).answer.ok());
  REQUIRE(f.Attach(job, Id(1, 11), Epoch{0}, {.attached = false}).ok());
  REQUIRE(f.EpochOf(job) == Epoch{1});
  REQUIRE(f.Join(Fixture::Request("mnist", 3, 13, spec)).answer.ok());
  REQUIRE(f.Attach(job, Id(3, 13), Epoch{0}, {.attached = false}).ok());
  CHECK(f.Told<Quiesce>(Id(0, 10)).empty());
  CHECK(f.core->StateText(f.core->jobs().at(job)) == "node 3 can enter when all ranks are there");

  SECTION("The joiner's ranks come") {
    f.Renew(job, Id(3, 13), Epoch{0}, {.attached = true});
    f.QuiesceAll(job);
    CHECK(f.Told<view::View>(Id(0, 10)).back().members.size() == 3);
  }
  SECTION("Another joiner's ranks come") {
    f.Enter("mnist", 2, 12, spec);
    f.QuiesceAll(job);
    const std::vector<view::ViewMember> members = f.Told<view::View>(Id(0, 10)).back().members;
    REQUIRE(members.size() == 3);
    CHECK(members[2].id == Id(2, 12));
  }
  SECTION("A rank leaves again before the node has entered") {
    f.Renew(job, Id(3, 13), Epoch{0}, {.attached = true});
    REQUIRE(f.Told<Quiesce>(Id(0, 10)).size() == 1);
    f.Renew(job, Id(3, 13), Epoch{0});  // The agent says nothing about its ranks.
    CHECK(f.Told<QuiesceCancelled>(Id(0, 10)).empty());
    f.Renew(job, Id(3, 13), Epoch{0}, {.attached = false});
    CHECK(f.Told<QuiesceCancelled>(Id(0, 10)).size() == 1);
  }
}

TEST_CASE("SchedulerCore: a joiner enters when every member has come to the end of its step",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 4, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.Enter("mnist", 3, 13, spec);
  REQUIRE(f.Told<Quiesce>(Id(0, 10)).size() == 1);
  const Quiesce quiesce = f.Told<Quiesce>(Id(0, 10))[0];
  CHECK(quiesce.joining == std::vector<NodeRank>{NodeRank{3}});
  CHECK(quiesce.step == 0);
  CHECK(f.Told<view::View>(Id(3, 13)).empty());
  f.Quiesced(job, Id(0, 10), quiesce.id, 7);
  f.Quiesced(job, Id(0, 10), quiesce.id, 7);
  f.Quiesced(job, Id(3, 13), quiesce.id, 99);  // This member was not asked.
  CHECK(Contains(f.core->StateText(f.core->jobs().at(job)),
                 "waits for node 1 to say which step it is in"));
  CHECK(f.EpochOf(job) == Epoch{1});

  SECTION("All members answer") {
    f.Quiesced(job, Id(1, 11), QuiesceId{quiesce.id.value() + 1});
    CHECK(f.EpochOf(job) == Epoch{1});
    f.Quiesced(job, Id(1, 11), quiesce.id, 6);
    // No rank is past the latest step that any rank was in, so all can stop there.
    CHECK(f.EpochOf(job) == Epoch{1});
    const Quiesce again = f.Told<Quiesce>(Id(0, 10)).back();
    CHECK(again.id != quiesce.id);
    CHECK(again.step == 7);
    CHECK(Contains(f.core->StateText(f.core->jobs().at(job)),
                   "waits for nodes 0, 1 to end step 7 (its program says so with "
                   "talweg.end_step(); one that never does lets nobody in), so that node 3"));
    CHECK(f.Told<Quiesce>(Id(1, 11)).back() == again);
    f.Quiesced(job, Id(0, 10), quiesce.id);  // This answers the first question.
    f.Quiesced(job, Id(1, 11), again.id);
    CHECK(f.EpochOf(job) == Epoch{1});
    f.Quiesced(job, Id(0, 10), again.id);
    CHECK(f.EpochOf(job) == Epoch{2});
    CHECK(f.Told<view::View>(Id(3, 13)).back().members.size() == 3);
    CHECK(f.Told<view::View>(Id(3, 13)).back().steps == 7);
    CHECK(f.Told<QuiesceCancelled>(Id(0, 10)).empty());
    f.Break(Id(1, 11));
    CHECK(f.Told<view::View>(Id(3, 13)).back().steps == 7);  // No member has entered since.
  }
  SECTION("a second joiner enters with the first") {
    f.Enter("mnist", 2, 12, spec);
    f.QuiesceAll(job);
    CHECK(f.Told<view::View>(Id(0, 10)).back().members.size() == 4);
  }
  SECTION("The joiner dies: members let their ranks go on, and no view follows") {
    f.Break(Id(3, 13));
    CHECK(f.Told<QuiesceCancelled>(Id(0, 10)).at(0).id == quiesce.id);
    CHECK(f.EpochOf(job) == Epoch{1});
    f.Quiesced(job, Id(1, 11), quiesce.id);  // This comes too late and is ignored.
    CHECK(f.EpochOf(job) == Epoch{1});
  }
  SECTION("A member opens another stream and hears what is under way") {
    REQUIRE(f.Attach(job, Id(1, 11), Epoch{1}).ok());
    CHECK(f.Told<Attached>(Id(1, 11)).at(0).quiesce == quiesce.id);
    CHECK(f.Told<Quiesce>(Id(1, 11)) == std::vector<Quiesce>{quiesce});
  }
}

TEST_CASE("SchedulerCore: a failure comes before a joiner, which is proposed again",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 4, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.Enter("mnist", 2, 12, spec);
  f.QuiesceAll(job);
  f.Enter("mnist", 3, 13, spec);
  const Quiesce first = f.Told<Quiesce>(Id(0, 10)).back();
  f.Quiesced(job, Id(0, 10), first.id);
  f.Break(Id(1, 11));
  const view::View without = f.Told<view::View>(Id(0, 10)).back();
  CHECK(without.epoch == Epoch{3});
  CHECK(without.members.size() == 2);
  const Quiesce second = f.Told<Quiesce>(Id(0, 10)).back();
  CHECK(second.id != first.id);
  f.Quiesced(job, Id(0, 10), second.id);
  CHECK(f.EpochOf(job) == Epoch{3});
  f.QuiesceAll(job);
  CHECK(f.Told<view::View>(Id(3, 13)).back().members.size() == 3);
}

TEST_CASE("SchedulerCore: a member that is shut out has a lease's time to come back",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  f.ShutOut(Id(1, 11), "its certificate is over");
  CHECK(f.StateOf(job) == JobState::kRunning);
  SECTION("It comes back, and later texts do not mention that it was shut out") {
    REQUIRE(f.Attach(job, Id(1, 11), Epoch{1}).ok());
    CHECK(f.core->jobs().at(job).members.at(NodeRank{1}).shut_out.empty());
    f.Break(Id(1, 11));
    CHECK(Contains(f.core->jobs().at(job).text, "closed its connection"));
  }
  SECTION("It does not come back") {
    f.Pass(11 * kSecond);
    CHECK(f.StateOf(job) == JobState::kFailed);
    CHECK(Contains(f.core->jobs().at(job).text,
                   "as its connection has ended: its certificate is over"));
  }
}

TEST_CASE("SchedulerCore: the loss of a joiner or of a forming job's member fails nothing",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 3));
  f.Enter("mnist", 1, 11, Spec(2, 3));
  f.Enter("mnist", 2, 12, Spec(2, 3));
  f.Break(Id(2, 12));
  CHECK(f.StateOf(job) == JobState::kRunning);

  const JobId forming = f.Enter("other", 0, 30, Spec(3, 3));
  f.Enter("other", 1, 31, Spec(3, 3));
  f.Break(Id(0, 30));
  CHECK(f.StateOf(forming) == JobState::kForming);
  f.Enter("other", 0, 32, Spec(3, 3));
  f.Break(Id(0, 32));
  f.Break(Id(1, 31));
  CHECK(f.StateOf(forming) == JobState::kFailed);
}

TEST_CASE("SchedulerCore: a joiner hears that the job has ended", "[membership]") {
  Fixture f;
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 2));
  f.Enter("mnist", 1, 11, Spec(1, 2));
  CHECK(
      Contains(f.core->StateText(f.core->jobs().at(job)), "cannot enter: there is no aggregator"));
  f.Leave(job, Id(0, 10));
  CHECK(f.StateOf(job) == JobState::kFinished);
  CHECK(Contains(f.Told<JobFailed>(Id(1, 11)).at(0).text, "before node 1 could enter"));
}

}  // namespace
}  // namespace talweg::membership
