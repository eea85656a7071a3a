// SPDX-License-Identifier: Apache-2.0
// Whom a member waits for, and for how long: aggregators that refuse or do not answer, and quiesces
// (docs/protocol.md, sections 6 and 8).
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::Key;
using testing::MakeView;
using testing::Spec;

constexpr int64_t kSecond = 1'000'000'000;

// Returns the configuration of node 0, which gives up on a peer that is silent for 30 s.
AgentCoreConfig Impatient() {
  return {.self = {NodeRank{0}, Incarnation{100}},
          .job_name = "job",
          .rank_count = 1,
          .unreachable_ns = 30 * kSecond};
}

TEST_CASE("AgentCore: a view that cannot be used ends the job with the reason", "[pipeline]") {
  const auto text_of = [](view::View view) {
    Fixture f;
    f.Start(MakeView(1, {1, 1}, 1));
    f.OnView(view);
    return f.member.views().failed_text();
  };
  CHECK(text_of(MakeView(2, {1, 1}, 0)).find("no aggregator") != std::string::npos);
  CHECK(text_of(MakeView(2, {3, 1}, 1)).find("3 ranks, but it has 1") != std::string::npos);
  view::View other_job = MakeView(2, {1, 1}, 1);
  other_job.job = JobId{8};
  CHECK(text_of(other_job).find("job 8") != std::string::npos);
  view::View without = MakeView(2, {1, 1}, 1);
  without.members.erase(without.members.begin());
  CHECK(text_of(without).find("not in the view of epoch 2") != std::string::npos);
  view::View unordered = MakeView(2, {1, 1}, 1);
  std::swap(unordered.members[0], unordered.members[1]);
  CHECK_FALSE(text_of(unordered).empty());
}

TEST_CASE("AgentCore: a greeting that is refused is tried again, or ends the job", "[pipeline]") {
  const auto refuse = [](wire::WelcomeStatus status) {
    Fixture f;
    f.OnView(MakeView(1, {1, 1}, 1));
    f.Connected(0);
    f.From<wire::Welcome>(0, wire::FrameType::kWelcome, {{.status = status, .text = "why"}});
    return std::pair(f.member.views().phase(),
                     f.member.owners().empty() ? OwnerState::kReady : f.OwnerAt(0).state);
  };
  CHECK(refuse(wire::WelcomeStatus::kUnknownJob) ==
        std::pair(Phase::kFencing, OwnerState::kBackoff));
  CHECK(refuse(wire::WelcomeStatus::kNotInView) ==
        std::pair(Phase::kFencing, OwnerState::kBackoff));
  CHECK(refuse(wire::WelcomeStatus::kViewDiffers).first == Phase::kFailed);
  CHECK(refuse(wire::WelcomeStatus::kVersion).first == Phase::kFailed);
  // The aggregator that answers is another incarnation than the view names.
  CHECK(refuse(wire::WelcomeStatus::kOk) == std::pair(Phase::kFencing, OwnerState::kBackoff));
}

TEST_CASE("AgentCore: aggregators that do not answer are named at growing intervals",
          "[pipeline]") {
  Fixture f;
  f.OnView(MakeView(1, {1, 1}, 2));
  f.Connected(1);
  f.Welcome(1);
  int notices = 0;
  for (int i = 0; i < 5; ++i) {
    f.now_ns = f.member.NextTickNs();
    for (const LogWaiting& notice : f.Of<LogWaiting>(f.Tick())) {
      CHECK(notice.what == LogWaiting::For::kAggregators);
      CHECK(notice.missing == std::vector<uint32_t>{0});
      ++notices;
    }
  }
  CHECK(notices == 5);
}

TEST_CASE("AgentCore: a member does not wait without end when nobody can answer for the wait",
          "[pipeline]") {
  const auto next_tick = [](Fixture& f) {
    f.now_ns = f.member.NextTickNs();
    return f.Tick();
  };
  Fixture f(Impatient());
  f.OnView(MakeView(1, {1, 1}, 2));
  SECTION("An aggregator never answered") {
    f.Connected(1);
    f.Welcome(1);
  }
  SECTION("An aggregator answered last a long time ago") {
    f.AnswerAll();
    f.now_ns += 1000 * kSecond;
    f.Tick();
    CHECK(f.member.views().phase() != Phase::kFailed);
  }
  const int64_t since_ns = f.now_ns;
  f.Broken(0);
  while (f.member.views().phase() != Phase::kFailed) {
    const Effects effects = next_tick(f);
    if (f.member.views().phase() != Phase::kFailed &&
        f.OwnerAt(0).state == OwnerState::kConnecting) {
      f.Broken(0);
    }
    // It fails in time, and does not wait for ever.
    REQUIRE(f.now_ns <= since_ns + 30 * kSecond);
  }
  CHECK(f.now_ns == since_ns + 30 * kSecond);
  CHECK(f.member.views().failed_text().find(
            "aggregator 'aggregator-0' for 30000 ms (reset by peer)") != std::string::npos);
  CHECK(f.Of<ReportLost>(f.all).size() == 1);
}

