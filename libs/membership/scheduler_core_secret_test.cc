// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/membership/scheduler_core.h"
#include "libs/membership/scheduler_core_fixture.h"

namespace talweg::membership {
namespace {

TEST_CASE("SchedulerCore: a caller without a member's secret does not speak for the member",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 3));
  f.Enter("mnist", 1, 11, Spec(2, 3));
  f.Enter("mnist", 2, 12, Spec(2, 3));
  const view::MemberIdentity member = Id(0, 10);
  const QuiesceId quiesce = f.core->jobs().at(job).quiesce.value().id;
  const Snapshot before = f.stored;
  f.Pass(4 * kSecond, job, {Id(1, 11), Id(2, 12)});
  const int64_t lease_end_ns = f.core->jobs().at(job).members.at(NodeRank{0}).lease_end_ns;
  f.shows_secrets = false;
  const std::vector<std::pair<std::string, std::function<Answer()>>> calls = {
      {"renew", [&] { return f.Renew(job, member, Epoch{1}); }},
      {"renew at the end of all epochs", [&] { return f.Renew(job, member, Epoch{1ULL << 62}); }},
      {"leave, finished", [&] { return f.Leave(job, member, LeaveReason::kFinished); }},
      {"leave, stopped", [&] { return f.Leave(job, member, LeaveReason::kStopped); }},
      {"a dead rank", [&] { return f.ReportLost(job, member, LostRank{Rank{0}}, ""); }},
      {"itself", [&] { return f.ReportLost(job, member, LostMember{member}, ""); }},
      {"an aggregator",
       [&] { return f.ReportLost(job, member, LostAggregator{Incarnation{100}}, ""); }},
      {"quiesced", [&] { return f.Quiesced(job, member, quiesce); }},
      {"watch",
       [&] {
         std::vector<Effect> out;
         const Caller caller{.job = job, .id = member, .held = Epoch{1}};
         Answer answer =
             f.core->OnMemberAttached(StreamId{77}, caller, {.attached = true}, f.now_ns, out);
         CHECK(out.empty());
         return answer;
       }},
      {"join again",
       [&] {
         JoinRequest request = Fixture::Request("mnist", 0, 10, Spec(2, 3));
         request.secret = {};
         return f.Join(request).answer;
       }},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    const Answer answer = call();
    CHECK(answer.code == Code::kUnproven);
    CHECK(Contains(answer.text, "the agent of node 0"));
  }
  CHECK(f.stored == before);
  const LiveJob& after = f.core->jobs().at(job);
  CHECK(after.state == JobState::kRunning);
  CHECK(after.members.at(NodeRank{0}).lease_end_ns == lease_end_ns);
  CHECK(after.quiesce.value().waits_for.contains(member));
  CHECK(after.complaints.empty());
  CHECK_FALSE(f.Closed(member).has_value());
  // The member itself continues.
  f.shows_secrets = true;
  CHECK(f.Renew(job, member, Epoch{1}).ok());
  CHECK(f.Join(Fixture::Request("mnist", 0, 10, Spec(2, 3))).answer.ok());
  // Calls after the member's end need its secret too.
  CHECK(f.Leave(job, member, LeaveReason::kFinished).ok());
  CHECK(f.Leave(job, member, LeaveReason::kFinished).ok());
  f.shows_secrets = false;
  CHECK(f.Leave(job, member, LeaveReason::kFinished).code == Code::kUnproven);
}

