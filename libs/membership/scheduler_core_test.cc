// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/scheduler_core.h"

#include <algorithm>
#include <memory>

#include <catch2/catch.hpp>

#include "libs/membership/scheduler_core_fixture.h"

namespace talweg::membership {
namespace {

TEST_CASE("SchedulerCore: a job runs when min_members have joined and opened their streams",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 1, 11, Spec(2, 2));
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(f.core->StateText(f.core->jobs().at(job)) == "waits for 1 more member of 2; has node 1");
  const JoinAnswer second = f.Join(Fixture::Request("mnist", 0, 10, Spec(2, 2)));
  CHECK(second.job == job);
  CHECK(f.EpochOf(job) == Epoch{0});  // The member's stream is not open: it may have died.
  REQUIRE(f.Attach(job, Id(0, 10)).ok());
  CHECK(f.EpochOf(job) == Epoch{1});
  const std::vector<view::View> views = f.Told<view::View>(Id(1, 11));
  REQUIRE(views.size() == 1);
  CHECK(views[0].members[0].id == Id(0, 10));
  CHECK(views[0].members[1].id == Id(1, 11));
  CHECK(views[0].aggregators.size() == 1);
  CHECK(f.Told<view::View>(Id(0, 10)) == views);
  REQUIRE(f.AggregatorTold<JobView>(100).size() == 1);
  CHECK(f.AggregatorTold<JobView>(100)[0] ==
        JobView{"mnist", SharedView{std::make_shared<const view::View>(views[0])}});
}

TEST_CASE("SchedulerCore: a job that has min_members waits a while for max_members",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  JobSpec spec = Spec(2, 4);
  spec.gather_ns = 30 * kSecond;
  const auto text = [&f](JobId job) { return f.core->StateText(f.core->jobs().at(job)); };
  const auto pass = [&](int64_t seconds, const std::vector<view::MemberIdentity>& alive,
                        JobId job) { f.Pass(seconds * kSecond, job, alive); };
  const JobId job = f.Enter("mnist", 0, 10, spec);
  pass(100, {Id(0, 10)}, job);
  CHECK(text(job) == "waits for 1 more member of 2; has node 0");
  f.Enter("mnist", 1, 11, spec);
  pass(20, {Id(0, 10), Id(1, 11)}, job);
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(text(job) == "has nodes 0, 1 and waits for 2 more members of 4, for at most 30 s");
  SECTION("It begins with those that have come") {
    f.Enter("mnist", 2, 12, spec);
    pass(9, {Id(0, 10), Id(1, 11), Id(2, 12)}, job);
    CHECK(f.StateOf(job) == JobState::kForming);
    pass(2, {Id(0, 10), Id(1, 11), Id(2, 12)}, job);
    REQUIRE(f.StateOf(job) == JobState::kRunning);
    CHECK(f.core->jobs().at(job).view->members.size() == 3);
  }
  SECTION("It begins at once when it is complete") {
    f.Enter("mnist", 2, 12, spec);
    f.Enter("mnist", 3, 13, spec);
    REQUIRE(f.StateOf(job) == JobState::kRunning);
    CHECK(f.core->jobs().at(job).view->members.size() == 4);
  }
  SECTION("It begins the wait afresh when it has too few members again") {
    f.Break(Id(1, 11));
    pass(20, {Id(0, 10)}, job);
    f.Enter("mnist", 1, 21, spec);
    pass(29, {Id(0, 10), Id(1, 21)}, job);
    CHECK(f.StateOf(job) == JobState::kForming);
    pass(2, {Id(0, 10), Id(1, 21)}, job);
    CHECK(f.StateOf(job) == JobState::kRunning);
  }
  SECTION("It begins the wait afresh when a member is not ready and cannot count as lost") {
    f.now_ns += 3600 * kSecond;
    f.Tick();
    f.Break(Id(1, 11));
    REQUIRE(f.Attach(job, Id(1, 11)).ok());
    pass(29, {Id(0, 10), Id(1, 11)}, job);
    CHECK(f.StateOf(job) == JobState::kForming);
    pass(2, {Id(0, 10), Id(1, 11)}, job);
    CHECK(f.StateOf(job) == JobState::kRunning);
  }
  SECTION("It does not count the time in which the scheduler was stopped") {
    f.now_ns += 3600 * kSecond;
    f.Tick();
    pass(9, {Id(0, 10), Id(1, 11)}, job);
    CHECK(f.StateOf(job) == JobState::kForming);
    pass(2, {Id(0, 10), Id(1, 11)}, job);
    CHECK(f.StateOf(job) == JobState::kRunning);
  }
}

TEST_CASE("SchedulerCore: a job begins at once with begin_members", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  JobSpec spec = Spec(1, 4, LossPolicy::kContinue);
  spec.begin_members = 2;
  spec.gather_ns = 60 * kSecond;
  const auto view_size = [&f](JobId job) { return f.core->jobs().at(job).view->members.size(); };
  const JobId job = f.Enter("mnist", 0, 10, spec);
  CHECK(f.core->StateText(f.core->jobs().at(job)) ==
        "has node 0 and waits for 1 more member of 2, for at most 60 s");
  f.Pass(59 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kForming);
  SECTION("It does not matter which members they are") {
    f.Enter("mnist", 7, 17, spec);
    REQUIRE(f.StateOf(job) == JobState::kRunning);
    CHECK(view_size(job) == 2);
    // A later member is a joiner.
    f.Enter("mnist", 2, 12, spec);
    CHECK(f.core->jobs().at(job).quiesce.has_value());
    f.QuiesceAll(job);
    CHECK(view_size(job) == 3);
  }
  SECTION("It begins without one of them when the wait is over") {
    f.Pass(2 * kSecond, job, {Id(0, 10)});
    REQUIRE(f.StateOf(job) == JobState::kRunning);
    CHECK(view_size(job) == 1);
  }
  SECTION("It begins with those that are there when no more come") {
    bool has_begun = true;
    CHECK(f.LowerBeginMembers("other", 1, has_begun).code == Code::kUnknown);
    CHECK_FALSE(has_begun);
    CHECK(f.LowerBeginMembers("mnist", 3, has_begun).ok());
    CHECK_FALSE(has_begun);
    CHECK(f.StateOf(job) == JobState::kForming);
    CHECK(f.LowerBeginMembers("mnist", 1, has_begun).ok());
    CHECK(has_begun);
    REQUIRE(f.StateOf(job) == JobState::kRunning);
    CHECK(view_size(job) == 1);
    // A later member gives the same number as the others did.
    f.Enter("mnist", 1, 11, spec);
    f.QuiesceAll(job);
    CHECK(view_size(job) == 2);
    CHECK(f.LowerBeginMembers("mnist", 1, has_begun).ok());
    CHECK(has_begun);
    CHECK(view_size(job) == 2);
  }
  SECTION("It does not count one that has joined and not opened its stream") {
    REQUIRE(f.Join(Fixture::Request("mnist", 1, 11, spec)).answer.ok());
    CHECK(f.StateOf(job) == JobState::kForming);
    REQUIRE(f.Attach(job, Id(1, 11)).ok());
    CHECK(f.StateOf(job) == JobState::kRunning);
  }
  SECTION("It counts those that are left when one has gone") {
    REQUIRE(f.Join(Fixture::Request("mnist", 1, 11, spec)).answer.ok());
    f.Break(Id(0, 10));
    REQUIRE(f.Attach(job, Id(1, 11)).ok());
    CHECK(f.StateOf(job) == JobState::kForming);
    f.Enter("mnist", 0, 20, spec);
    CHECK(f.StateOf(job) == JobState::kRunning);
  }
  SECTION("It begins after the scheduler has restarted") {
    f.Start();
    f.AddAggregator("a1", 101);
    REQUIRE(f.Attach(job, Id(0, 10)).ok());
    CHECK(f.StateOf(job) == JobState::kForming);
    f.Enter("mnist", 1, 11, spec);
    CHECK(f.StateOf(job) == JobState::kRunning);
  }
}

TEST_CASE("SchedulerCore: a job waits for max_members no longer than it may take to begin",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  JobSpec spec = Spec(1, 2);
  spec.join_timeout_ns = 10 * kSecond;
  spec.gather_ns = 30 * kSecond;
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Pass(9 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kForming);
  f.Pass(2 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kRunning);
}

TEST_CASE("SchedulerCore: a repeated Join gives the same answer", "[membership]") {
  Fixture f;
  const JoinRequest request = Fixture::Request("mnist", 0, 10, Spec(2, 2));
  const JoinAnswer first = f.Join(request);
  const Snapshot stored = f.stored;
  const JoinAnswer again = f.Join(request);
  CHECK(again.answer.ok());
  CHECK(again.job == first.job);
  CHECK(f.stored == stored);
}

TEST_CASE("SchedulerCore: several members wait for an aggregator, and one member runs alone",
          "[membership]") {
  Fixture f;
  const JobId alone = f.Enter("alone", 0, 1, Spec(1, 1));
  CHECK(f.StateOf(alone) == JobState::kRunning);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(Contains(f.core->StateText(f.core->jobs().at(job)), "waits for an aggregator"));
  REQUIRE(f.Register(Fixture::Named("a0", 100)).ok());
  CHECK(f.StateOf(job) == JobState::kForming);
  REQUIRE(f.AttachAggregator(100).ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
}

TEST_CASE("SchedulerCore: a spec that differs is refused, and the text names both values",
          "[membership]") {
  Fixture f;
  f.Enter("mnist", 0, 10, Spec(2, 2));
  const JoinAnswer answer = f.Join(Fixture::Request("mnist", 1, 11, Spec(2, 3)));
  CHECK(answer.answer.code == Code::kRefused);
  CHECK(Contains(answer.answer.text, "max_members is 2 in the job and 3 in the request"));
  // Leaving out the number means the same as the number that it stands for.
  JobSpec begins = Spec(2, 2);
  begins.begin_members = 2;
  CHECK(f.Join(Fixture::Request("mnist", 1, 11, begins)).answer.ok());
  JobSpec early = Spec(1, 3);
  early.begin_members = 2;
  f.Enter("early", 0, 20, early);
  early.begin_members = 1;
  CHECK(f.Join(Fixture::Request("early", 1, 21, early)).answer.code == Code::kRefused);
  early.begin_members = 0;
  CHECK(Contains(f.Join(Fixture::Request("early", 1, 22, early)).answer.text,
                 "begin_members is 2 in the job and 3 in the request"));
  JobSpec patient = Spec(2, 2);
  patient.gather_ns = 30'000'000'000;
  const std::string text = f.Join(Fixture::Request("mnist", 1, 13, patient)).answer.text;
  CHECK(Contains(text, "gather is 0 s in the job and 30 s in the request"));
  JobSpec dealt = Spec(2, 2);
  dealt.dealing = ParseDealing("weighted").value();
  CHECK(Contains(f.Join(Fixture::Request("mnist", 1, 12, dealt)).answer.text,
                 "dealing is striped in the job and weighted:101 in the request"));
}

TEST_CASE("SchedulerCore: a request that can never be right is refused, and the text names why",
          "[membership]") {
  Fixture f;
  const JoinRequest good = Fixture::Request("mnist", 0, 10, Spec(1, 1));
  const auto problem = [&](auto change) {
    JoinRequest request = good;
    change(request);
    const JoinAnswer answer = f.Join(request);
    CHECK(answer.answer.code == Code::kInvalid);
    return answer.answer.text;
  };
  CHECK(Contains(problem([](JoinRequest& r) { r.job_name = ""; }), "job_name"));
  CHECK(Contains(problem([](JoinRequest& r) { r.job_name = std::string(2000, 'x'); }), "2000"));
  CHECK(Contains(problem([](JoinRequest& r) { r.job_name = std::string("a\0b", 3); }), "NUL"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.min_members = 0; }), "min_members is 0"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.max_members = 0; }), "max_members 0"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.begin_members = 2; }),
                 "begin_members is 2; it must be from min_members (1) to max_members (1)"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.slice_bytes_max = 100; }), "100"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.dealing.rule = DealingRule{9}; }),
                 "dealing is rule 9; it must be striped, naive, "));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.loss_policy = LossPolicy{7}; }), "7"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.join_timeout_ns = 0; }), "join_timeout"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.gather_ns = -1; }), "gather is"));
  CHECK(Contains(problem([](JoinRequest& r) { r.member.rank_count = 0; }), "rank_count is 0"));
  CHECK(Contains(problem([](JoinRequest& r) { r.member.id.incarnation = {}; }), "incarnation"));
  CHECK(f.core->jobs().empty());
  CHECK(f.Register({.incarnation = Incarnation{1}, .data_address = "x"}).code == Code::kInvalid);
  CHECK(f.Renew(f.Enter("mnist", 0, 10, Spec(1, 1)), Id(0, 10), Epoch{~uint64_t{0}}).code ==
        Code::kInvalid);
}

