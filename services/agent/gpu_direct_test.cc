// SPDX-License-Identifier: Apache-2.0
// Tensors that a NIC sends from a GPU, and receives into it.
#include "services/agent/gpu_stage_fixture.h"

namespace talweg::agent {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("GpuDirect: it makes the same sums as through the host, and bypasses the host", "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{0}, std::vector<size_t>{0, 0},
                             std::vector<size_t>{0, 0, 0}, std::vector<size_t>{1, 0},
                             std::vector<size_t>{0, 1, 0}, std::vector<size_t>{0, 1, 2, 3});
  // With some of these, the last slice is short and leaves in a frame.
  const uint64_t elements = GENERATE(300'001u, 262'144u, 262'145u);
  // The name decides which of several GPUs is home.
  const std::string name = GENERATE("a", "b", "c");
  Fixture f({.gpus = gpus, .elements = elements, .direct = true, .name = name});
  const bool several = std::set<size_t>(gpus.begin(), gpus.end()).size() > 1;
  const GpuStageCounters& counters = f.stage->counters();
  for (int i = 0; i < 3; ++i) {
    f.RoundTrip();
    CHECK(f.machine->violations() == std::vector<std::string>{});
  }
  CHECK(counters.pieces_direct > 0);
  CHECK((counters.pieces_by_kernel > 0) == (gpus.size() > 1 && !several));
  CHECK((counters.pieces_by_collective > 0) == several);
  // Only slices that leave in frames went through the host.
  const uint64_t short_bytes = f.spec.bytes() % f.setup.slice_bytes;
  CHECK(counters.bytes_staged <=
        3 * (f.IsShort(static_cast<uint32_t>(short_bytes)) ? short_bytes : 0));
  CHECK(counters.pieces_by_host <= 3);
  f.NothingLeft();
}

TEST_CASE("GpuDirect: an agent that sleeps is woken when there is something to do", "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1});
  Fixture f({.gpus = gpus, .direct = true});
  for (int i = 0; i < 3; ++i) {
    f.PushAll();
    REQUIRE(f.SleepUntil([&] { return f.delivered; }));
    f.CheckResult(0);
    // Communicators wake nobody, so only ranks on two GPUs need timed sleeps.
    if (gpus[0] == gpus[1]) CHECK(f.timed_sleeps == 0);
  }
  f.NothingLeft();
}

TEST_CASE("GpuDirect: each tensor's home among several GPUs is the same in every run", "[gpu]") {
  std::set<size_t> homes;
  for (const char* const name : {"a", "b", "c", "d", "e", "f"}) {
    Fixture f({.gpus = {0, 1}, .direct = true, .name = name});
    Fixture again({.gpus = {1, 0}, .direct = true, .name = name, .seed = 7});
    CHECK(f.home == again.home);
    homes.insert(f.home);
    f.NothingLeft();
    again.NothingLeft();
  }
  CHECK(homes == std::set<size_t>{0, 1});
}

TEST_CASE("GpuDirect: the host sums when a collective fails in either direction", "[gpu]") {
  const auto fault =
      GENERATE(CollectiveFault::kCallFails, CollectiveFault::kError, CollectiveFault::kHang);
  const bool of_results = GENERATE(false, true);
  const bool abort_hangs = GENERATE(false, true);
  const auto gpus = GENERATE(std::vector<size_t>{0, 1}, std::vector<size_t>{1, 0, 1, 2});
  Fixture f({.gpus = gpus, .direct = true});
  f.RoundTrip();
  f.graveyard.holds = abort_hangs;
  if (!of_results) f.machine->InjectCollectiveFault(fault);
  f.PushAll();
  if (of_results) {
    REQUIRE(
        f.RunUntil([&] { return f.ready_ranks.size() == gpus.size() && f.open_tickets.empty(); }));
    f.machine->InjectCollectiveFault(fault);
  }
  REQUIRE(f.RunUntil([&] {
    if (f.stage->counters().collectives_failed == 0) f.clock.Advance(100'000'000);
    return f.delivered || !f.failed.empty();
  }));
  CHECK(f.failed.empty());
  CHECK(f.stage->counters().collectives_failed == 1);
  for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
  f.RoundTrip();  // The abort may still hang meanwhile.
  CHECK(f.stage->counters().pieces_by_host > 0);
  f.graveyard.holds = false;
  f.clock.Advance(2'000'000'000);
  const uint64_t before = f.stage->counters().pieces_by_collective;
  f.RoundTrip();
  CHECK(f.stage->counters().pieces_by_collective > before);  // The communicator has been made anew.
  f.NothingLeft();
}

TEST_CASE("GpuDirect: a lost GPU is made anew if it is not the tensor's home", "[gpu]") {
  int reopened = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = {0, 1}, .direct = true, .seed = seed});
    f.RoundTrip();
    f.PushAll();
    f.RunUntilSomeMoment(1'500'000);
    const bool early = !f.delivered;
    f.LoseContext(1 - f.home);
    REQUIRE(f.RunUntil([&] { return f.delivered || !f.failed.empty(); }));
    REQUIRE(f.failed.empty());
    if (early) {
      for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
    } else {
      f.stage->Poll(f.clock.NowNs());
    }
    f.RoundTrip();
    reopened += static_cast<int>(f.stage->counters().gpus_reopened);
    f.NothingLeft();
  }
  CHECK(reopened == 16);
}

