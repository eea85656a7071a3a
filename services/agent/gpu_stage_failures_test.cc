// SPDX-License-Identifier: Apache-2.0
// The faults that the stage survives, and what is left after them.
#include "libs/runtime/open_descriptors.h"
#include "services/agent/gpu_stage_fixture.h"

namespace talweg::agent {
namespace {

TEST_CASE("GpuStage: a failed collective of one switch takes along the others of its pieces",
          "[gpu]") {
  const auto fault = GENERATE(CollectiveFault::kStartFails, CollectiveFault::kCallFails,
                              CollectiveFault::kError, CollectiveFault::kHang);
  const bool abort_hangs = GENERATE(false, true);
  Fixture f(
      {.gpus = {0, 1, 2, 3},
       .stage = {.topology = TwoSwitches(), .piece_bytes = kMiB, .piece_bytes_min = 64 * kKiB}});
  if (fault != CollectiveFault::kStartFails) f.RoundTrip();
  f.machine->InjectCollectiveFault(fault);
  f.graveyard.holds = abort_hangs;
  f.PushAll();
  REQUIRE(f.RunUntil([&] {
    if (f.stage->counters().collectives_failed == 0) f.clock.Advance(100'000'000);
    return f.delivered || !f.failed.empty();
  }));
  CHECK(f.failed.empty());
  for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
  CHECK(f.stage->counters().pieces_by_host > 0);
  f.RoundTrip();
  f.graveyard.holds = false;
  f.clock.Advance(2'000'000'000);
  const uint64_t before = f.stage->counters().pieces_by_groups;
  f.RoundTrip();
  CHECK(f.stage->counters().pieces_by_groups > before);
  f.NothingLeft();
}

TEST_CASE("GpuStage: collectives that fail are aborted, and the round is summed on the host",
          "[gpu]") {
  const auto fault = GENERATE(CollectiveFault::kStartFails, CollectiveFault::kCallFails,
                              CollectiveFault::kError, CollectiveFault::kHang);
  const bool standalone = GENERATE(false, true);
  const bool abort_hangs = GENERATE(false, true);
  Fixture f({.gpus = {0, 1, 0}, .standalone = standalone});
  if (fault != CollectiveFault::kStartFails) f.RoundTrip();
  f.machine->InjectCollectiveFault(fault);
  f.graveyard.holds = abort_hangs;
  f.PushAll();
  REQUIRE(f.RunUntil([&] {
    if (f.stage->counters().collectives_failed == 0) f.clock.Advance(100'000'000);
    return f.delivered || !f.failed.empty();
  }));
  CHECK(f.failed.empty());
  for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
  CHECK(f.stage->counters().collectives_failed == 1);
  CHECK(f.stage->counters().pieces_by_host > 0);
  REQUIRE(f.notes.size() == 1);
  CHECK_THAT(f.notes[0], Catch::Matchers::Contains("tensor 'w' round") &&
                             Catch::Matchers::Contains("local rank 1 on GPU-fafafafa"));
  f.RoundTrip();  // The abort may still hang meanwhile.
  f.graveyard.holds = false;
  f.clock.Advance(2'000'000'000);
  const uint64_t before = f.stage->counters().pieces_by_collective;
  f.RoundTrip();
  CHECK(f.stage->counters().pieces_by_collective > before);  // The communicator has been made anew.
  f.NothingLeft();
}

TEST_CASE("GpuStage: nothing waits for a GPU while an abort there hangs", "[gpu]") {
  Fixture f({.gpus = {0, 1}});
  f.RoundTrip();
  f.machine->InjectCollectiveFault(CollectiveFault::kHang);
  f.graveyard.holds = true;
  f.PushAll();
  REQUIRE(f.RunUntil([&] {
    if (f.stage->counters().collectives_failed == 0) f.clock.Advance(100'000'000);
    return f.delivered;
  }));
  for (uint32_t i = 0; i < 2; ++i) f.stage->OnRankLeft(LocalRank{i});
  CHECK_FALSE(f.RunUntil([&] { return f.stage->IsIdle(); }));
  CHECK(f.machine->mapping_count() == 2);  // To unmap it would mean to wait for the abort.
  CHECK(f.stage->context_count() == 2);
  CHECK(f.machine->violations() == std::vector<std::string>{});
  f.graveyard.holds = false;
  f.NothingLeft();
}

TEST_CASE("GpuStage: buffers that ranks give back while a collective hangs wait for its end",
          "[gpu]") {
  const bool leaves = GENERATE(false, true);
  Fixture f({.gpus = {0, 1, 0}});
  f.RoundTrip();
  // This buffer has no open round.
  const gpu::DeviceSpan other = *f.ranks[0]->device->Allocate(4096);
  const auto exported =
      f.stage->Export(LocalRank{0}, f.machine->uuid(0), 999, *f.ranks[0]->device->Export(other));
  REQUIRE(exported.ok());
  f.machine->InjectCollectiveFault(CollectiveFault::kHang);
  f.PushAll();
  REQUIRE(f.RunUntil([&] { return f.ready_ranks.size() == 3; }));
  f.RunUntil([] { return false; }, 200);  // The collective hangs by now.
  REQUIRE(f.stage->Unexport(LocalRank{0}, 5, exported->buffer).ok());
  if (leaves) f.stage->OnRankLeft(LocalRank{1});
  f.RunUntil([] { return false; }, 200);
  CHECK(f.unexported.empty());
  CHECK(f.stage->counters().collectives_failed == 0);
  f.clock.Advance(f.setup.stage.collective_deadline_ns);
  REQUIRE(f.RunUntil([&] { return !f.unexported.empty() && f.delivered; }));
  CHECK(f.failed.empty());
  f.NothingLeft();
}

TEST_CASE("GpuStage: without memory for staging it sums on the host, until there is some",
          "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1});
  FakeMachineOptions machine;
  machine.gpu_memory_bytes = 512 * kMiB;
  // What the GPU has left beside contexts and gradients: nothing, a little, or enough for small
  // pieces.
  const uint64_t left = GENERATE(uint64_t{0}, 300 * kKiB, 3 * kMiB);
  Fixture f({.gpus = {}, .machine = machine});
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    const auto ranks = static_cast<uint64_t>(std::count(gpus.begin(), gpus.end(), gpu));
    f.machine->OccupyMemory(
        gpu, 512 * kMiB - (1 + ranks) * 64 * kMiB - ranks * (f.spec.bytes() + 512) - left);
  }
  // All ranks have their gradients before the agent takes what is left.
  for (const size_t gpu : gpus) {
    f.ranks.push_back(std::make_unique<TestRank>(*f.machine, gpu, f.spec.bytes()));
  }
  for (size_t i = 0; i < gpus.size(); ++i) f.Introduce(i);
  f.RoundTrip();
  CHECK((f.stage->counters().pieces_by_host > 0) == (left < kMiB));
  for (size_t gpu = 0; gpu < 2; ++gpu) f.machine->OccupyMemory(gpu, 0);
  REQUIRE(f.stage->Place(LocalRank{0}, TensorIndex{0}, f.ranks[0]->buffer).ok());
  REQUIRE(f.stage->Place(LocalRank{1}, TensorIndex{0}, f.ranks[1]->buffer).ok());
  const uint64_t before = f.stage->counters().pieces_by_host;
  f.RoundTrip();
  CHECK(f.stage->counters().pieces_by_host == before);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a rank hears when there is no memory for a context, or none to pin", "[gpu]") {
  FakeMachineOptions machine;
  const bool pins = GENERATE(false, true);
  if (pins) machine.pinned_bytes_max = 4 * 300'001 + 100;
  Fixture f({.gpus = {}, .machine = machine});
  TestRank rank(*f.machine, 0, f.spec.bytes());
  if (!pins) f.machine->OccupyMemory(0, kGiB);
  const auto exported =
      f.stage->Export(LocalRank{0}, f.machine->uuid(0), 1, *rank.device->Export(rank.memory));
  CHECK(exported.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(f.stage->context_count() == 0);
}

TEST_CASE("GpuStage: a rank that dies at any moment leaves nothing", "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1});
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = gpus, .standalone = seed % 2 == 0, .seed = seed});
    f.RoundTrip();
    f.PushAll();
    f.RunUntilSomeMoment(1'200'000);
    f.ranks[1].reset();  // Its work is dropped, and its events are never done.
    f.ranks.pop_back();
    f.stage->OnRankLeft(LocalRank{1});
    f.open_tickets.clear();  // The job has failed.
    f.stage->Abandon();
    f.NothingLeft();
  }
}

TEST_CASE("GpuStage: a context that is lost at any moment is made anew", "[gpu]") {
  const bool switches = GENERATE(false, true);
  const auto gpus = GENERATE(std::vector<size_t>{1}, std::vector<size_t>{1, 1},
                             std::vector<size_t>{0, 1}, std::vector<size_t>{1, 0, 2});
  const bool pinned = GENERATE(false, true);
  int reopened = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = gpus,
               .elements = 200'001,
               .pinned = pinned,
               .seed = seed,
               .stage = {.topology = switches ? TwoSwitches() : topology::Topology(),
                         .piece_bytes = kMiB,
                         .piece_bytes_min = 64 * kKiB}});
    f.RoundTrip();
    f.PushAll();
    f.RunUntilSomeMoment(900'000);
    const bool early = !f.delivered;
    f.LoseContext(1);
    REQUIRE(f.RunUntil([&] { return f.delivered || !f.failed.empty(); }));
    CHECK(f.failed.empty());
    if (early) {
      for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
    } else {
      f.stage->Poll(f.clock.NowNs());
    }
    f.RoundTrip();
    f.RoundTrip();
    reopened += static_cast<int>(f.stage->counters().gpus_reopened);
    f.NothingLeft();
  }
  CHECK(reopened == 8);
}

