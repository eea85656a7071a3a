// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_collectives.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

using Readiness = GpuCollectives::Readiness;

constexpr int64_t kSecond = 1'000'000'000;

// Two GPUs that are open.
struct TwoGpus : Parts {
  explicit TwoGpus(const FakeMachineOptions& given = {.gpu_count = 4}) : Parts(given) {
    AddRank(0);
    AddRank(1);
  }
  Readiness Ask() { return collectives.Ask(both, clock.NowNs()); }
  bool MayUse() { return collectives.MayUse(both, clock.NowNs()); }
  void MakeReady() {
    REQUIRE(MayUse());
    PassTime();
    REQUIRE(Ask() == Readiness::kReady);
  }
  void Fail(std::vector<std::pair<gpu::GpuUuid, LanePart>> aside = {}) {
    collectives.Fail(both, std::move(aside), clock.NowNs());
  }

  const GpuSet both = {machine.uuid(0), machine.uuid(1)};
};

TEST_CASE("GpuCollectives: a communicator is made when it is needed, and is ready later", "[gpu]") {
  TwoGpus p;
  REQUIRE(p.MayUse());
  CHECK(p.Ask() == Readiness::kBusy);
  p.PassTime();
  CHECK(p.Ask() == Readiness::kReady);
}

TEST_CASE("GpuCollectives: a communicator that does not start has failed", "[gpu]") {
  SECTION("It reports the failure") {
    TwoGpus p;
    p.machine.InjectCollectiveFault(CollectiveFault::kStartFails);
    REQUIRE(p.MayUse());
    p.PassTime();
    CHECK(p.Ask() == Readiness::kFailed);
    CHECK_FALSE(p.collectives.Error(p.both).ok());
  }
  SECTION("Its time is over") {
    TwoGpus p({.gpu_count = 4, .costs = {.communicator_start_ns = 60 * kSecond}});
    REQUIRE(p.MayUse());
    p.PassTime(p.options.collective_deadline_ns - 1);
    CHECK(p.Ask() == Readiness::kBusy);
    p.PassTime(1);
    CHECK(p.Ask() == Readiness::kFailed);
    CHECK(absl::IsUnavailable(p.collectives.Error(p.both)));
  }
}

TEST_CASE("GpuCollectives: a failed communicator is made again after a pause that doubles",
          "[gpu]") {
  TwoGpus p;
  for (const int64_t pause_ns : {kSecond, 2 * kSecond, 4 * kSecond}) {
    p.MakeReady();
    p.Fail();
    CHECK(p.Ask() == Readiness::kUnavailable);
    p.collectives.Poll();
    p.PassTime(pause_ns - 1);
    CHECK_FALSE(p.MayUse());
    p.PassTime(1);
  }
  CHECK(p.MayUse());
}

TEST_CASE("GpuCollectives: the old communicator is aborted before a new one is made", "[gpu]") {
  TwoGpus p;
  p.MakeReady();
  p.graveyard.holds = true;
  p.Fail();
  p.PassTime(10 * kSecond);
  p.collectives.Poll();
  CHECK(p.collectives.IsEnding(p.machine.uuid(0)));
  CHECK_FALSE(p.collectives.IsEnding(p.machine.uuid(2)));
  CHECK_FALSE(p.MayUse());
  p.graveyard.holds = false;
  p.collectives.Poll();
  CHECK_FALSE(p.collectives.IsEnding(p.machine.uuid(0)));
  CHECK(p.MayUse());
}

TEST_CASE("GpuCollectives: a lane's part stays aside until the abort is over", "[gpu]") {
  TwoGpus p;
  const gpu::GpuUuid uuid = p.machine.uuid(0);
  p.MakeReady();
  p.graveyard.holds = true;
  p.Fail({{uuid, p.node.TakeAside(uuid, 0)}});
  REQUIRE(p.node.RenewPart(uuid, 0).ok());
  p.PassTime();
  CHECK(p.collectives.Poll() == 0);
  CHECK(p.collectives.HasAside());
  CHECK(p.node.At(uuid).parts_aside == 1);
  p.graveyard.holds = false;
  int freed = p.collectives.Poll();  // The call records what the part waits for.
  p.PassTime();
  freed += p.collectives.Poll();
  CHECK(freed == 1);
  CHECK_FALSE(p.collectives.HasAside());
  CHECK(p.node.At(uuid).parts_aside == 0);
}

TEST_CASE("GpuCollectives: a GPU that is given up takes its communicators along", "[gpu]") {
  TwoGpus p;
  p.MakeReady();
  CHECK_FALSE(p.collectives.Release(p.machine.uuid(1)));  // The abort is under way.
  p.collectives.Poll();
  CHECK(p.collectives.Release(p.machine.uuid(1)));
  CHECK(p.collectives.Release(p.machine.uuid(0)));
}

}  // namespace
}  // namespace talweg::agent
