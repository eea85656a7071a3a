// SPDX-License-Identifier: Apache-2.0
// Rounds that wait for ranks that are alive.
#include <algorithm>
#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"
#include "libs/pipeline/names.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::Fixture;
using testing::Key;
using testing::MakeView;
using testing::Spec;

constexpr int64_t kSecond = 1'000'000'000;

// An agent that ends its job when a round waits for five seconds.
struct Impatient : Fixture {
  explicit Impatient(uint32_t rank_count, int64_t stall_ns = 5 * kSecond)
      : Fixture(AgentCoreConfig{.self = {NodeRank{0}, Incarnation{100}},
                                .job_name = "job",
                                .node_name = "node",
                                .rank_count = rank_count,
                                .stall_ns = stall_ns}) {}

  // Ticks whenever one is due.
  void Pass(int64_t seconds) {
    const int64_t end_ns = now_ns + seconds * kSecond;
    while (member.NextTickNs() <= end_ns) {
      now_ns = std::max(now_ns, member.NextTickNs());
      Tick();
    }
    now_ns = end_ns;
  }
  void Waiting(uint64_t round, const std::vector<uint32_t>& nodes) {
    From<wire::Waiting>(0, wire::FrameType::kWaiting,
                        {{.key = Key("w"),
                          .round = Round{round},
                          .waited_ns = 5 * kSecond,
                          .missing_nodes = nodes}});
  }
  const std::string& failure() const { return member.views().failed_text(); }
};

TEST_CASE("Stalls: a round that waits for a rank of this node ends the job", "[pipeline]") {
  Impatient f(3);
  f.Start(MakeView(1, {3}, 0));
  f.Open(Spec("w", 10));
  f.Push(1, 0, 1);
  f.Pass(4);
  CHECK(f.failure() == "");
  f.Pass(1);
  CHECK_THAT(f.failure(), Contains("round 1 of tensor 'w' has waited for rank 0 (local "
                                   "rank 0 of node 0"));
  CHECK_THAT(f.failure(), Contains("rank 2 (local rank 2 of node 0"));
  CHECK_THAT(f.failure(), Contains(" for 5000 ms"));
  CHECK(f.Of<ReportLost>(f.all).size() == 1);
}

TEST_CASE("Stalls: a round that waits for ranks of other nodes ends the job", "[pipeline]") {
  Impatient f(1);
  f.Start(MakeView(1, {1, 2, 1}, 1));
  f.Open(Spec("w", 10));
  f.Push(0, 0, 1);
  f.Flush();
  SECTION("The owner names those ranks") {
    CHECK(f.member.WhomItWaitsFor(TensorIndex{0}, Round{1}) == "");
    f.Waiting(1, {1, 2});
    CHECK(f.member.WhomItWaitsFor(TensorIndex{0}, Round{1}) ==
          "ranks 1, 2 of node 1, rank 3 of node 2");
    CHECK(f.member.WhomItWaitsFor(TensorIndex{0}, Round{2}) == "");
    CHECK(f.member.WhomItWaitsFor(TensorIndex{1}, Round{1}) == "");
    f.Pass(5);
    CHECK_THAT(f.failure(),
               Contains("tensor 'w' has waited for ranks 1, 2 of node 1, rank 3 of node 2"));
  }
  SECTION("A newer view forgets those that were named in the older one") {
    f.Waiting(1, {1, 2});
    f.OnView(MakeView(2, {1, 2}, 1));
    f.AnswerAll(8 << 20);
    CHECK(f.member.WhomItWaitsFor(TensorIndex{0}, Round{1}) == "");
  }
  SECTION("Bytes are on their way and nobody is missing: the job goes on") {
    f.Pass(60);
    CHECK(f.failure() == "");
    f.Waiting(1, {2});
    f.Pass(1);
    CHECK_THAT(f.failure(), Contains("for rank 3 of node 2"));
  }
}

TEST_CASE("Stalls: a round that has gone on without a node waits from the node's late push on",
          "[pipeline]") {
  Impatient f(1);
  f.Start(MakeView(1, {1, 2, 1}, 1));
  TensorSpec spec = Spec("w", 10);
  spec.collective.patience_ms = 20;
  f.Open(spec);
  f.Open(Spec("x", 10));
  f.Push(0, 1, 1);
  f.Flush();
  f.Pass(4);
  f.From<wire::Waiting>(
      0, wire::FrameType::kWaiting,
      {{.key = Key("w"), .round = Round{1}, .missing_nodes = {0}, .absent_ns = {0}}});
  f.Pass(1);
  f.Push(0, 0, 1);
  f.Waiting(1, {2});
  f.Pass(4);
  CHECK(f.failure() == "");
  f.Pass(1);
  CHECK_THAT(f.failure(), Contains("tensor 'w' has waited for rank 3 of node 2 for 5000 ms"));
}

TEST_CASE("Stalls: a round that was given up is not said to wait for who has pushed it",
          "[pipeline]") {
  Impatient f(1);
  f.Start(MakeView(1, {1, 1, 1}, 1));
  f.Open(Spec("w", 10, DType::kF32, Op::kCopy, 2));
  f.Push(0, 0, 1);
  f.Flush();
  f.OnView(MakeView(2, {1, 1}, 1));  // Without the root.
  f.AgreeTo(f.AnswerAll());
  f.Decide("w", wire::Verdict::kAbort, 1);
  f.Push(0, 0, 2);
  REQUIRE(f.member.FindTensor(Key("w"))->failed_status == Status::kAborted);
  CHECK(f.member.WhomItWaitsFor(TensorIndex{0}, Round{2}) == "");
}

TEST_CASE("Stalls: a round that nobody waits for may stay open", "[pipeline]") {
  Impatient f(2);
  f.Start(MakeView(1, {2}, 0));
  f.Open(Spec("w", 10));
  f.Push(0, 0, 1, kNobodyWaits);
  f.Pass(60);
  CHECK(f.failure() == "");
  CHECK(AwaitedRounds(f.member.tensors()) == "");
  f.Open(Spec("x", 10));
  f.Push(0, 1, 1);
  CHECK(AwaitedRounds(f.member.tensors()) == "round 1 of tensor 'x'");
  f.Pass(5);
  CHECK_THAT(f.failure(), Contains("tensor 'x'"));
}

TEST_CASE("Stalls: rounds that end in time, and agents without a limit, end no job", "[pipeline]") {
  SECTION("Each round has the whole time") {
    Impatient f(2);
    f.Start(MakeView(1, {2}, 0));
    f.Open(Spec("w", 10));
    for (uint64_t round = 1; round < 5; ++round) {
      f.Push(0, 0, round);
      f.Pass(4);
      f.Push(1, 0, round);
      for (const ReduceSlice& slice : f.Of<ReduceSlice>(f.Flush())) f.Reduced(slice.ticket);
    }
    CHECK(f.failure() == "");
  }
  SECTION("There is no limit") {
    Impatient f(2, 0);
    f.Start(MakeView(1, {2}, 0));
    f.Open(Spec("w", 10));
    f.Push(0, 0, 1);
    f.Pass(1'000'000);
    CHECK(f.failure() == "");
  }
}

}  // namespace
}  // namespace talweg::pipeline
