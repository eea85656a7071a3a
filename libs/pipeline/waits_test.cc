// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/waits.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::CoreParts;
using testing::MakeView;
using testing::Spec;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLeaseNs = 2 * kSecond;
constexpr AggregatorIndex kOwner{0};

// Gives up on a peer that is silent for 5 s.
struct Impatient : CoreParts {
  explicit Impatient(const view::View& view) : CoreParts(view) {
    config.unreachable_ns = 5 * kSecond;
    MakeOwnersReady();
    views.Activate();
  }
};

struct Waiting : Impatient {
  explicit Waiting(const view::View& view = MakeView(1, {1, 1, 1}, 1)) : Impatient(view) {}

  // A tensor whose open round this node has contributed to.
  AgentTensor& Pushed(const TensorSpec& spec = Spec("w", 8)) {
    AgentTensor& tensor = Open(spec);
    PushAll(tensor);
    return tensor;
  }
  // The owner has waited for `nodes` for a second.
  static wire::Waiting Missing(const std::vector<uint32_t>& nodes) {
    return {.round = Round{1}, .waited_ns = kSecond, .missing_nodes = nodes};
  }
  static wire::Waiting Absent(uint32_t node, int64_t absent_ns) {
    wire::Waiting entry = Missing({node});
    entry.absent_ns = {static_cast<uint64_t>(absent_ns)};
    return entry;
  }
  void Say(AgentTensor& tensor, const wire::Waiting& entry) {
    waits.OnTensorWaiting(tensor, kOwner, entry, now_ns, out);
  }
  void SayOfEpoch(const wire::Waiting& entry) { waits.OnEpochWaiting(kOwner, entry, now_ns, out); }
  // Time passes, and the process runs.
  void Pass(int64_t seconds) {
    for (int64_t i = 0; i < seconds; ++i) {
      now_ns += kSecond;
      waits.CheckSilence(now_ns, out);
    }
  }
  void SilenceFor(int64_t seconds) {
    waits.scheduler().OnSilent(now_ns);
    Pass(seconds);
  }
  // The scheduler comes back for a second, and falls silent again for another.
  void Relapse() {
    SilenceFor(3);
    waits.scheduler().OnAnswers(kLeaseNs, now_ns);
    Pass(1);
    SilenceFor(1);
  }
  std::vector<LogWaiting> notices() const { return Of<LogWaiting>(); }
  const std::string& failure() const { return views.failed_text(); }

  int64_t now_ns = 100 * kSecond;
  Waits waits{&config, &views, &tensors, &links, &quiesce, &failures, &timer};
};

TEST_CASE("Waits: a notice is passed on when it names others, or after a while", "[pipeline]") {
  Waiting w;
  AgentTensor& tensor = w.Pushed();
  w.Say(tensor, Waiting::Missing({1, 2}));
  REQUIRE(w.notices().size() == 1);
  CHECK(w.notices()[0].what == LogWaiting::For::kNodes);
  CHECK(w.notices()[0].tensor == tensor.index);
  CHECK(w.notices()[0].missing == std::vector<uint32_t>{1, 2});
  CHECK(tensor.MissingNodes() == std::vector<uint32_t>{1, 2});
  w.Say(tensor, Waiting::Missing({1, 2}));
  w.now_ns += kSecond / 2 - 1;
  w.Say(tensor, Waiting::Missing({1, 2}));
  CHECK(w.notices().size() == 1);
  SECTION("others") { w.Say(tensor, Waiting::Missing({2})); }
  SECTION("half of the time again that it has waited") {
    w.now_ns += 1;
    w.Say(tensor, Waiting::Missing({1, 2}));
  }
  SECTION("another round") {
    wire::Waiting next = Waiting::Missing({1, 2});
    next.round = Round{2};
    w.Say(tensor, next);
  }
  CHECK(w.notices().size() == 2);
}

