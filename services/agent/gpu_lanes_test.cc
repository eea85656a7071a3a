// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_lanes.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

constexpr LocalRank kFirst{0};
constexpr LocalRank kSecond{1};

// Ranks on these GPUs that give 1, 10, 100, ..., and a slice of theirs to reduce.
struct Lanes : Parts {
  explicit Lanes(const std::vector<size_t>& gpus) {
    uint32_t value = 1;
    for (const size_t gpu : gpus) {
      inputs.emplace_back(static_cast<uint32_t>(ranks.size()));
      AddReady(gpu, 1, value);
      value *= 10;
    }
    tasks.AddReduce(ReduceOf(1, inputs), nullptr);
  }
  // Returns the value of every element of the send buffer, or -1 if they differ.
  int64_t Sum() const {
    uint32_t first;
    std::memcpy(&first, send.data(), 4);
    for (size_t at = 0; at < spec.bytes(); at += 4) {
      if (std::memcmp(&send[at], &first, 4) != 0) return -1;
    }
    return first;
  }

  std::vector<LocalRank> inputs;
};

TEST_CASE("GpuLanes: a piece takes its path, and its sum is where the core wants it", "[gpu]") {
  const auto [gpus, path, sum] = GENERATE(table<std::vector<size_t>, LanePath, int64_t>({
      {{0}, LanePath::kHost, 1},
      {{0, 0}, LanePath::kKernel, 11},
      {{0, 1}, LanePath::kCollective, 11},
      {{1, 0, 1}, LanePath::kCollective, 111},
  }));
  const bool is_pinned = GENERATE(false, true);
  Lanes p(gpus);
  if (is_pinned) p.pins.Pin(TensorIndex{0}, p.machine.uuid(gpus[0]));
  Lane& lane = p.Start(0);
  CHECK(lane.path == path);
  CHECK(lane.step ==
        (path == LanePath::kCollective ? LaneStep::kAwaitCommunicator : LaneStep::kCopying));
  CHECK(p.reduced.empty());
  p.StepUntil(lane, LaneStep::kFree);
  CHECK(p.reduced == std::vector<uint64_t>{1});
  CHECK(p.Sum() == sum);
  CHECK(p.counters.pieces_by_host == (path == LanePath::kHost ? 1 : 0));
  CHECK(p.counters.pieces_by_kernel == (path == LanePath::kKernel ? 1 : 0));
  CHECK(p.counters.pieces_by_collective == (path == LanePath::kCollective ? 1 : 0));
  CHECK_FALSE(p.lanes.AnyBusy());
  CHECK(p.machine.violations() == std::vector<std::string>{});
}

TEST_CASE("GpuLanes: a piece that is done again goes over the host", "[gpu]") {
  Lanes p({0, 0});
  Lane& lane = p.Start(0);
  REQUIRE(lane.path == LanePath::kKernel);
  p.lanes.Redo(lane, p.clock.NowNs());
  CHECK(lane.step == LaneStep::kDraining);
  p.StepUntil(lane, LaneStep::kFree);
  CHECK(p.reduced.empty());
  CHECK(p.Start(0).path == LanePath::kHost);
  p.StepUntil(lane, LaneStep::kFree);
  CHECK(p.reduced.size() == 1);
  CHECK(p.Sum() == 11);
}

TEST_CASE("GpuLanes: no piece starts while an older one may write the same bytes", "[gpu]") {
  Lanes p({0, 0});
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst, kSecond}), nullptr);
  Lane& older = p.Start(0);
  Lane& younger = p.lanes.all()[1];
  CHECK_FALSE(*p.lanes.Start(younger, p.clock.NowNs()));
  p.lanes.Abandon();  // That holds even while nobody wants the older one any more.
  CHECK_FALSE(*p.lanes.Start(younger, p.clock.NowNs()));
  p.StepUntil(older, LaneStep::kFree);
  CHECK(*p.lanes.Start(younger, p.clock.NowNs()));
  p.StepUntil(younger, LaneStep::kFree);
}

TEST_CASE("GpuLanes: a sum that nobody wants is not written to the host", "[gpu]") {
  Lanes p({0, 0});
  Lane& lane = p.Start(0);
  p.wanted.clear();
  p.StepUntil(lane, LaneStep::kFree);
  CHECK(p.Sum() == 0);
}

TEST_CASE("GpuLanes: a collective that does not end is reported with its group", "[gpu]") {
  Lanes p({0, 1});
  p.machine.InjectCollectiveFault(CollectiveFault::kHang);
  Lane& lane = p.Start(0);
  p.StepUntil(lane, LaneStep::kCollective);
  CHECK_FALSE(p.lanes.MayWaitFor(p.machine.uuid(0)));
  CHECK(p.lanes.MayWaitFor(p.machine.uuid(2)));
  p.PassTime(lane.deadline_ns - p.clock.NowNs() - 1);
  CHECK(p.lanes.Step(lane, p.clock.NowNs()).trouble == GpuLanes::Trouble::kNone);
  p.PassTime(1);
  const GpuLanes::Progress progress = p.lanes.Step(lane, p.clock.NowNs());
  CHECK(progress.trouble == GpuLanes::Trouble::kOverdue);
  CHECK(progress.group == GpuSet{p.machine.uuid(0), p.machine.uuid(1)});
  CHECK(p.lanes.Describe(lane).find("tensor 'w' round 1, local rank 0 on ") == 0);
}

TEST_CASE("GpuLanes: a communicator that fails is reported with its group", "[gpu]") {
  Lanes p({0, 1});
  p.machine.InjectCollectiveFault(CollectiveFault::kError);
  Lane& lane = p.Start(0);
  const GpuLanes::Progress progress = p.StepUntil(lane, LaneStep::kFree);
  CHECK(progress.trouble == GpuLanes::Trouble::kCommunicator);
  CHECK(progress.group == GpuSet{p.machine.uuid(0), p.machine.uuid(1)});
}

TEST_CASE("GpuLanes: GPUs wake an agent that sleeps, and communicators have to be polled",
          "[gpu]") {
  SECTION("Posted work wakes it") {
    Lanes p({0, 0});
    CHECK(p.lanes.PrepareToSleep(p.clock.NowNs()) == std::nullopt);
    p.Start(0);
    CHECK(p.lanes.PrepareToSleep(p.clock.NowNs()) == std::nullopt);
    p.options.watch_own_ns = 1000;  // The work is so recent that sleeping does not pay.
    CHECK(p.lanes.PrepareToSleep(p.clock.NowNs()) == p.clock.NowNs());
    p.options.watch_own_ns = 0;
    p.StepUntil(p.lanes.all()[0], LaneStep::kFree);
  }
  SECTION("A communicator that starts does not wake it") {
    Lanes p({0, 1});
    p.Start(0);
    CHECK(p.lanes.PrepareToSleep(p.clock.NowNs()) ==
          p.clock.NowNs() + p.options.ask_launch_every_ns);
    p.StepUntil(p.lanes.all()[0], LaneStep::kFree);
  }
}

}  // namespace
}  // namespace talweg::agent