TEST_CASE("GpuStage: lost contexts keep no descriptors", "[gpu]") {
  constexpr uint64_t kLosses = 25;
  Fixture f({.gpus = {1, 0}});
  f.RoundTrip();
  const size_t before = runtime::OpenDescriptors();
  for (uint64_t i = 0; i < kLosses; ++i) {
    f.PushAll();
    REQUIRE(f.RunUntil([&] { return f.ready_ranks.size() == 2; }));
    while (f.stage->Poll(f.clock.NowNs()) > 0) {
    }
    f.stage->PrepareToSleep();  // Wake-ups are under way that will not come.
    f.LoseContext(1);
    REQUIRE(f.RunUntil([&] { return f.delivered || !f.failed.empty(); }));
    REQUIRE(f.failed.empty());
  }
  CHECK(f.stage->counters().gpus_reopened == kLosses);
  CHECK(runtime::OpenDescriptors() == before);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a lost context without room is made anew when there is room", "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{1, 1}, std::vector<size_t>{0, 1});
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    // Records take long, so that the moment may lie between a result's copy and its `taken`.
    Fixture f({.gpus = gpus, .seed = seed, .machine = {.costs = {.record_ns = 200'000}}});
    f.RoundTrip();
    f.PushAll();
    f.RunUntilSomeMoment(2'500'000);
    f.machine->OccupyMemory(1, kGiB);
    f.LoseContext(1);
    f.RunUntil(
        [&] {
          f.clock.Advance(100'000'000);
          return false;
        },
        20);
    CHECK(f.failed.empty());
    f.machine->OccupyMemory(1, 0);
    REQUIRE(f.RunUntil([&] {
      f.clock.Advance(100'000'000);
      return f.delivered || !f.failed.empty();
    }));
    CHECK(f.failed.empty());
    f.RoundTrip();
    f.NothingLeft();
  }
}

TEST_CASE("GpuStage: nothing goes to memory that a lost context had pinned", "[gpu]") {
  Fixture f({.gpus = {1, 0}, .op = Op::kCopy});  // GPU 1 pins the memory.
  f.root = LocalRank{1};
  f.starts_slices = false;
  f.round = f.round.Next();
  f.delivered = false;
  f.Push(1);
  REQUIRE(f.RunUntil([&] { return f.ready_ranks.size() == 1; }));
  f.Push(0);
  f.StartSlices();  // All slices come from GPU 0.
  f.LoseContext(1);
  REQUIRE(f.RunUntil([&] { return f.open_tickets.empty() || !f.failed.empty(); }));
  CHECK(f.failed.empty());
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  f.NothingLeft();
}

TEST_CASE("GpuStage: alone, a lost context is made anew unless results were being written",
          "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{1, 1}, std::vector<size_t>{0, 1});
  int failed = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = gpus, .standalone = true, .seed = seed});
    f.RoundTrip();
    f.PushAll();
    f.RunUntilSomeMoment(400'000);
    f.LoseContext(1);
    REQUIRE(f.RunUntil([&] { return f.delivered || !f.failed.empty(); }));
    if (f.failed.empty()) {
      for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
      f.RoundTrip();
      f.NothingLeft();
    } else {
      ++failed;
      CHECK_THAT(f.failed, Catch::Matchers::Contains("Fake GPU 1") &&
                               Catch::Matchers::Contains("tensor 'w' round 2") &&
                               Catch::Matchers::Contains("over the contributions"));
    }
  }
  CHECK(failed > 0);
  CHECK(failed < 16);
}