TEST_CASE("AgentCore: an aggregator that comes back in time causes no failure", "[pipeline]") {
  Fixture f(Impatient());
  f.OnView(MakeView(1, {1, 1}, 1));
  f.AnswerAll();
  for (int i = 0; i < 3; ++i) {
    f.Broken(0);
    f.now_ns += 29 * kSecond;
    f.Tick();
    f.AnswerAll();
    REQUIRE(f.OwnerAt(0).state == OwnerState::kReady);
  }
  f.Broken(0);
  f.now_ns += 29 * kSecond;
  f.OnView(MakeView(2, {1, 1}, 1));  // The scheduler has spoken, so the time begins afresh.
  f.now_ns += 29 * kSecond;
  f.Tick();
  CHECK(f.member.views().phase() == Phase::kFencing);
}

TEST_CASE("AgentCore: an aggregator that refuses for too long ends the job here, in its words",
          "[pipeline]") {
  Fixture f(Impatient());
  f.OnView(MakeView(1, {1, 1}, 1));
  while (f.member.views().phase() != Phase::kFailed) {
    if (f.OwnerAt(0).state == OwnerState::kConnecting) {
      f.Connected(0);
      f.From<wire::Welcome>(0, wire::FrameType::kWelcome,
                            {{.status = wire::WelcomeStatus::kUnknownJob, .text = "it is over"}});
    }
    f.now_ns = f.member.NextTickNs();
    f.Tick();
    REQUIRE(f.now_ns <= 31 * kSecond);
  }
  CHECK(f.member.views().failed_text().find("30000 ms (it refused this agent: it is over)") !=
        std::string::npos);
}

// One of three nodes.
struct Patient : Fixture {
  Patient() : Fixture(Impatient()) {}
  // The rank waits at the end of a step for a view that admits a node.
  void Stop() {
    Do([&](Effects& out) {
      member.OnQuiesce(1, 0, now_ns, out);
      member.OnRanksStop({0}, out);
      member.OnRankAtBoundary(LocalRank{0}, 1, now_ns, out);
    });
  }
  void Silent() { member.OnSchedulerSilent(now_ns); }
  void Answers() { member.OnSchedulerAnswers(/*lease_ns=*/5 * kSecond, now_ns); }
  // Ticks whenever a tick is due.
  void Pass(int64_t ns) {
    const int64_t end_ns = now_ns + ns;
    while (member.NextTickNs() <= end_ns) {
      now_ns = std::max(now_ns, member.NextTickNs());
      Tick();
    }
    now_ns = end_ns;
  }
  Effects Waiting(const std::string& tensor, uint64_t round, std::vector<uint32_t> nodes,
                  std::vector<uint64_t> absent_s) {
    for (uint64_t& absent : absent_s) absent *= kSecond;
    return From<wire::Waiting>(0, wire::FrameType::kWaiting,
                               {{.key = tensor.empty() ? TensorKey{0} : Key(tensor),
                                 .round = Round{round},
                                 .waited_ns = 36 * kSecond,
                                 .missing_nodes = std::move(nodes),
                                 .absent_ns = std::move(absent_s)}});
  }
  // Makes a round wait for the other nodes.
  void Contribute() {
    Start(MakeView(1, {1, 1, 1}, 1));
    Open(Spec("w", 10));
    Push(0, 0, 1);
    Flush();
  }
  bool failed() const { return member.views().phase() == Phase::kFailed; }
};

TEST_CASE("AgentCore: a node that is absent as long as the scheduler is not waited for any more",
          "[pipeline]") {
  Patient f;
  f.Contribute();
  f.Silent();
  f.Pass(29 * kSecond);
  f.Waiting("w", 1, {1, 2}, {0, 60});
  CHECK_FALSE(f.failed());  // The scheduler has been silent for a shorter time.
  f.Pass(kSecond);
  f.Waiting("w", 1, {1, 2}, {0, 29});
  CHECK_FALSE(f.failed());  // Node 2 has been away for a shorter time.
  const Effects out = f.Waiting("w", 1, {1, 2}, {0, 30});
  REQUIRE(f.failed());
  CHECK(f.Of<ReportLost>(out).size() == 1);
  CHECK(f.member.views().failed_text().find(
            "round 1 of tensor 'w' needs node 2, which has had no "
            "connection to aggregator 'aggregator-0' for 30000 ms") != std::string::npos);
}

