// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_reopening.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

constexpr LocalRank kFirst{0};

// A rank on GPU 0. The test loses its context.
struct Lost : Parts {
  Lost() {
    AddRank(0);
    Place(0);
  }
  void Lose() {
    machine.LoseContext(*node.At(uuid).device);
    losses.Add(uuid, absl::AbortedError("a fault"), clock.NowNs());
    gradients.OnGpuLost(uuid);
  }
  GpuReopening::Progress Tend() { return reopening.Tend(clock.NowNs()); }

  const gpu::GpuUuid uuid = machine.uuid(0);
};

TEST_CASE("GpuReopening: a lost GPU is opened again, with the ranks' memory", "[gpu]") {
  Lost p;
  p.Lose();
  const size_t contexts = p.machine.context_count(0);
  const GpuReopening::Progress progress = p.Tend();
  CHECK(progress.back == GpuSet{p.uuid});
  CHECK(progress.failed == "");
  CHECK(p.losses.empty());
  CHECK(p.machine.context_count(0) == contexts);  // The lost context is closed.
  CHECK(p.machine.mapping_count() == 1);
  p.Place(0);  // The rank gets other events.
  p.Write(0);
  REQUIRE(p.Push(0, 1).ok());
  p.PassTime();
  CHECK(p.Ask(0) == 1);
  CHECK(p.machine.violations() == std::vector<std::string>{});
}

TEST_CASE("GpuReopening: a GPU that nobody uses any more is closed, and not opened", "[gpu]") {
  Lost p;
  p.Lose();
  p.buffers.OnRankLeft(kFirst);
  p.releases.Poll();
  CHECK(p.Tend().back == GpuSet{p.uuid});
  CHECK(p.node.Find(p.uuid) == nullptr);
}

TEST_CASE("GpuReopening: it tries now and then to open a lost GPU, and gives up in the end",
          "[gpu]") {
  Lost p;
  p.Lose();
  p.machine.RefuseContexts(absl::ResourceExhaustedError("no memory"));
  CHECK(p.Tend().work > 0);
  CHECK(p.Tend().work == 0);
  p.PassTime(p.options.reopen_every_ns);
  CHECK(p.Tend().work > 0);
  CHECK(p.losses.Has(p.uuid));
  SECTION("It comes back, and is not given up") {
    p.machine.RefuseContexts(absl::OkStatus());
    p.PassTime(p.options.reopen_every_ns);
    CHECK(p.Tend().back == GpuSet{p.uuid});
  }
  SECTION("The text has the reason, and what the last attempt said") {
    p.PassTime(p.options.reopen_deadline_ns);
    const std::string failed = p.Tend().failed;
    CHECK(failed.find("a fault") != std::string::npos);
    CHECK(failed.find("not opened again within 30 s") != std::string::npos);
    CHECK(failed.find("no memory") != std::string::npos);
  }
}

TEST_CASE("GpuReopening: it ends at once when the driver gives no other context", "[gpu]") {
  Lost p;
  p.Lose();
  p.machine.RefuseContexts(absl::FailedPreconditionError("start the process again"));
  const std::string failed = p.Tend().failed;
  CHECK(failed.find("a fault") != std::string::npos);
  CHECK(failed.find("start the process again") != std::string::npos);
}

TEST_CASE("GpuReopening: the lost context is closed when no lane is at work", "[gpu]") {
  Lost p;
  p.AddReady(0, 1);
  p.AddReady(0, 1);
  p.tasks.AddReduce(p.ReduceOf(1, {LocalRank{1}, LocalRank{2}}), nullptr);
  Lane& lane = p.Start(0);
  p.Lose();
  p.Tend();
  CHECK_FALSE(p.losses.IsClosed(p.uuid));
  lane.step = LaneStep::kFree;
  CHECK(p.Tend().back == GpuSet{p.uuid});
}

}  // namespace
}  // namespace talweg::agent