TEST_CASE("GpuStage: a push whose event is lost counts when it is pushed again", "[gpu]") {
  Fixture f({.gpus = {1, 1}});
  f.RoundTrip();
  f.LoseContext(1);
  f.PushAll();  // No process knows of the loss yet.
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  CHECK(f.placed_again == 2);
  for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a GPU that does not come back ends the job, and the text names it", "[gpu]") {
  Fixture f({.gpus = {0, 1}});
  f.RoundTrip();
  f.PushAll();
  f.machine->LoseGpu(1);
  const int64_t begin_ns = f.clock.NowNs();
  REQUIRE(f.RunUntil([&] {
    f.clock.Advance(10'000'000);
    return !f.failed.empty();
  }));
  CHECK(f.clock.NowNs() - begin_ns >= f.setup.stage.reopen_deadline_ns);
  CHECK_THAT(f.failed, Catch::Matchers::Contains("Fake GPU 1") &&
                           Catch::Matchers::Contains("not opened again within 30 s"));
}

TEST_CASE("GpuStage: a process fails at once if the driver gives it no other context", "[gpu]") {
  Fixture f({.gpus = {0, 1}});
  f.RoundTrip();
  f.PushAll();
  f.machine->RefuseContexts(absl::FailedPreconditionError("no other context"));
  f.LoseContext(1);
  const int64_t begin_ns = f.clock.NowNs();
  REQUIRE(f.RunUntil([&] { return !f.failed.empty(); }));
  CHECK(f.clock.NowNs() - begin_ns < f.setup.stage.reopen_deadline_ns / 10);
  CHECK_THAT(f.failed, Catch::Matchers::Contains("Fake GPU 1") &&
                           Catch::Matchers::Contains("no other context"));
}

TEST_CASE("GpuStage: ranks that leave while a GPU is lost leave nothing", "[gpu]") {
  Fixture f({.gpus = {0, 1}});
  f.RoundTrip();
  f.PushAll();
  f.machine->LoseGpu(1);
  REQUIRE(f.RunUntil([&] { return !f.notes.empty(); }));
  f.open_tickets.clear();
  f.stage->Abandon();
  f.NothingLeft();
}

}  // namespace
}  // namespace talweg::agent