TEST_CASE(
    "AgentCore: a node is not given up if it lives, is not needed, or the scheduler can judge",
    "[pipeline]") {
  Patient f;
  f.Contribute();
  SECTION("The node is connected and late") {
    f.Silent();
    f.Pass(1000 * kSecond);
    f.Waiting("w", 1, {1, 2}, {0, 0});
  }
  SECTION("The scheduler answers") {
    f.Waiting("w", 1, {2}, {1000});
    f.Silent();
    f.Pass(29 * kSecond);
    f.Answers();
    f.Pass(10 * kSecond);
    f.Waiting("w", 1, {2}, {1000});
    f.Silent();  // This silence counts from its own beginning.
    f.Pass(29 * kSecond);
    f.Waiting("w", 1, {2}, {1000});
  }
  SECTION("Nobody here waits for that round") {
    f.Silent();
    f.Pass(40 * kSecond);
    f.Waiting("w", 2, {2}, {40});
  }
  SECTION("This process was stopped meanwhile") {
    f.Silent();
    f.Pass(10 * kSecond);
    f.now_ns += 1000 * kSecond;
    f.Waiting("w", 1, {2}, {40});
    f.Tick();
    f.Waiting("w", 1, {2}, {40});
  }
  SECTION("The aggregator does not report absences") {
    f.Silent();
    f.Pass(40 * kSecond);
    f.Waiting("w", 1, {2}, {});
  }
  SECTION("The member is configured to wait for ever") {
    Fixture g;
    g.Start(MakeView(1, {1, 1, 1}, 1));
    g.member.OnSchedulerSilent(g.now_ns);
    g.now_ns += 1000 * kSecond;
    g.Tick();
    g.From<wire::Waiting>(0, wire::FrameType::kWaiting,
                          {{.missing_nodes = {2}, .absent_ns = {1000 * kSecond}}});
    CHECK(g.member.views().phase() == Phase::kActive);
  }
  CHECK_FALSE(f.failed());
}

TEST_CASE("AgentCore: a scheduler that comes and goes has been silent since it first went",
          "[pipeline]") {
  Patient f;
  f.Contribute();
  f.Silent();
  f.Pass(3 * kSecond);
  SECTION("That holds for the whole limit") {
    for (int relapses = 0; relapses < 2; ++relapses) {
      f.Answers();
      f.Pass(9 * kSecond);
      f.Silent();
      f.Pass(3 * kSecond);
      f.Waiting("w", 1, {2}, {1000});
    }
    CHECK_FALSE(f.failed());
    f.Answers();
    f.Pass(2 * kSecond);
    f.Waiting("w", 1, {2}, {1000});
    CHECK_FALSE(f.failed());  // Only 29 s have passed.
    f.Pass(kSecond);
    f.Waiting("w", 1, {2}, {29});
    CHECK_FALSE(f.failed());
    // The same holds while it answers, as it has done before.
    f.Waiting("w", 1, {2}, {30});
    CHECK(f.member.views().failed_text().find(
              "and the scheduler comes and goes, and does not say") != std::string::npos);
  }
  SECTION("That holds until it has answered for two leases") {
    f.Answers();
    f.Pass(9 * kSecond);
    f.Silent();
    f.Pass(25 * kSecond);
    f.Answers();
    f.Pass(10 * kSecond);
    f.Waiting("w", 1, {2}, {1000});
    CHECK_FALSE(f.failed());
    f.Silent();
    f.Pass(29 * kSecond);
    f.Waiting("w", 1, {2}, {1000});
    CHECK_FALSE(f.failed());
  }
}

TEST_CASE("AgentCore: a scheduler that answers may still give what only it can give",
          "[pipeline]") {
  Patient f;
  SECTION("The member waits for the end of a quiesce") {
    f.Start(MakeView(1, {1, 1}, 1));
    f.Stop();
  }
  SECTION("The member waits for a first view") {}
  f.Silent();
  f.Pass(20 * kSecond);
  f.Answers();
  f.Pass(9 * kSecond);
  f.Silent();
  f.Pass(kSecond / 2);
  f.Answers();
  f.Pass(9 * kSecond);
  CHECK_FALSE(f.failed());  // The scheduler first went 38 s ago, but it answers.
  f.Silent();
  f.Pass(kSecond);
  CHECK(f.member.views().failed_text().ends_with(", and the scheduler comes and goes"));
}