TEST_CASE("Waits: what a notice says of this node is not passed on", "[pipeline]") {
  Waiting w;
  CHECK(w.waits.NamesThisNode(Waiting::Missing({0, 2})));
  CHECK_FALSE(w.waits.NamesThisNode(Waiting::Missing({1, 2})));
  w.Say(w.Pushed(), Waiting::Missing({0, 2}));
  CHECK(w.notices().empty());
}

TEST_CASE("Waits: a round that needs a member which has left fails, if the owner knew of that",
          "[pipeline]") {
  Waiting w;
  AgentTensor& tensor = w.Pushed();
  w.waits.OnMemberLeft(NodeRank{2}, "it was done");
  wire::Waiting entry = Waiting::Missing({1, 2});
  entry.absent_ns = {0, 9 * kSecond};
  bool fails = true;
  SECTION("the member has said goodbye to it") { entry.left_nodes = {2}; }
  SECTION("it has not heard of the member for ten seconds") { entry.absent_ns[1] = 10 * kSecond; }
  SECTION("it may have sent this before the member gave its part and left") { fails = false; }
  SECTION("another member has said goodbye") {
    entry.left_nodes = {1};
    fails = false;
  }
  SECTION("the round is over here") {
    entry.left_nodes = {2};
    entry.round = Round{7};
    fails = false;
  }
  SECTION("the member is in no view any more") {
    entry.left_nodes = {2};
    w.waits.OnView(MakeView(2, {1, 1}, 1));
    fails = false;
  }
  w.Say(tensor, entry);
  CHECK(w.views.has_failed() == fails);
  if (fails) {
    CHECK(w.failure() ==
          "node 2 has left job 'job' (it was done), but round 1 of tensor 'w' needs it");
  }
}

TEST_CASE("Waits: a side tensor waits for the view without the member that has left",
          "[pipeline]") {
  Waiting w;
  TensorSpec spec = Spec("w", 8);
  spec.collective.side = true;
  spec.ranks = {Rank{0}, Rank{2}};
  AgentTensor& tensor = w.Pushed(spec);
  w.waits.OnMemberLeft(NodeRank{2}, "it was done");
  wire::Waiting entry = Waiting::Missing({2});
  entry.left_nodes = {2};
  w.Say(tensor, entry);
  CHECK(tensor.failed_status == Status::kOk);
  CHECK_FALSE(w.views.has_failed());
}

TEST_CASE("Waits: a member that has no connection is given up if nobody can judge", "[pipeline]") {
  Waiting w;
  AgentTensor& tensor = w.Pushed();
  bool fails = false;
  SECTION("The scheduler is silent as long") {
    w.SilenceFor(5);
    w.Say(tensor, Waiting::Absent(1, 5 * kSecond));
    fails = true;
  }
  SECTION("The scheduler answers") { w.Say(tensor, Waiting::Absent(1, 60 * kSecond)); }
  SECTION("The scheduler has been silent for a shorter time") {
    w.SilenceFor(4);
    w.Say(tensor, Waiting::Absent(1, 60 * kSecond));
  }
  SECTION("The member has been away for a shorter time") {
    w.SilenceFor(60);
    w.Say(tensor, Waiting::Absent(1, 5 * kSecond - 1));
  }
  SECTION("The member is connected") {
    w.SilenceFor(60);
    w.Say(tensor, Waiting::Absent(1, 0));
  }
  SECTION("The round is another") {
    w.SilenceFor(60);
    wire::Waiting other = Waiting::Absent(1, 60 * kSecond);
    other.round = Round{2};
    w.Say(tensor, other);
  }
  SECTION("No rank here waits") {
    w.SilenceFor(60);
    w.Say(w.Open(Spec("x", 8)), Waiting::Absent(1, 60 * kSecond));
  }
  SECTION("A newer view is fenced") {
    w.SilenceFor(60);
    w.views.Enter(MakeView(2, {1, 1, 1}, 1));
    w.Say(tensor, Waiting::Absent(1, 60 * kSecond));
  }
  CHECK(w.views.has_failed() == fails);
  if (fails) {
    CHECK(w.failure() ==
          "round 1 of tensor 'w' needs node 1, which has had no connection to aggregator "
          "'aggregator-0' for 5000 ms, and the scheduler does not say what became of it");
  } else {
    CHECK(w.notices().size() == 1);
  }
}

