// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_failures.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

// Ranks on these GPUs, and a lane that works on a slice of theirs.
struct Failing : Parts {
  explicit Failing(const std::vector<size_t>& gpus) {
    for (const size_t gpu : gpus) {
      inputs.emplace_back(static_cast<uint32_t>(ranks.size()));
      AddReady(gpu, 1);
    }
    tasks.AddReduce(ReduceOf(1, inputs), nullptr);
    Start(0);
  }
  Lane& lane() { return lanes.all()[0]; }
  void FailPiece(const absl::Status& status) {
    failures.OnPieceFailed(lane(), status, clock.NowNs());
  }
  void EndOnHost() {
    CHECK_FALSE(failures.has_failed());
    StepUntil(lane(), LaneStep::kFree);
    CHECK(Start(0).path == LanePath::kHost);
    StepUntil(lane(), LaneStep::kFree);
    CHECK(reduced.size() == 1);
  }

  std::vector<LocalRank> inputs;
};

TEST_CASE("GpuFailures: only the first reason is reported", "[gpu]") {
  Parts p;
  CHECK_FALSE(p.failures.has_failed());
  p.failures.Fail("one");
  p.failures.Fail("two");
  CHECK(p.failures.has_failed());
  CHECK(p.failed == std::vector<std::string>{"one"});
}

TEST_CASE("GpuFailures: the host sums from then on when a GPU has no kernel for the sum", "[gpu]") {
  Failing p({0, 0});
  p.FailPiece(absl::UnimplementedError("no code for this GPU"));
  CHECK_FALSE(p.node.At(p.machine.uuid(0)).has_kernels);
  REQUIRE(p.notes.size() == 1);
  CHECK(p.notes[0].find("no code for this GPU") != std::string::npos);
  p.EndOnHost();
}

TEST_CASE("GpuFailures: the host sums when a GPU has no memory for the sum", "[gpu]") {
  Failing p({0, 0});
  p.FailPiece(absl::ResourceExhaustedError("full"));
  CHECK(p.notes.empty());
  p.EndOnHost();
}

TEST_CASE("GpuFailures: a piece that the host cannot do either ends this node's part", "[gpu]") {
  Failing p({0});
  REQUIRE(p.lane().path == LanePath::kHost);
  p.FailPiece(absl::ResourceExhaustedError("full"));
  REQUIRE(p.failed.size() == 1);
  CHECK(p.failed[0].find("tensor 'w' round 1, local rank 0 on ") == 0);
  CHECK(p.failed[0].find("full") != std::string::npos);
}

TEST_CASE("GpuFailures: a piece that overwrote contributions is never done again", "[gpu]") {
  Failing p({0, 0});
  p.lane().task->is_final = true;
  p.lane().writes_ranks = true;
  SECTION("The piece fails") { p.FailPiece(absl::ResourceExhaustedError("full")); }
  SECTION("The piece's GPU is lost") {
    p.losses.Add(p.machine.uuid(0), absl::AbortedError("a fault"), p.clock.NowNs());
    p.failures.OnGpuLost(absl::AbortedError("a fault"), p.clock.NowNs());
  }
  REQUIRE(p.failed.size() == 1);
  CHECK(p.failed[0].find("its results were being written over the contributions") !=
        std::string::npos);
}

TEST_CASE("GpuFailures: a collective that fails is put aside, and the host sums", "[gpu]") {
  Failing p({0, 1});
  p.machine.InjectCollectiveFault(CollectiveFault::kHang);
  p.StepUntil(p.lane(), LaneStep::kCollective);
  p.graveyard.holds = true;
  const GpuSet group = {p.machine.uuid(0), p.machine.uuid(1)};
  p.failures.OnCollectiveFailed(group, absl::UnavailableError("hangs"), p.clock.NowNs());
  CHECK(p.counters.collectives_failed == 1);
  CHECK(p.lane().step == LaneStep::kDraining);
  CHECK(p.collectives.IsEnding(p.machine.uuid(0)));
  CHECK(p.node.At(p.machine.uuid(0)).parts_aside == 1);  // It may still write to its buffers.
  REQUIRE(p.notes.size() == 1);
  CHECK(p.notes[0].find("summed on the host until the communicator is made anew") !=
        std::string::npos);
  p.EndOnHost();
  p.graveyard.holds = false;
  p.collectives.Poll();
  p.PassTime();
  p.collectives.Poll();
  CHECK(p.node.At(p.machine.uuid(0)).parts_aside == 0);
}

TEST_CASE("GpuFailures: lanes on a lost GPU are drained, and others go on", "[gpu]") {
  Failing p({0, 0});
  const absl::Status why = absl::AbortedError("a fault");
  p.losses.Add(p.machine.uuid(1), why, p.clock.NowNs());
  p.failures.OnGpuLost(why, p.clock.NowNs());
  CHECK(p.lane().step == LaneStep::kCopying);
  p.losses.Add(p.machine.uuid(0), why, p.clock.NowNs());
  p.failures.OnGpuLost(why, p.clock.NowNs());
  CHECK(p.lane().step == LaneStep::kDraining);
  CHECK_FALSE(p.failures.has_failed());
}

}  // namespace
}  // namespace talweg::agent