TEST_CASE("AgentCore: a scheduler that has answered for two leases has the whole limit again",
          "[pipeline]") {
  Patient f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Stop();
  for (int silences = 0; silences < 20; ++silences) {
    f.Silent();
    f.Pass(29 * kSecond);
    f.Answers();
    f.Pass(10 * kSecond);
  }
  CHECK_FALSE(f.failed());
  f.Silent();
  f.Pass(30 * kSecond);
  CHECK(f.failed());
}

TEST_CASE("AgentCore: an epoch that needs a dead node is not waited for without end",
          "[pipeline]") {
  Patient f;
  f.Start(MakeView(1, {1, 1, 1}, 1));
  f.Declare(0, Spec("w", 10));
  f.Allocated(0);
  f.Silent();
  const auto notices = f.Of<LogWaiting>(f.Waiting("", 0, {1, 2}, {0, 5}));
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].what == LogWaiting::For::kEpoch);
  CHECK(notices[0].absent_ns == std::vector<uint64_t>{0, 5 * kSecond});
  f.Pass(30 * kSecond);
  SECTION("The text names the dead node") {
    f.Waiting("", 0, {1, 2}, {0, 35});
    CHECK(f.member.views().failed_text().find("epoch 1 of job 'job' needs node 2") !=
          std::string::npos);
  }
  SECTION("The text names a newer view that did not reach this node") {
    f.Waiting("", 0, {0}, {35});
    CHECK(f.member.views().failed_text().find(
              "node 0 waits in epoch 1 of job 'job' for aggregator "
              "'aggregator-0', which has had a newer view for 36000 ms") != std::string::npos);
  }
  SECTION("Steps go on where nothing depends on that aggregator") {
    f.From<wire::Declared>(0, wire::FrameType::kDeclared, {{.key = Key("w"), .slot = {1, 2}}});
    f.Waiting("", 0, {0, 1}, {35, 35});
    f.Waiting("", 0, {1}, {35});
    CHECK(f.member.views().phase() == Phase::kActive);
    return;
  }
  SECTION("A member that has heard of a newer view does not give up") {
    f.OnView(MakeView(2, {1, 1, 1}, 1));
    f.From<wire::Waiting>(0, wire::FrameType::kWaiting,
                          {{.missing_nodes = {0}, .absent_ns = {35 * kSecond}}}, 1);
    CHECK(f.member.views().phase() == Phase::kFencing);
    return;
  }
  CHECK(f.failed());
}

TEST_CASE("AgentCore: a member waits for what only the scheduler can give no longer than the limit",
          "[pipeline]") {
  Patient f;
  std::string text;
  SECTION("The member waits for a first view") { text = "job 'job' has not begun"; }
  SECTION("The member waits for the end of a quiesce") {
    f.Start(MakeView(1, {1, 1}, 1));
    f.Pass(1000 * kSecond);
    f.Stop();
    text = "a member is about to join job 'job'";
  }
  f.Silent();
  f.Pass(29 * kSecond);
  CHECK_FALSE(f.failed());
  f.Pass(kSecond);
  REQUIRE(f.failed());
  CHECK(f.member.views().failed_text() == "node 0 cannot go on: " + text);
}

TEST_CASE("AgentCore: running steps do not need the scheduler", "[pipeline]") {
  Patient f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Silent();
  f.Pass(1000 * kSecond);
  CHECK(f.member.views().phase() == Phase::kActive);
}

TEST_CASE(
    "AgentCore: an owner's repeated notices of who is late are passed on at growing intervals",
    "[pipeline]") {
  Patient f;
  f.Contribute();
  std::vector<int> seconds;
  for (int second = 4; second <= 100; second += 4) {
    f.now_ns = second * kSecond;
    const auto notices = f.Of<LogWaiting>(
        f.From<wire::Waiting>(0, wire::FrameType::kWaiting,
                              {{.key = Key("w"),
                                .round = Round{1},
                                .waited_ns = static_cast<uint64_t>(second) * kSecond,
                                .missing_nodes = {second < 80 ? 1u : 2u}}}));
    if (!notices.empty()) seconds.push_back(second);
  }
  CHECK(seconds == std::vector<int>{4, 8, 12, 20, 32, 48, 72, 80});
}

}  // namespace
}  // namespace talweg::pipeline