TEST_CASE("Waits: a scheduler that comes and goes is named so", "[pipeline]") {
  Waiting w;
  AgentTensor& tensor = w.Pushed();
  w.Relapse();
  w.Say(tensor, Waiting::Absent(1, 5 * kSecond));
  CHECK_THAT(w.failure(), Contains("and the scheduler comes and goes, and does not say"));
}

TEST_CASE("Waits: a member is waited for once the scheduler can decide, also before the next tick",
          "[pipeline]") {
  Waiting w;
  AgentTensor& tensor = w.Pushed();
  w.Relapse();
  w.waits.scheduler().OnAnswers(kLeaseNs, w.now_ns);
  w.now_ns += 2 * kLeaseNs;
  w.Say(tensor, Waiting::Absent(1, 5 * kSecond));
  CHECK_FALSE(w.views.has_failed());
}

TEST_CASE("Waits: only what needs the scheduler ends with its silence", "[pipeline]") {
  Waiting w;
  std::string needed;
  SECTION("running steps do not") {}
  SECTION("a quiesce does") {
    w.quiesce.Ask(7, 5, w.out);
    w.quiesce.OnRankAtBoundary(LocalRank{0}, 5, w.out);
    needed = "a member is about to join job 'job'";
  }
  w.SilenceFor(4);
  CHECK(w.failure() == "");
  w.Pass(1);
  CHECK(w.failure() == (needed.empty() ? "" : "node 0 cannot go on: " + needed));
}

TEST_CASE("Waits: a standby whose ranks are ready needs the scheduler", "[pipeline]") {
  view::View view = MakeView(1, {1, 1}, 1);
  view.members[0].standby = true;
  Waiting w(view);
  const bool is_ready = GENERATE(false, true);
  w.waits.OnRanksReady(is_ready);
  w.SilenceFor(5);
  CHECK(w.failure() ==
        (is_ready ? "node 0 cannot go on: this standby is about to join the steps of job 'job'"
                  : ""));
}

TEST_CASE("Waits: a job that has not begun needs the scheduler", "[pipeline]") {
  Waiting w;
  ViewState forming(w.config.self, 1);
  Failures failures({.views = &forming,
                     .tensors = &w.tensors,
                     .links = &w.links,
                     .quiesce = &w.quiesce,
                     .queue = &w.queue,
                     .reductions = &w.reductions,
                     .timer = &w.timer});
  Waits waits(&w.config, &forming, &w.tensors, &w.links, &w.quiesce, &failures, &w.timer);
  waits.scheduler().OnSilent(w.now_ns);
  for (int i = 0; i < 5; ++i) waits.CheckSilence(w.now_ns += kSecond, w.out);
  CHECK(forming.failed_text() == "node 0 cannot go on: job 'job' has not begun");
}

TEST_CASE("Waits: an aggregator that does not answer is given up, and named", "[pipeline]") {
  Waiting w;
  w.links.OnDisconnected(w.ConnectionTo(0), "reset by peer", w.now_ns, w.out);
  w.Pass(4);
  CHECK(w.failure() == "");
  w.Pass(1);
  CHECK(w.failure() ==
        "node 0 of job 'job' has not reached aggregator 'aggregator-0' for 5000 ms (reset by "
        "peer)");
}

