// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_gradients.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

constexpr LocalRank kFirst{0};
constexpr TensorIndex kTensor{0};

TEST_CASE("GpuGradients: a push is reported once, when its event is done", "[gpu]") {
  Parts p;
  p.AddRank(0);
  p.Place(0);
  CHECK_FALSE(p.gradients.HasAny(kTensor, Round{1}));
  p.Write(0);
  REQUIRE(p.Push(0, 1).ok());
  CHECK(p.gradients.HasAny(kTensor, Round{1}));
  CHECK(p.Ask(0) == 0);
  CHECK_FALSE(p.gradients.FindOpen(kFirst, kTensor, Round{1})->ready);
  p.PassTime();
  CHECK(p.Ask(0) == 1);
  CHECK(p.Ask(0) == 0);
  CHECK(p.gradients.FindOpen(kFirst, kTensor, Round{1})->ready);
  CHECK_FALSE(p.Push(0, 2).ok());  // The rank's round is open.
  CHECK(absl::IsFailedPrecondition(p.gradients.MayUnexport(kFirst, 0)));
  p.gradients.Close(kFirst, kTensor);
  CHECK(p.gradients.MayUnexport(kFirst, 0).ok());
  CHECK(p.Push(0, 2).ok());
}

TEST_CASE("GpuGradients: a rank is asked less often the longer it has no gradient", "[gpu]") {
  Parts p;
  p.AddRank(0);
  p.Place(0);
  CHECK(p.gradients.NextToAsk(kFirst) == kFirst);
  p.Ask(0);
  CHECK(p.gradients.NextToAsk(kFirst) == std::nullopt);
  CHECK(p.gradients.AskAfterNs(p.clock.NowNs()) == std::nullopt);
  p.Write(0);
  REQUIRE(p.Push(0, 1).ok());
  CHECK(p.gradients.NextToAsk(kFirst) == kFirst);
  CHECK(p.gradients.NextToAsk(LocalRank{1}) == std::nullopt);
  p.Ask(0);
  const int64_t begin_ns = p.clock.NowNs();
  CHECK(p.gradients.AskAfterNs(begin_ns) == p.options.ask_gradients_first_ns);
  CHECK(p.gradients.AskAfterNs(begin_ns + 8'000'000) == 500'000);
  CHECK(p.gradients.AskAfterNs(begin_ns + 1'000'000'000) == p.options.ask_gradients_last_ns);
}

TEST_CASE(
    "GpuGradients: after a loss a rank places and pushes again, and that is not reported twice",
    "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  const gpu::GpuUuid uuid = p.machine.uuid(0);
  p.gradients.OnGpuLost(uuid);
  CHECK_FALSE(p.gradients.FindOpen(kFirst, kTensor, Round{1})->ready);
  p.LoseAndReopen(0);
  REQUIRE(p.buffers.MapAgain(uuid).ok());
  p.gradients.OnMappedAgain(uuid);
  const GpuGradients::Part* const part = p.gradients.FindOpen(kFirst, kTensor, Round{1});
  CHECK(part->span.address == p.buffers.Find(kFirst, 0)->span.address + 256);
  CHECK_FALSE(part->ready);  // The rank asks for its events, and pushes again.
  p.Place(0);
  p.Write(0);
  CHECK_FALSE(p.Push(0, 1).ok());  // It is not accepted as a new push.
  REQUIRE(p.Push(0, 1, true).ok());
  p.PassTime();
  CHECK(p.Ask(0) == 0);
  CHECK(part->ready);
}

TEST_CASE("GpuGradients: the last push of a rank that left is still summed, and no more", "[gpu]") {
  Parts p;
  const bool finished = GENERATE(false, true);
  if (finished) {
    p.AddReady(0, 1);
  } else {
    p.AddRank(0);
    p.Place(0);
    p.Write(0);
    REQUIRE(p.Push(0, 1).ok());
  }
  p.buffers.OnRankLeft(kFirst);
  p.gradients.OnRankLeft(kFirst);
  CHECK(p.gradients.HasAny(kTensor, Round{1}) == finished);
  CHECK(p.gradients.AnyOpen(kFirst) == finished);
  CHECK(p.gradients.FindPresent(kFirst, kTensor) == nullptr);
  CHECK(p.gradients.NextToAsk(kFirst) == (finished ? std::nullopt : std::optional(kFirst)));
}

TEST_CASE("GpuGradients: a tensor with an open round does not move to another GPU", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  REQUIRE(p.node.Open(p.machine.uuid(1)).ok());
  CHECK(absl::IsFailedPrecondition(p.gradients.Place(kFirst, kTensor, p.machine.uuid(1))));
  p.gradients.Close(kFirst, kTensor);
  CHECK(p.gradients.Place(kFirst, kTensor, p.machine.uuid(1)).ok());
  CHECK(p.gradients.TensorsOn(p.machine.uuid(0)).empty());
  CHECK(p.gradients.TensorsOn(p.machine.uuid(1)) == std::set{kTensor});
}

}  // namespace
}  // namespace talweg::agent