TEST_CASE("GpuDirect: ranks that move to other GPUs keep giving and getting", "[gpu]") {
  // Whether the third GPU is behind another switch than the first two.
  const bool switches = GENERATE(false, true);
  Fixture f({.gpus = {0, 0},
             .direct = true,
             .stage = {.topology = switches ? TwoSwitches() : topology::Topology(),
                       .piece_bytes = kMiB,
                       .piece_bytes_min = 64 * kKiB}});
  const auto move = [&](size_t rank, size_t gpu) {
    f.ranks[rank] = std::make_unique<TestRank>(*f.machine, gpu, f.spec.bytes());
    f.Introduce(rank);
  };
  const GpuStageCounters& counters = f.stage->counters();
  f.RoundTrip();
  move(1, 1);
  for (int i = 0; i < 2; ++i) f.RoundTrip();
  CHECK(counters.pieces_by_collective > 0);
  CHECK(counters.pieces_by_host == 0);
  move(0, 1);  // No rank is on the home GPU any more.
  for (int i = 0; i < 2; ++i) f.RoundTrip();
  const uint64_t by_host = counters.pieces_by_host;
  CHECK(by_host > 0);
  move(0, 0);
  move(1, 2);
  for (int i = 0; i < 2; ++i) f.RoundTrip();
  CHECK(counters.pieces_by_host == by_host);
  move(0, 1);  // The ranks are as far from home as from each other.
  for (int i = 0; i < 2; ++i) f.RoundTrip();
  CHECK(counters.pieces_by_host > by_host);
  f.NothingLeft();
}

TEST_CASE("GpuDirect: ranks that push from the host keep giving and getting", "[gpu]") {
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

TEST_CASE("GpuDirect: a tensor that cannot use it is refused", "[gpu]") {
  const auto made = [](Fixture& f, uint32_t ranks) {
    return f.stage->MakeDirect(TensorIndex{0}, f.spec, ranks).status();
  };
  {
    Fixture f({.gpus = {0, 1, 2}, .stage = {.topology = TwoSwitches()}});
    CHECK_THAT(std::string(made(f, 3).message()), Contains("PCIe switches"));
    // That holds for good.
    CHECK_THAT(std::string(made(f, 4).message()), Contains("PCIe switches"));
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0, 1}});
    f.spec.collective.dtype = DType::kF32;
    f.spec.collective.op = Op::kMax;  // GPUs do not combine this.
    CHECK(absl::IsOutOfRange(made(f, 2)));
    f.spec.collective.op = Op::kAverage;
    CHECK(made(f, 2).ok());
    f.stage->ForgetTensors();
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0, 1}});
    f.RoundTrip();
    f.machine->InjectCollectiveFault(CollectiveFault::kError);
    f.RoundTrip();
    CHECK_THAT(std::string(made(f, 2).message()), Contains("no communicator"));
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0}});
    CHECK_THAT(std::string(made(f, 2).message()), Contains("1 of the node's ranks"));
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0}, .op = Op::kCopy});
    CHECK(absl::IsOutOfRange(made(f, 1)));
    f.NothingLeft();
  }
  {
    Fixture f({.gpus = {0}, .elements = 65'535});
    CHECK(absl::IsOutOfRange(made(f, 1)));
    f.NothingLeft();
  }
  {
    // Tensors may take a sixteenth of the GPU's memory, and each takes three times its bytes.
    Fixture f({.gpus = {0}, .machine = {.gpu_memory_bytes = 16 * 12 * kMiB}});
    pipeline::TensorSpec spec = f.spec;
    spec.collective.element_count = kMiB;
    const absl::Status refused = f.stage->MakeDirect(TensorIndex{0}, spec, 1).status();
    CHECK(absl::IsResourceExhausted(refused));
    CHECK_THAT(std::string(refused.message()), Contains("no more than 12 MiB"));
    spec.collective.element_count /= 2;
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

TEST_CASE("GpuDirect: a held result is fetched in its pieces, with those that came in frames",
          "[gpu]") {
  Fixture f({.gpus = {0}, .elements = 262'145, .direct = true});
  f.RoundTrip();
  std::vector<std::byte> held(f.spec.bytes());
  // The pieces are cut elsewhere than when the result came.
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
  // These are the bytes that CheckResult() read.
  std::memcpy(taken.data(), f.ranks[0]->host.data(), taken.size());
  CHECK(held == taken);
  f.NothingLeft();
}

TEST_CASE("GpuDirect: a lost GPU with a NIC's memory ends the job, and the text names it",
          "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{1, 1}, std::vector<size_t>{0, 1});
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = gpus, .direct = true, .seed = seed});
    f.PushAll();
    const int64_t moment = f.clock.NowNs() + static_cast<int64_t>(f.random.Below(300'000));
    f.RunUntil([&] { return f.clock.NowNs() >= moment || f.ready_ranks.size() == 2; });
    f.LoseContext(f.home);
    REQUIRE(f.RunUntil([&] { return !f.failed.empty(); }));
    CHECK_THAT(f.failed,
               Contains("Fake GPU " + std::to_string(f.home)) && Contains("--gpu_direct=off"));
  }
}

TEST_CASE("GpuDirect: a rank that dies at any moment leaves nothing on several GPUs", "[gpu]") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = {0, 1}, .direct = true, .seed = seed});
    f.RoundTrip();
    f.PushAll();
    f.RunUntilSomeMoment(1'500'000);
    f.ranks[1].reset();  // Its work is dropped, and its events are never done.
    f.ranks.pop_back();
    f.open_tickets.clear();  // The job has failed.
    f.stage->Abandon();
    for (uint32_t i = 0; i < 2; ++i) f.stage->OnRankLeft(LocalRank{i});
    REQUIRE(f.RunUntil([&] { return f.stage->IsIdle(); }));
    f.NothingLeft();
  }
}

TEST_CASE("GpuDirect: a GPU stays open while a NIC has memory there", "[gpu]") {
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