TEST_CASE("Waits: an epoch's beginning that needs a member which has left ends the job",
          "[pipeline]") {
  Waiting w;
  w.waits.OnMemberLeft(NodeRank{2}, "it was done");
  wire::Waiting entry = Waiting::Missing({2});
  entry.left_nodes = {2};
  SECTION("a newer view is fenced: that epoch is over") {
    w.views.Enter(MakeView(2, {1, 1}, 1));
    w.SayOfEpoch(entry);
    CHECK_FALSE(w.views.has_failed());
    CHECK(w.notices().empty());
  }
  SECTION("it is the present one") {
    w.SayOfEpoch(entry);
    CHECK_THAT(w.failure(), Contains("but the job's beginning needs it"));
  }
}

TEST_CASE("Waits: an epoch is given up only by those whom it keeps waiting", "[pipeline]") {
  Waiting w;
  AgentTensor& tensor = w.Open(Spec("w", 8));
  const bool is_needed = GENERATE(false, true);
  if (is_needed) w.PushAll(tensor);
  w.SilenceFor(5);
  SECTION("a member is absent") {
    w.SayOfEpoch(Waiting::Absent(1, 5 * kSecond));
    CHECK(w.failure() ==
          (is_needed ? "epoch 1 of job 'job' needs node 1, which has had no connection to "
                       "aggregator 'aggregator-0' for 5000 ms, and the scheduler does not say what "
                       "became of it"
                     : ""));
  }
  SECTION("this node has not heard of the aggregator's newer view") {
    wire::Waiting entry = Waiting::Missing({0});
    entry.waited_ns = 5 * kSecond - 1;
    w.SayOfEpoch(entry);
    CHECK(w.failure() == "");
    entry.waited_ns = 5 * kSecond;
    w.SayOfEpoch(entry);
    CHECK(w.failure() ==
          (is_needed ? "node 0 waits in epoch 1 of job 'job' for aggregator 'aggregator-0', which "
                       "has had a newer view for 5000 ms that the scheduler has not told this node "
                       "of"
                     : ""));
  }
}

TEST_CASE(
    "Waits: aggregators that have not answered, or not decided, are named at growing "
    "intervals",
    "[pipeline]") {
  CoreParts parts(MakeView(1, {1, 1}, 2));
  Waits waits(&parts.config, &parts.views, &parts.tensors, &parts.links, &parts.quiesce,
              &parts.failures, &parts.timer);
  AgentTensor& tensor = parts.Open(Spec("w", 8));
  std::vector<uint32_t> expected;
  SECTION("fencing: those that are not ready") {
    parts.MakeOwnersReady();
    parts.views.Enter(MakeView(2, {1, 1}, 2));
    parts.links.OnView(0, parts.out);
    parts.links.OnFenceAck(parts.ConnectionTo(1), Epoch{2});
    expected = {0};
  }
  SECTION("reporting: those that have yet to decide") {
    parts.MakeOwnersReady();
    tensor.AwaitDecision({});
    expected = {tensor.primary.value()};
  }
  parts.timer.Clear();
  waits.OnPhase(10 * kSecond);
  std::vector<int64_t> at;
  for (int i = 0; i < 3; ++i) {
    const int64_t now_ns = parts.timer.next_ns();
    parts.timer.Clear();
    parts.out.clear();
    waits.TellAggregators(now_ns - 1, parts.out);
    CHECK(parts.out.empty());
    parts.timer.Clear();
    waits.TellAggregators(now_ns, parts.out);
    REQUIRE(parts.Of<LogWaiting>().size() == 1);
    CHECK(parts.Of<LogWaiting>()[0].what == LogWaiting::For::kAggregators);
    CHECK(parts.Of<LogWaiting>()[0].missing == expected);
    at.push_back(now_ns / kSecond);
  }
  CHECK(at == std::vector<int64_t>{11, 12, 14});
  // Once all is decided nobody is named.
  parts.out.clear();
  if (parts.views.phase() == Phase::kFencing) parts.views.Freeze();
  parts.views.Activate();
  waits.TellAggregators(100 * kSecond, parts.out);
  CHECK(parts.out.empty());
}

}  // namespace
}  // namespace talweg::pipeline
