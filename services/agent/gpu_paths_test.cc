// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_paths.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

// Returns a lane with a slice of ranks on these GPUs, before its path is chosen.
Lane LaneFor(Parts& p, const std::vector<size_t>& gpus) {
  std::vector<LocalRank> inputs;
  for (const size_t gpu : gpus) {
    inputs.emplace_back(static_cast<uint32_t>(p.ranks.size()));
    p.AddReady(gpu, 1);
  }
  p.tasks.AddReduce(p.ReduceOf(1, inputs), nullptr);
  Lane lane;
  lane.task = p.tasks.waiting().back();
  lane.range = lane.task->ranges.front();
  lane.gpus = lane.task->gpus();
  lane.groups = p.paths.GroupsOf(*lane.task, lane.gpus);
  return lane;
}
LanePath PathOf(Parts& p, const Lane& lane) { return p.paths.PathOf(lane, p.clock.NowNs()); }

TEST_CASE("GpuPaths: the path follows from where the ranks' memory lies", "[gpu]") {
  const auto [gpus, path] = GENERATE(table<std::vector<size_t>, LanePath>({
      {{0}, LanePath::kHost},  // There is nothing to sum, so the piece goes where it is wanted.
      {{0, 0}, LanePath::kKernel},
      {{0, 1}, LanePath::kCollective},
      {{1, 0, 1}, LanePath::kCollective},
  }));
  Parts p;
  Lane lane = LaneFor(p, gpus);
  CHECK(PathOf(p, lane) == path);
  lane.range.host_only = true;
  CHECK(PathOf(p, lane) == LanePath::kHost);
  lane.range.host_only = false;
  lane.task->inputs.push_back({.rank = LocalRank{9}});  // This rank pushed from host memory.
  CHECK(PathOf(p, lane) == LanePath::kHost);
}

TEST_CASE("GpuPaths: without kernels, ranks that share a GPU are summed on the host", "[gpu]") {
  Parts p;
  const Lane lane = LaneFor(p, {0, 0});
  p.node.At(p.machine.uuid(0)).has_kernels = false;
  CHECK(PathOf(p, lane) == LanePath::kHost);
}

TEST_CASE("GpuPaths: a slice that GPUs cannot combine, or that has no staging, goes over the host",
          "[gpu]") {
  Parts p;
  const Lane lane = LaneFor(p, {0, 1});
  lane.task->op = Op::kMax;
  lane.task->dtype = DType::kF32;
  CHECK(PathOf(p, lane) == LanePath::kHost);
  lane.task->dtype = DType::kI32;
  CHECK(PathOf(p, lane) == LanePath::kCollective);
  // The staging is another lane's, but the path is the same for all lanes.
  p.node.At(p.machine.uuid(1)).lanes[1].in = {};
  CHECK(PathOf(p, lane) == LanePath::kHost);
}

TEST_CASE("GpuPaths: results are gathered among GPUs, or copied up to each", "[gpu]") {
  Parts p;
  const auto gpus = GENERATE(std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1});
  const Lane lane = LaneFor(p, gpus);
  lane.task->delivers = true;
  CHECK(PathOf(p, lane) == (gpus[0] == gpus[1] ? LanePath::kDirect : LanePath::kCollective));
}

TEST_CASE("GpuPaths: a slice that a NIC reads on its ranks' GPU stays there", "[gpu]") {
  Parts p;
  const Lane lane = LaneFor(p, {1});
  const GpuHome home{.gpu = p.machine.uuid(1)};
  lane.task->home = &home;
  CHECK(PathOf(p, lane) == LanePath::kStay);
  lane.task->mirrors = lane.task->delivers = true;
  CHECK(PathOf(p, lane) == LanePath::kHost);
}

TEST_CASE("GpuPaths: pieces fit into staging, in whole units of every GPU", "[gpu]") {
  Parts p;
  Lane lane = LaneFor(p, {0, 1, 2});
  lane.path = LanePath::kCollective;
  CHECK(p.paths.BytesMax(lane) == 256 * kKiB / 192 * 192);
  lane.task->inputs.push_back(lane.task->inputs[0]);
  lane.path = LanePath::kHost;  // Two ranks share the first GPU's staging.
  CHECK(p.paths.BytesMax(lane) == 128 * kKiB);
  lane.gpus = {lane.gpus[0]};
  lane.path = LanePath::kKernel;
  CHECK(p.paths.BytesMax(lane) == 256 * kKiB);
  lane.task->is_final = true;
  CHECK(p.paths.BytesMax(lane) == p.options.piece_bytes_in_place);
}

}  // namespace
}  // namespace talweg::agent
