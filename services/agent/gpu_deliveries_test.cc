// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_deliveries.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

constexpr LocalRank kFirst{0};

std::shared_ptr<GpuDelivery> Begin(Parts& p) {
  auto delivery = std::make_shared<GpuDelivery>();
  delivery->round = {.tensor = TensorIndex{0}, .round = Round{1}};
  delivery->ranks = {kFirst};
  p.deliveries.Add(delivery);
  return delivery;
}

TEST_CASE("GpuDeliveries: a round ends when its copies and then its marks are done", "[gpu]") {
  Parts p({.gpu_count = 4, .costs = {.record_ns = 5000}});
  p.AddReady(0, 1);
  const auto delivery = Begin(p);
  delivery->tasks = 1;
  int ended = 0;
  REQUIRE(p.deliveries.Ask(p.clock.NowNs(), &ended).ok());
  CHECK_FALSE(delivery->recorded);  // A copy is under way.
  delivery->tasks = 0;
  REQUIRE(p.deliveries.Ask(p.clock.NowNs(), &ended).ok());
  CHECK(delivery->recorded);
  CHECK(p.delivered.empty());
  CHECK(p.gradients.AnyOpen(kFirst));
  CHECK(p.deliveries.PrepareToSleep(p.clock.NowNs()) == std::nullopt);  // The GPU wakes the agent.
  p.PassTime();
  REQUIRE(p.deliveries.Ask(p.clock.NowNs(), &ended).ok());
  CHECK(ended == 1);
  CHECK(p.delivered == std::vector{Round{1}});
  CHECK_FALSE(p.gradients.AnyOpen(kFirst));
  CHECK(p.deliveries.empty());
}

TEST_CASE("GpuDeliveries: lost marks are made again when the rank has events", "[gpu]") {
  Parts p({.gpu_count = 4, .costs = {.record_ns = 5000}});
  p.AddReady(0, 1);
  const auto delivery = Begin(p);
  int ended = 0;
  REQUIRE(p.deliveries.Ask(p.clock.NowNs(), &ended).ok());
  p.gradients.OnGpuLost(p.machine.uuid(0));
  p.deliveries.OnGpuLost();
  CHECK_FALSE(delivery->recorded);
  p.PassTime();
  REQUIRE(p.deliveries.Ask(p.clock.NowNs(), &ended).ok());
  CHECK(ended == 0);
  p.buffers.OnRankLeft(kFirst);  // The rank is gone, so nobody is told.
  REQUIRE(p.deliveries.Ask(p.clock.NowNs(), &ended).ok());
  CHECK(ended == 1);
}

TEST_CASE("GpuDeliveries: a round that failed needs no marks", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  const auto delivery = Begin(p);
  delivery->round.status = pipeline::Status::kAborted;
  delivery->recorded = true;
  p.deliveries.OnGpuLost();
  CHECK(delivery->recorded);
  int ended = 0;
  REQUIRE(p.deliveries.Ask(p.clock.NowNs(), &ended).ok());
  CHECK(ended == 1);
}

}  // namespace
}  // namespace talweg::agent