TEST_CASE(
    "SchedulerCore: a caller without an aggregator's secret does not speak for the aggregator",
    "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  const Snapshot before = f.stored;
  f.shows_secrets = false;
  std::vector<Effect> out;
  CHECK(f.Register(Fixture::Named("a0", 100)).code == Code::kUnproven);
  CHECK(f.Deregister(100, false).answer.code == Code::kUnproven);
  CHECK(f.Deregister(100, true).answer.code == Code::kUnproven);
  CHECK(f.core->OnRenewAggregator({Incarnation{100}}, f.now_ns, out).code == Code::kUnproven);
  const Answer watch = f.core->OnAggregatorAttached(StreamId{77}, {Incarnation{100}},
                                                    {{job, Epoch{1}}}, f.now_ns, out);
  CHECK(watch.code == Code::kUnproven);
  CHECK(Contains(watch.text, "aggregator 'a0'"));
  CHECK(out.empty());
  CHECK(f.stored == before);
  CHECK(f.StateOf(job) == JobState::kRunning);
  CHECK_FALSE(f.AggregatorClosed(100).has_value());
  f.shows_secrets = true;
  CHECK(f.Deregister(100, true).answer.ok());
}

TEST_CASE("SchedulerCore: secrets are still known after a restart", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  f.Start();
  f.shows_secrets = false;
  CHECK(f.Attach(job, Id(0, 10), Epoch{1}).code == Code::kUnproven);
  CHECK(f.AttachAggregator(100).code == Code::kUnproven);
  f.shows_secrets = true;
  CHECK(f.Attach(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.AttachAggregator(100).ok());
}

TEST_CASE(
    "SchedulerCore: an epoch that nobody can have been given is refused, and harms only its caller",
    "[membership]") {
  constexpr int64_t kUnixNs = 1'800'000'000'000'000'000;
  constexpr uint64_t kDayNs = 86'400'000'000'000;
  const LossPolicy policy = GENERATE(LossPolicy::kContinue, LossPolicy::kFailJob);
  Fixture f;
  f.start_unix_ns = kUnixNs;
  f.Start();
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(1, 2, policy);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  const auto refused = [&](const Answer& answer) {
    CHECK(answer.code == Code::kInvalid);
    CHECK(Contains(answer.text, "cannot be right"));
    CHECK(f.StateOf(job) == JobState::kRunning);
    CHECK(f.EpochOf(job) == Epoch{1});
  };
  // This scheduler made all views of a job that began here, and a joiner has none of them.
  refused(f.Renew(job, Id(0, 10), Epoch{2}));
  f.Enter("mnist", 1, 11, spec);
  refused(f.Renew(job, Id(1, 11), Epoch{1}));
  refused(f.AttachAggregator(100, {{job, Epoch{2}}}));
  refused(f.AttachAggregator(100, {{JobId{1ULL << 61}, Epoch{1}}}));
  CHECK(f.Renew(job, Id(0, 10), Epoch{1}).ok());
  // A store may be older than its members, by as much as a clock may be ahead.
  f.Start();
  refused(f.Attach(job, Id(0, 10), Epoch{1ULL << 62}));
  refused(f.AttachAggregator(100, {{job, Epoch{1ULL << 62}}}));
  const uint64_t since = kUnixNs - 1'735'689'600'000'000'000;
  refused(f.Attach(job, Id(0, 10), Epoch{since + kDayNs + 60 * uint64_t{kSecond}}));
  CHECK(f.Attach(job, Id(1, 11)).ok());
  const Epoch ahead{since + kDayNs / 2};
  CHECK(f.Attach(job, Id(0, 10), ahead).ok());
  CHECK(f.EpochOf(job) > ahead);
  // Once told an epoch, the scheduler continues from there. That does not raise the bound.
  CHECK(f.Renew(job, Id(0, 10), f.EpochOf(job)).ok());
  const Epoch given = f.EpochOf(job);
  CHECK(f.Renew(job, Id(0, 10), Epoch{given.value() + kDayNs}).code == Code::kInvalid);
  CHECK(f.EpochOf(job) == given);
}

TEST_CASE("SchedulerCore: a caller of an unknown job changes no number", "[membership]") {
  Fixture f;
  const Snapshot before = f.stored;
  CHECK(f.Renew(JobId{1ULL << 60}, Id(0, 10)).code == Code::kUnknown);
  CHECK(f.stored == before);
}

}  // namespace
}  // namespace talweg::membership
