// SPDX-License-Identifier: Apache-2.0
// Tensors that a NIC sends from the GPU, and receives into it.
#include "services/agent/gpu_stage_fixture.h"

namespace talweg::agent {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("GpuDirect: the same sums as through the host, past it", "[gpu]") {
  const auto gpus =
      GENERATE(std::vector<size_t>{0}, std::vector<size_t>{0, 0}, std::vector<size_t>{0, 0, 0});
  // The last slice is short, and leaves in a frame; or not.
  const uint64_t elements = GENERATE(300'001u, 262'144u, 262'145u);
  Fixture f({.gpus = gpus, .elements = elements, .direct = true});
  const GpuStageCounters& counters = f.stage->counters();
  for (int i = 0; i < 3; ++i) {
    f.RoundTrip();
    CHECK(f.machine->violations() == std::vector<std::string>{});
  }
  CHECK(counters.pieces_direct > 0);
  CHECK((counters.pieces_by_kernel > 0) == (gpus.size() > 1));
  // Nothing but what leaves in frames went through the host.
  const uint64_t short_bytes = f.spec.bytes() % f.setup.slice_bytes;
  CHECK(counters.bytes_staged <=
        3 * (f.IsShort(static_cast<uint32_t>(short_bytes)) ? short_bytes : 0));
  CHECK(counters.pieces_by_host <= 3);
  f.NothingLeft();
}

TEST_CASE("GpuDirect: an agent that sleeps is woken when there is something to do", "[gpu]") {
  Fixture f({.gpus = {0, 0}, .direct = true});
  for (int i = 0; i < 3; ++i) {
    f.PushAll();
    REQUIRE(f.SleepUntil([&] { return f.delivered; }));
    f.CheckResult(0);
    CHECK(f.timed_sleeps == 0);
  }
  f.NothingLeft();
}

TEST_CASE("GpuDirect: a rank that moves to another GPU has its part, and its result", "[gpu]") {
  Fixture f({.gpus = {0, 0}, .direct = true});
  f.RoundTrip();
  f.ranks[1] = std::make_unique<TestRank>(*f.machine, 1, f.spec.bytes());
  f.Introduce(1);
  const uint64_t before = f.stage->counters().pieces_direct;
  f.RoundTrip();
  f.RoundTrip();
  CHECK(f.stage->counters().pieces_direct == before);
  CHECK(f.stage->counters().pieces_by_host > 0);
  CHECK(f.IsResult(f.results[f.round.value() & 1]));  // Copied down, for the other GPU.
  f.NothingLeft();
}

TEST_CASE("GpuDirect: ranks that push from the host have their part, and their result", "[gpu]") {
  const bool alone = GENERATE(false, true);
  Fixture f({.gpus = alone ? std::vector<size_t>{0} : std::vector<size_t>{0, 0}, .direct = true});
  f.RoundTrip();
  f.ranks.pop_back();
  f.host_ranks = 1;
  for (int i = 0; i < 2; ++i) {
    f.PushAll();
    REQUIRE(f.RunUntil([&] { return f.delivered; }));
    CHECK(f.IsResult(f.results[f.round.value() & 1]));
    if (!alone) f.CheckResult(0);
  }
  f.NothingLeft();
}

TEST_CASE("GpuDirect: who may not have it", "[gpu]") {
  const auto made = [](Fixture& f, uint32_t ranks) {
    return f.stage->MakeDirect(TensorIndex{0}, f.spec, ranks).status();
  };
  {
    Fixture f({.gpus = {0, 1}});
    CHECK_THAT(std::string(made(f, 2).message()), Contains("several GPUs"));
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0}});
    CHECK_THAT(std::string(made(f, 2).message()), Contains("1 of the node's ranks"));
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0}, .op = Op::kBroadcast});
    CHECK(absl::IsOutOfRange(made(f, 1)));
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0}, .elements = 65'535});
    CHECK(absl::IsOutOfRange(made(f, 1)));
    f.NothingLeft();
  }
  {
    // A sixteenth of the GPU's memory, of which a tensor takes three times its bytes.
    Fixture f({.gpus = {0}, .machine = {.gpu_memory_bytes = 16 * 12 * kMiB}});
    pipeline::TensorSpec spec = f.spec;
    spec.element_count = kMiB;
    const absl::Status refused = f.stage->MakeDirect(TensorIndex{0}, spec, 1).status();
    CHECK(absl::IsResourceExhausted(refused));
    CHECK_THAT(std::string(refused.message()), Contains("no more than 12 MiB"));
    spec.element_count /= 2;
    CHECK(f.stage->MakeDirect(TensorIndex{0}, spec, 1).ok());
    CHECK(absl::IsResourceExhausted(f.stage->MakeDirect(TensorIndex{1}, spec, 1).status()));
    f.stage->DropDirect(TensorIndex{0});
    CHECK(f.stage->MakeDirect(TensorIndex{1}, spec, 1).ok());
    f.stage->ForgetTensors();
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0}, .machine = {.opens_to_nics = false}});
    CHECK(absl::IsUnimplemented(made(f, 1)));
    CHECK_FALSE(f.stage->IsDirect(TensorIndex{0}));
    f.NothingLeft();
  }
}

TEST_CASE("GpuDirect: a held result is fetched as it lies, with what came in frames", "[gpu]") {
  Fixture f({.gpus = {0}, .elements = 262'145, .direct = true});
  f.RoundTrip();
  std::vector<std::byte> held(f.spec.bytes());
  // Cut elsewhere than it came.
  constexpr uint64_t kCut = 100'000;
  for (uint64_t at = 0; at < held.size(); at += kCut) {
    const auto bytes = static_cast<uint32_t>(std::min(kCut, held.size() - at));
    const pipeline::SliceBytes slice{.tensor = TensorIndex{0},
                                     .round = f.round,
                                     .memory = pipeline::Memory::kResult,
                                     .offset_bytes = at,
                                     .length_bytes = bytes};
    REQUIRE(f.stage->FetchResult(slice, std::span(held).subspan(at, bytes)).ok());
  }
  std::vector<std::byte> taken(held.size());
  std::memcpy(taken.data(), f.ranks[0]->host.data(), taken.size());  // What CheckResult read.
  CHECK(held == taken);
  f.NothingLeft();
}

TEST_CASE("GpuDirect: a GPU that is lost with a NIC's memory ends the job, by name", "[gpu]") {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = {1, 1}, .seed = seed});
    f.home = 1;
    f.MakeDirect();
    f.PushAll();
    const int64_t moment = f.clock.NowNs() + static_cast<int64_t>(f.random.Below(300'000));
    f.RunUntil([&] { return f.clock.NowNs() >= moment || f.ready_ranks.size() == 2; });
    f.LoseContext(1);
    REQUIRE(f.RunUntil([&] { return !f.failed.empty(); }));
    CHECK_THAT(f.failed, Contains("Fake GPU 1") && Contains("--gpu_direct=off"));
  }
}

TEST_CASE("GpuDirect: a GPU stays while a NIC has memory there", "[gpu]") {
  Fixture f({.gpus = {0}, .direct = true});
  f.RoundTrip();
  f.stage->OnRankLeft(LocalRank{0});
  REQUIRE(f.RunUntil([&] { return f.stage->IsIdle(); }));
  f.RunUntil([] { return false; }, 10);
  CHECK(f.stage->context_count() == 1);
  f.NothingLeft();
}

}  // namespace
}  // namespace talweg::agent