TEST_CASE("SchedulerCore: one live incarnation holds a node rank", "[membership]") {
  Fixture f;
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  const JoinAnswer other = f.Join(Fixture::Request("mnist", 0, 99, Spec(2, 2)));
  CHECK(other.answer.code == Code::kHeld);
  CHECK(Contains(other.answer.text, "host-0, incarnation a"));
  CHECK(f.StateOf(job) == JobState::kForming);

  // A member that never opened its stream makes room: it may have died.
  REQUIRE(f.Join(Fixture::Request("mnist", 1, 11, Spec(2, 2))).answer.ok());
  REQUIRE(f.Join(Fixture::Request("mnist", 1, 12, Spec(2, 2))).answer.ok());
  CHECK(f.Attach(job, Id(1, 11)).code == Code::kRefused);
  CHECK(Contains(f.Attach(job, Id(1, 11)).text, "replaced by incarnation c"));
}

TEST_CASE("SchedulerCore: a job has at most max_members", "[membership]") {
  Fixture f;
  f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  const JoinAnswer third = f.Join(Fixture::Request("mnist", 2, 12, Spec(2, 2)));
  CHECK(third.answer.code == Code::kFull);
  CHECK(Contains(third.answer.text, "all its 2 members (nodes 0, 1)"));
}

