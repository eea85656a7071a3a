// SPDX-License-Identifier: Apache-2.0
// What the stage sums, and what ranks may ask of it.
#include <linux/mempolicy.h>

#include "services/agent/gpu_stage_fixture.h"

namespace talweg::agent {
namespace {

TEST_CASE("GpuStage: it sums however ranks are spread over GPUs", "[gpu]") {
  const auto gpus =
      GENERATE(std::vector<size_t>{0}, std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1},
               std::vector<size_t>{1, 0, 1}, std::vector<size_t>{0, 1, 2, 3, 2});
  const bool standalone = GENERATE(false, true);
  const bool pinned = GENERATE(false, true);
  const uint64_t elements = GENERATE(1u, 7u, 300'001u);
  Fixture f({.gpus = gpus, .elements = elements, .standalone = standalone, .pinned = pinned});
  for (int i = 0; i < 3; ++i) f.RoundTrip();
  const GpuStageCounters& counters = f.stage->counters();
  const std::set<size_t> different(gpus.begin(), gpus.end());
  CHECK((counters.pieces_by_collective > 0) == (different.size() > 1));
  const bool one_gpu = different.size() == 1;
  CHECK((counters.pieces_by_kernel > 0) == (one_gpu && (standalone || gpus.size() > 1)));
  CHECK((counters.bytes_staged == 0) == (pinned || standalone));
  CHECK(f.notes == std::vector<std::string>{});
  f.NothingLeft();
}

TEST_CASE("GpuStage: GPUs behind one switch make their sum, and the host adds the switches' sums",
          "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{2, 3, 0, 1}, std::vector<size_t>{0, 1, 2, 2},
                             std::vector<size_t>{3, 0, 1, 0});
  const bool standalone = GENERATE(false, true);
  const bool linked = GENERATE(false, true);
  const uint64_t elements = GENERATE(1u, 3u, 300'001u);
  Fixture f(
      {.gpus = gpus,
       .elements = elements,
       .standalone = standalone,
       .machine = {.linked = linked},
       .stage = {.topology = TwoSwitches(), .piece_bytes = kMiB, .piece_bytes_min = 64 * kKiB}});
  for (int i = 0; i < 3; ++i) f.RoundTrip();
  const GpuStageCounters& counters = f.stage->counters();
  CHECK(counters.pieces_by_collective > 0);
  CHECK(counters.pieces_by_host == 0);
  CHECK(counters.pieces_by_groups == (linked ? 0 : counters.pieces_by_collective));
  f.NothingLeft();
}

TEST_CASE("GpuStage: GPUs without a switch between them make one sum", "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{0, 1}, std::vector<size_t>{1, 2});
  Fixture f(
      {.gpus = gpus,
       .stage = {.topology = TwoSwitches(), .piece_bytes = kMiB, .piece_bytes_min = 64 * kKiB}});
  f.RoundTrip();
  CHECK(f.stage->counters().pieces_by_collective > 0);
  CHECK(f.stage->counters().pieces_by_groups == 0);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a rank in host memory broadcasts to one on a GPU", "[gpu]") {
  const bool pinned = GENERATE(false, true);
  Fixture f({.gpus = {0}, .elements = 1000, .pinned = pinned, .op = Op::kCopy});
  f.host_contribution.assign(f.spec.bytes(), std::byte{5});
  f.root = LocalRank{7};
  f.PushAll();
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  CHECK(f.send == f.host_contribution);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a push counts when its event is done, and not before", "[gpu]") {
  Fixture f({.gpus = {0, 0}});
  f.round = f.round.Next();
  f.delivered = false;
  f.Push(0);
  f.stage->Poll(f.clock.NowNs());
  CHECK(f.ready_ranks.empty());
  f.Push(1);
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  f.CheckResult(0);
  f.NothingLeft();
}

TEST_CASE("GpuStage: an agent that sleeps is woken when there is something to do", "[gpu]") {
  const auto gpus =
      GENERATE(std::vector<size_t>{0}, std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1, 0});
  const bool standalone = GENERATE(false, true);
  const bool pinned = GENERATE(false, true);
  // This includes the time of `taken`, which has nothing before it.
  const int64_t record_ns = GENERATE(0, 5'000);
  Fixture f({.gpus = gpus,
             .standalone = standalone,
             .pinned = pinned,
             .machine = {.costs = {.record_ns = record_ns}}});
  const std::set<size_t> different(gpus.begin(), gpus.end());
  for (int i = 0; i < 3; ++i) {
    f.PushAll();
    REQUIRE(f.SleepUntil([&] { return f.delivered; }));
    for (size_t rank = 0; rank < gpus.size(); ++rank) f.CheckResult(rank);
    // Only communicators, and gradients that are not there yet, wake nobody.
    if (different.size() == 1) CHECK(f.timed_sleeps == 0);
  }
  if (different.size() == 1) CHECK(f.polls < 150);
  f.NothingLeft();
}

TEST_CASE("GpuStage: work posted a moment ago is polled, and older work wakes the agent", "[gpu]") {
  Fixture f({.gpus = {0}, .stage = {.watch_own_ns = 10}});
  f.PushAll();
  REQUIRE(f.RunUntil([&] { return f.ready_ranks.size() == 1; }));
  while (f.stage->Poll(f.clock.NowNs()) > 0) {
  }
  CHECK(f.stage->PrepareToSleep() == f.clock.NowNs());
  f.clock.Advance(10);  // This is far from enough for a copy.
  f.stage->Poll(f.clock.NowNs());
  CHECK(f.stage->PrepareToSleep() == std::nullopt);
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  f.NothingLeft();
}

TEST_CASE("GpuStage: a gradient that never comes is asked for less and less often", "[gpu]") {
  Fixture f({.gpus = {0, 0}});
  f.PushAll();
  f.ranks[1].reset();  // The rank is killed: its event is never done.
  const int64_t end_ns = f.clock.NowNs() + 1'000'000'000;
  REQUIRE(f.SleepUntil([&] { return f.delivered || f.clock.NowNs() >= end_ns; }));
  CHECK(f.ready_ranks.size() == 1);
  CHECK(f.polls < 1'100);
  f.ranks.pop_back();
  f.stage->OnRankLeft(LocalRank{1});
  f.open_tickets.clear();
  f.stage->Abandon();
  REQUIRE(f.SleepUntil(
      [&] { return !f.stage->node().gpus().empty() && f.stage->IsGone(LocalRank{1}); }));
  f.NothingLeft();
}

TEST_CASE("GpuStage: staging is made on the NUMA node of its GPU", "[gpu]") {
  const bool known = GENERATE(false, true);
  Fixture f({.gpus = {0}, .stage = {.topology = known ? TwoSwitches() : topology::Topology()}});
  if (f.machine->pinning_policy() < 0) {
    WARN("SKIPPED: this kernel, or container, has no memory policies");
    return;
  }
  f.ranks.clear();  // Ranks make such memory too.
  f.stage->OnRankLeft(LocalRank{0});
  REQUIRE(f.RunUntil([&] { return f.stage->context_count() == 0; }));
  f.ranks.push_back(std::make_unique<TestRank>(*f.machine, 0, f.spec.bytes()));
  const TestRank& rank = *f.ranks[0];
  REQUIRE(
      f.stage->Export(LocalRank{0}, f.machine->uuid(0), 1, *rank.device->Export(rank.memory)).ok());
  CHECK((f.machine->pinning_policy() == MPOL_PREFERRED) == known);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a request that a rank may not make is refused", "[gpu]") {
  Fixture f({.gpus = {0, 1}});
  const auto push = [&](uint32_t buffer, uint64_t offset) {
    return std::string(
        f.stage->Push(LocalRank{0}, TensorIndex{0}, Round{1}, 0, {buffer, offset}).message());
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(push(1, 0), Contains("buffer 1, which it has not exported"));
  CHECK_THAT(push(0, 254), Contains("offset 254"));
  CHECK_THAT(push(0, 516), Contains("offset 516"));
  CHECK_THAT(push(0, ~uint64_t{0}), Contains("offset 18446744073709551615"));
  CHECK_FALSE(f.stage->Place(LocalRank{0}, TensorIndex{0}, 7).ok());
  CHECK_FALSE(f.stage->Place(LocalRank{5}, TensorIndex{0}, 0).ok());
  CHECK_FALSE(f.stage->Unexport(LocalRank{0}, 1, 3).ok());
  f.RoundTrip();
  f.NothingLeft();
}

TEST_CASE("GpuStage: memory is given back when no round and no copy needs it", "[gpu]") {
  Fixture f({.gpus = {0, 0}});
  f.PushAll();
  const absl::Status busy = f.stage->Unexport(LocalRank{0}, 9, 0);
  CHECK(busy.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(busy.message()), Catch::Matchers::Contains("its round 1 is open"));
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  REQUIRE(f.stage->Unexport(LocalRank{0}, 9, 0).ok());
  REQUIRE(f.RunUntil([&] { return !f.unexported.empty(); }));
  CHECK(f.unexported[0] == std::pair(LocalRank{0}, 9u));
  CHECK(f.machine->mapping_count() == 1);
  // The fake reports a violation if it is still mapped.
  CHECK(f.ranks[0]->device->Free(f.ranks[0]->memory).ok());
  CHECK_FALSE(f.stage->Push(LocalRank{0}, TensorIndex{0}, Round{2}, 0, {}).ok());
  f.NothingLeft();
}

}  // namespace
}  // namespace talweg::agent
