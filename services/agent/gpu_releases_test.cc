// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_releases.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

constexpr LocalRank kFirst{0};

TEST_CASE("GpuReleases: a buffer that nothing needs is unmapped, and its rank is told", "[gpu]") {
  Parts p;
  const uint32_t buffer = p.AddRank(0).buffer;
  CHECK(p.releases.Poll() == 0);
  p.buffers.Unexport(kFirst, 7, buffer);
  CHECK(p.releases.Poll() == 1);
  CHECK(p.unexported == std::vector{std::pair<LocalRank, uint32_t>(kFirst, 7)});
  CHECK(p.machine.mapping_count() == 0);
  CHECK(p.releases.Poll() == 0);
}

TEST_CASE("GpuReleases: a GPU is closed when its last rank has left", "[gpu]") {
  Parts p;
  p.AddRank(0);
  p.AddRank(0);
  const gpu::GpuUuid uuid = p.machine.uuid(0);
  p.buffers.OnRankLeft(kFirst);
  CHECK(p.releases.Poll() == 1);
  CHECK(p.node.Find(uuid) != nullptr);
  p.buffers.OnRankLeft(LocalRank{1});
  CHECK(p.releases.Poll() == 1);
  CHECK(p.node.Find(uuid) == nullptr);
  CHECK(p.buffers.empty());
}

TEST_CASE("GpuReleases: a rank's memory is kept while one of its gradients is open", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst}), nullptr);
  p.buffers.OnRankLeft(kFirst);
  CHECK(p.releases.Poll() == 0);
  CHECK(p.node.Find(p.machine.uuid(0)) != nullptr);
}

TEST_CASE("GpuReleases: nothing is given back while a collective may hang there", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  p.AddReady(1, 1);
  const uint32_t buffer = p.AddRank(0).buffer;
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst, LocalRank{1}}), nullptr);
  p.machine.InjectCollectiveFault(CollectiveFault::kHang);
  Lane& lane = p.Start(0);
  p.StepUntil(lane, LaneStep::kCollective);
  p.buffers.Unexport(LocalRank{2}, 7, buffer);
  CHECK(p.releases.Poll() == 0);
  CHECK(p.unexported.empty());
  p.failures.OnCollectiveFailed(lane.groups.front(), absl::UnavailableError("hangs"),
                                p.clock.NowNs());
  CHECK(p.releases.Poll() == 0);  // The abort may hang, too.
  p.collectives.Poll();
  p.PassTime();
  p.collectives.Poll();
  CHECK(p.releases.Poll() == 1);
  CHECK(p.unexported.size() == 1);
}

TEST_CASE("GpuReleases: a GPU stays open while a NIC has memory there", "[gpu]") {
  Parts p;
  p.options.direct_bytes_min = 1000;
  p.AddRank(0);
  const gpu::GpuUuid uuid = p.machine.uuid(0);
  REQUIRE(p.homes.Make(TensorIndex{0}, p.spec, 1, p.clock.NowNs()).ok());
  p.buffers.OnRankLeft(kFirst);
  CHECK(p.releases.Poll() == 1);
  CHECK(p.node.Find(uuid) != nullptr);
  p.homes.DropAll();
  CHECK(p.releases.Poll() == 0);
  CHECK(p.node.Find(uuid) != nullptr);  // Nobody has said that it may be unused.
  p.releases.OnLetGo();
  p.releases.Poll();
  CHECK(p.node.Find(uuid) == nullptr);
}

}  // namespace
}  // namespace talweg::agent