TEST_CASE("SchedulerCore: a job that does not start in time fails and says what was missing",
          "[membership]") {
  Fixture f;
  JobSpec spec = Spec(3, 3);
  spec.join_timeout_ns = 60 * kSecond;
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Pass(59 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kForming);
  f.Pass(2 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text, "waits for 2 more members of 3"));
}

TEST_CASE("SchedulerCore: jobs that run at once do not mix", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId first = f.Enter("first", 0, 10, Spec(1, 1));
  const JobId second = f.Enter("second", 0, 20, Spec(1, 1));
  CHECK(first != second);
  f.Break(Id(0, 10));
  CHECK(f.StateOf(first) == JobState::kFailed);
  CHECK(f.StateOf(second) == JobState::kRunning);
  CHECK(f.Told<JobFailed>(Id(0, 20)).empty());
}

TEST_CASE("SchedulerCore: a member that comes too late does not begin another job",
          "[membership]") {
  Fixture f;
  JoinRequest late = f.Request("job", 1, 11, Spec(1, 2));
  late.not_after_finish = true;
  SECTION("It is refused if the job has finished") {
    f.Leave(f.Enter("job", 0, 10, Spec(1, 2)), Id(0, 10));
    const JoinAnswer refused = f.Join(late);
    CHECK(refused.answer.code == Code::kRefused);
    CHECK(refused.answer.text == "job 'job' has finished before node 1 could enter");
    CHECK(f.core->jobs().size() == 1);
    late.not_after_finish = false;
    CHECK(f.Join(late).answer.ok());
  }
  SECTION("It enters if the job is open, also after another one") {
    f.Leave(f.Enter("job", 0, 10, Spec(1, 2)), Id(0, 10));
    const JobId next = f.Enter("job", 0, 12, Spec(1, 2));
    CHECK(f.Join(late).job == next);
  }
  SECTION("It begins a job if there was none, or if the last one has failed") {
    const JoinAnswer joined = f.Join(late);
    REQUIRE(joined.answer.ok());
    REQUIRE(f.Attach(joined.job, Id(1, 11)).ok());
    f.Break(Id(1, 11));
    CHECK(f.StateOf(joined.job) == JobState::kFailed);
    JoinRequest again = f.Request("job", 1, 13, Spec(1, 2));
    again.not_after_finish = true;
    CHECK(f.Join(again).answer.ok());
  }
}

TEST_CASE("SchedulerCore: jobs that are over are shown for a while, then forgotten",
          "[membership]") {
  Fixture f(Config{.history_jobs_max = 2});
  std::vector<JobId> jobs;
  for (uint64_t i = 0; i < 3; ++i) {
    jobs.push_back(f.Enter("job", 0, 10 + i, Spec(1, 1)));
    f.Leave(jobs.back(), Id(0, 10 + i));
    f.Pass(kSecond);
  }
  CHECK_FALSE(f.core->jobs().contains(jobs[0]));
  CHECK(f.core->jobs().contains(jobs[1]));
  CHECK(f.stored.jobs.size() == 2);
  f.Pass(601 * kSecond);
  CHECK(f.core->jobs().empty());
  CHECK(f.stored.jobs.empty());
  CHECK(f.stored.job_next == JobId{4});
  CHECK(f.Leave(jobs[0], Id(0, 10)).code == Code::kUnknown);
}

TEST_CASE("SchedulerCore: a request past a limit is refused with the figures", "[membership]") {
  Fixture f(Config{.jobs_max = 1, .aggregators_max = 1});
  f.Enter("first", 0, 10, Spec(1, 1));
  CHECK(f.Join(Fixture::Request("second", 0, 11, Spec(1, 1))).answer.code == Code::kFull);
  f.AddAggregator("a0", 100);
  CHECK(f.Register(Fixture::Named("a1", 101)).code == Code::kFull);
}

}  // namespace
}  // namespace talweg::membership
