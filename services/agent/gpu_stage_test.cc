// SPDX-License-Identifier: Apache-2.0
// The stage on fake GPUs in virtual time: what it sums, what it survives, what it leaves behind.
#include "services/agent/gpu_stage.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/gpu/fake/fake_machine.h"
#include "libs/runtime/manual_clock.h"

namespace talweg::agent {
namespace {

using gpu::fake::CollectiveFault;
using gpu::fake::FakeMachine;
using gpu::fake::FakeMachineOptions;
using pipeline::TensorIndex;

constexpr int64_t kStepNs = 20'000;

// Buries when it is told to: an abort that takes its time, or for ever.
class SlowGraveyard final : public Graveyard {
 public:
  uint64_t Bury(std::unique_ptr<gpu::Communicator> communicator) override {
    waiting_[next_] = std::move(communicator);
    return next_++;
  }
  bool IsBuried(uint64_t name) override {
    if (holds) return false;
    waiting_.erase(name);
    return true;
  }
  size_t waiting() const { return waiting_.size(); }
  void Clear() { waiting_.clear(); }
  bool holds = false;

 private:
  uint64_t next_ = 1;
  std::map<uint64_t, std::unique_ptr<gpu::Communicator>> waiting_;
};

// A process with one gradient on a fake GPU.
struct TestRank {
  TestRank(FakeMachine& machine, size_t gpu, uint64_t bytes)
      : platform(machine.NewProcess()), device(*platform->Open(machine.uuid(gpu))) {
    memory = *device->Allocate(bytes + 512);
    host = *device->AllocateHost(bytes);
    stream = *device->NewStream(gpu::StreamPriority::kNormal);
    done = *device->NewEvent(gpu::EventScope::kProcess);
  }
  gpu::DeviceSpan tensor() const { return memory.Part(256, host.size()); }

  std::unique_ptr<gpu::Platform> platform;
  std::unique_ptr<gpu::Device> device;
  gpu::DeviceSpan memory;
  std::span<std::byte> host;
  gpu::StreamId stream;
  gpu::EventId done;
  gpu::EventId pushed;
  gpu::EventId taken;
  uint32_t buffer = 0;
};

// An agent's surroundings: one tensor of 32-bit integers, cut into slices; a "network" that doubles
// what this node contributes, or none.
class Fixture final : public HostTensors, public GpuEvents {
 public:
  struct Setup {
    std::vector<size_t> gpus;  // Of each rank.
    uint64_t elements = 300'001;
    uint64_t slice_bytes = 256 * kKiB;
    bool standalone = false;
    bool pinned = true;
    DType dtype = DType::kI32;
    Op op = Op::kSum;
    uint64_t seed = 1;
    FakeMachineOptions machine;
    GpuStageOptions stage = {.piece_bytes = kMiB, .piece_bytes_min = 64 * kKiB};
  };

  explicit Fixture(Setup given) : setup(std::move(given)), random(setup.seed) {
    FakeMachineOptions options = setup.machine;
    options.gpu_count = 4;
    options.seed = setup.seed;
    machine = std::make_unique<FakeMachine>(clock, options);
    spec = {.name = "w", .dtype = setup.dtype, .op = setup.op, .element_count = setup.elements};
    send.resize(spec.bytes());
    for (auto& result : results) result.resize(spec.bytes());
    platform = machine->NewProcess();
    stage = std::make_unique<GpuStage>(setup.stage, *platform, *this, graveyard, *this);
    for (const size_t gpu : setup.gpus) AddRank(gpu);
  }
  ~Fixture() override {
    graveyard.holds = false;
    for (int i = 0; i < 3; ++i) stage->Poll(clock.NowNs());
    stage.reset();
    graveyard.Clear();
  }

  void AddRank(size_t gpu) {
    ranks.push_back(std::make_unique<TestRank>(*machine, gpu, spec.bytes()));
    Introduce(ranks.size() - 1);
  }
  void Introduce(size_t index) {
    TestRank& rank = *ranks[index];
    const LocalRank number{static_cast<uint32_t>(index)};
    const auto exported = stage->Export(number, rank.device->info().uuid, 100 + number.value(),
                                        *rank.device->Export(rank.memory));
    INFO(exported.status().ToString());
    REQUIRE(exported.ok());
    CHECK(exported->bytes == rank.memory.bytes);
    rank.buffer = exported->buffer;
    Place(number);
  }
  void Place(LocalRank number) {
    TestRank& rank = *ranks[number.value()];
    const auto placed = stage->Place(number, TensorIndex{0}, rank.buffer);
    REQUIRE(placed.ok());
    rank.pushed = *rank.device->ImportEvent(placed->pushed);
    rank.taken = *rank.device->ImportEvent(placed->taken);
  }

  // HostTensors
  const pipeline::TensorSpec& Spec(TensorIndex) const override { return spec; }
  std::span<std::byte> Writable(const pipeline::SliceBytes& slice) const override {
    auto& all =
        slice.memory == pipeline::Memory::kSendBuffer ? send : results[slice.round.value() & 1];
    return std::span(all).subspan(slice.offset_bytes, slice.length_bytes);
  }
  std::span<const std::byte> Contribution(const pipeline::SliceBytes& slice,
                                          LocalRank) const override {
    return std::span(host_contribution).subspan(slice.offset_bytes, slice.length_bytes);
  }
  std::span<std::byte> Pinnable(TensorIndex) const override {
    return setup.pinned ? std::span(send) : std::span<std::byte>();
  }

  // GpuEvents
  void OnGradientReady(LocalRank rank, TensorIndex, Round ready, int32_t) override {
    CHECK(ready == round);
    CHECK(stage->HasGradients(TensorIndex{0}, round));
    ready_ranks.push_back(rank);
    if (ready_ranks.size() == ranks.size()) StartSlices();
  }
  bool ReduceWanted(uint64_t ticket) override { return open_tickets.contains(ticket); }
  void OnReduced(uint64_t ticket, uint64_t) override {
    REQUIRE(open_tickets.erase(ticket) == 1);
    if (!open_tickets.empty()) return;
    if (!setup.standalone) {  // The network: two nodes that are alike.
      auto& result = results[round.value() & 1];
      for (size_t i = 0; i < setup.elements; ++i) {
        uint32_t value;
        std::memcpy(&value, &send[i * 4], 4);
        value *= 2;
        std::memcpy(&result[i * 4], &value, 4);
      }
    }
    stage->Deliver({.tensor = TensorIndex{0}, .round = round});
  }
  void OnDelivered(const pipeline::CompleteRound& complete) override {
    CHECK(complete.round == round);
    delivered = true;
  }
  void OnUnexported(LocalRank rank, uint32_t request) override {
    unexported.emplace_back(rank, request);
  }
  void OnEventsLost(LocalRank number) override {
    TestRank& rank = *ranks[number.value()];
    rank.device->DestroyEvent(rank.pushed);
    rank.device->DestroyEvent(rank.taken);
    Place(number);
    ++placed_again;
    if (delivered) return;
    REQUIRE(rank.device->Record(rank.pushed, rank.stream).ok());
    REQUIRE(stage->Push(number, TensorIndex{0}, round, 0, {rank.buffer, 256, true}).ok());
  }
  void OnGpuFailed(const std::string& text) override { failed = text; }
  void OnGpuNote(const std::string& text) override { notes.push_back(text); }

  void StartSlices() {
    for (uint64_t at = 0; at < spec.bytes(); at += setup.slice_bytes) {
      pipeline::ReduceSlice reduce{
          .ticket = next_ticket++,
          .target = {.tensor = TensorIndex{0},
                     .round = round,
                     .memory = setup.standalone ? pipeline::Memory::kResult
                                                : pipeline::Memory::kSendBuffer,
                     .offset_bytes = at,
                     .length_bytes =
                         static_cast<uint32_t>(std::min(setup.slice_bytes, spec.bytes() - at))},
          .is_final = setup.standalone};
      for (uint32_t i = 0; i < ranks.size() && !root; ++i) reduce.inputs.push_back(LocalRank{i});
      if (root) reduce.inputs.push_back(*root);
      open_tickets.insert(reduce.ticket);
      stage->Reduce(reduce);
    }
  }

  uint32_t ValueOf(size_t rank, size_t i) const {
    return static_cast<uint32_t>((rank + 1) * 1'000'003 + i * 7 + round.value() * 13);
  }
  void Push(size_t rank) {
    TestRank& from = *ranks[rank];
    for (size_t i = 0; i < setup.elements; ++i) {
      const uint32_t value = ValueOf(rank, i);
      std::memcpy(&from.host[i * 4], &value, 4);
    }
    REQUIRE(from.device->CopyToDevice(from.stream, from.tensor(), from.host).ok());
    REQUIRE(from.device->Record(from.pushed, from.stream).ok());
    REQUIRE(stage
                ->Push(LocalRank{static_cast<uint32_t>(rank)}, TensorIndex{0}, round, 0,
                       {from.buffer, 256})
                .ok());
  }
  void PushAll() {
    round = round.Next();
    ready_ranks.clear();
    delivered = false;
    for (size_t i = 0; i < ranks.size(); ++i) Push(i);
  }
  bool RunUntil(const std::function<bool()>& done, int steps = 20'000) {
    for (int i = 0; i < steps; ++i) {
      stage->Poll(clock.NowNs());
      if (done()) return true;
      clock.Advance(static_cast<int64_t>(1 + random.Below(kStepNs)));
      machine->Advance();
    }
    return false;
  }
  // What rank `rank` finds in its tensor.
  void CheckResult(size_t rank) {
    TestRank& at = *ranks[rank];
    REQUIRE(at.device->Wait(at.stream, at.taken).ok());
    REQUIRE(at.device->CopyToHost(at.stream, at.host, at.tensor()).ok());
    REQUIRE(at.device->Record(at.done, at.stream).ok());
    REQUIRE(RunUntil([&] { return *at.device->Query(at.done); }));
    size_t wrong = 0;
    for (size_t i = 0; i < setup.elements; ++i) {
      uint32_t want = 0;
      for (size_t r = 0; r < ranks.size(); ++r) want += ValueOf(r, i);
      if (!setup.standalone) want *= 2;
      uint32_t got;
      std::memcpy(&got, &at.host[i * 4], 4);
      wrong += got != want;
    }
    CHECK(wrong == 0);
  }
  void RoundTrip() {
    PushAll();
    INFO("failed: " << failed);
    REQUIRE(RunUntil([&] { return delivered || !failed.empty(); }));
    REQUIRE(failed.empty());
    for (size_t i = 0; i < ranks.size(); ++i) CheckResult(i);
  }
  // The agent's own.
  void LoseContext(size_t gpu) {
    machine->LoseContext(*stage->node().gpus().at(machine->uuid(gpu)).device);
  }
  void NothingLeft() {
    for (size_t i = 0; i < ranks.size(); ++i)
      stage->OnRankLeft(LocalRank{static_cast<uint32_t>(i)});
    CHECK(RunUntil([&] { return stage->IsIdle() && stage->context_count() == 0; }));
    CHECK(machine->mapping_count() == 0);
    ranks.clear();
    for (size_t gpu = 0; gpu < 4; ++gpu) {
      CHECK(machine->allocated_bytes(gpu) == 0);
      CHECK(machine->context_count(gpu) == 0);
    }
    CHECK(machine->pinned_bytes() == 0);
    CHECK(machine->violations() == std::vector<std::string>{});
  }

  const Setup setup;
  Random random;
  ManualClock clock;
  std::unique_ptr<FakeMachine> machine;
  pipeline::TensorSpec spec;
  mutable std::vector<std::byte> send;
  mutable std::vector<std::byte> results[2];
  std::vector<std::byte> host_contribution;
  std::optional<LocalRank> root;  // Of a broadcast.
  SlowGraveyard graveyard;
  std::unique_ptr<gpu::Platform> platform;
  std::unique_ptr<GpuStage> stage;
  std::vector<std::unique_ptr<TestRank>> ranks;
  Round round;
  std::vector<LocalRank> ready_ranks;
  std::set<uint64_t> open_tickets;
  uint64_t next_ticket = 1;
  bool delivered = true;
  int placed_again = 0;
  std::vector<std::pair<LocalRank, uint32_t>> unexported;
  std::string failed;
  std::vector<std::string> notes;
};

TEST_CASE("GpuStage: sums of every spread of ranks over GPUs", "[gpu]") {
  const auto gpus =
      GENERATE(std::vector<size_t>{0}, std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1},
               std::vector<size_t>{1, 0, 1}, std::vector<size_t>{0, 1, 2, 3, 2});
  const bool standalone = GENERATE(false, true);
  const bool pinned = GENERATE(false, true);
  const uint64_t elements = GENERATE(1u, 7u, 300'001u);
  Fixture f({.gpus = gpus, .elements = elements, .standalone = standalone, .pinned = pinned});
  for (int i = 0; i < 3; ++i) f.RoundTrip();
  const GpuStageCounters& counters = f.stage->counters();
  const std::set<size_t> different(gpus.begin(), gpus.end());
  CHECK((counters.pieces_by_collective > 0) == (different.size() > 1));
  CHECK((counters.pieces_by_kernel > 0) == (different.size() == 1 && gpus.size() > 1));
  CHECK(f.notes == std::vector<std::string>{});
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
  f.RoundTrip();  // While the abort may still hang.
  f.graveyard.holds = false;
  f.clock.Advance(2'000'000'000);
  const uint64_t before = f.stage->counters().pieces_by_collective;
  f.RoundTrip();
  CHECK(f.stage->counters().pieces_by_collective > before);  // Made anew.
  f.NothingLeft();
}

TEST_CASE("GpuStage: an abort that never ends holds no rank's memory", "[gpu]") {
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
  REQUIRE(f.RunUntil([&] { return f.stage->IsIdle(); }));
  CHECK(f.machine->mapping_count() == 0);
  CHECK(f.stage->context_count() == 2);  // They wait for the abort.
  CHECK(f.machine->violations() == std::vector<std::string>{});
  f.graveyard.holds = false;
  f.NothingLeft();
}

TEST_CASE("GpuStage: without memory for staging it sums on the host, until there is some",
          "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{0, 0}, std::vector<size_t>{0, 1});
  FakeMachineOptions machine;
  machine.gpu_memory_bytes = 512 * kMiB;
  // Beside contexts and gradients: nothing, a little, enough for small pieces.
  const uint64_t left = GENERATE(uint64_t{0}, 300 * kKiB, 3 * kMiB);
  Fixture f({.gpus = {}, .machine = machine});
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    const auto ranks = static_cast<uint64_t>(std::count(gpus.begin(), gpus.end(), gpu));
    f.machine->OccupyMemory(
        gpu, 512 * kMiB - (1 + ranks) * 64 * kMiB - ranks * (f.spec.bytes() + 512) - left);
  }
  // All have their gradients before the agent takes what is left.
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

TEST_CASE("GpuStage: no memory for a context, or to pin, is the rank's to know", "[gpu]") {
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
    const int64_t moment = f.clock.NowNs() + static_cast<int64_t>(f.random.Below(1'200'000));
    f.RunUntil([&] { return f.clock.NowNs() >= moment; });
    f.ranks[1].reset();  // Its work is dropped, its events are never done.
    f.ranks.pop_back();
    f.stage->OnRankLeft(LocalRank{1});
    f.open_tickets.clear();  // The job has failed.
    f.stage->Abandon();
    f.NothingLeft();
  }
}

TEST_CASE("GpuStage: a broadcast from a rank in host memory, to one on a GPU", "[gpu]") {
  const bool pinned = GENERATE(false, true);
  Fixture f({.gpus = {0}, .elements = 1000, .pinned = pinned, .op = Op::kBroadcast});
  f.host_contribution.assign(f.spec.bytes(), std::byte{5});
  f.root = LocalRank{7};
  f.PushAll();
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  CHECK(f.send == f.host_contribution);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a push counts when its event is done, not before", "[gpu]") {
  Fixture f({.gpus = {0, 0}});
  f.round = f.round.Next();
  f.delivered = false;
  f.Push(0);
  f.stage->Poll(f.clock.NowNs());
  CHECK(f.ready_ranks.empty());
  f.Push(1);
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  f.CheckResult(0);
  f.NothingLeft();
}

TEST_CASE("GpuStage: what a rank may not say", "[gpu]") {
  Fixture f({.gpus = {0, 1}});
  const auto push = [&](uint32_t buffer, uint64_t offset) {
    return std::string(
        f.stage->Push(LocalRank{0}, TensorIndex{0}, Round{1}, 0, {buffer, offset}).message());
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(push(1, 0), Contains("buffer 1, which it has not exported"));
  CHECK_THAT(push(0, 254), Contains("offset 254"));
  CHECK_THAT(push(0, 516), Contains("offset 516"));
  CHECK_THAT(push(0, ~uint64_t{0}), Contains("offset 18446744073709551615"));
  CHECK_FALSE(f.stage->Place(LocalRank{0}, TensorIndex{0}, 7).ok());
  CHECK_FALSE(f.stage->Place(LocalRank{5}, TensorIndex{0}, 0).ok());
  CHECK_FALSE(f.stage->Unexport(LocalRank{0}, 1, 3).ok());
  f.RoundTrip();
  f.NothingLeft();
}

TEST_CASE("GpuStage: memory is given back when no round and no copy needs it", "[gpu]") {
  Fixture f({.gpus = {0, 0}});
  f.PushAll();
  const absl::Status busy = f.stage->Unexport(LocalRank{0}, 9, 0);
  CHECK(busy.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(busy.message()), Catch::Matchers::Contains("its round 1 is open"));
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  REQUIRE(f.stage->Unexport(LocalRank{0}, 9, 0).ok());
  REQUIRE(f.RunUntil([&] { return !f.unexported.empty(); }));
  CHECK(f.unexported[0] == std::pair(LocalRank{0}, 9u));
  CHECK(f.machine->mapping_count() == 1);
  CHECK(f.ranks[0]->device->Free(f.ranks[0]->memory).ok());  // The fake objects if it is mapped.
  CHECK_FALSE(f.stage->Push(LocalRank{0}, TensorIndex{0}, Round{2}, 0, {}).ok());
  f.NothingLeft();
}

TEST_CASE("GpuStage: a context that is lost at any moment is made anew", "[gpu]") {
  const auto gpus = GENERATE(std::vector<size_t>{1}, std::vector<size_t>{1, 1},
                             std::vector<size_t>{0, 1}, std::vector<size_t>{1, 0, 1});
  const bool pinned = GENERATE(false, true);
  int reopened = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    INFO("seed " << seed);
    Fixture f({.gpus = gpus, .elements = 200'001, .pinned = pinned, .seed = seed});
    f.RoundTrip();
    f.PushAll();
    const int64_t moment = f.clock.NowNs() + static_cast<int64_t>(f.random.Below(900'000));
    f.RunUntil([&] { return f.clock.NowNs() >= moment; });
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
  CHECK(reopened == 16);
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
    const int64_t moment = f.clock.NowNs() + static_cast<int64_t>(f.random.Below(400'000));
    f.RunUntil([&] { return f.clock.NowNs() >= moment; });
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

TEST_CASE("GpuStage: a push by an event that is lost counts when it is pushed again", "[gpu]") {
  Fixture f({.gpus = {1, 1}});
  f.RoundTrip();
  f.LoseContext(1);
  f.PushAll();  // Nobody knows of it yet.
  REQUIRE(f.RunUntil([&] { return f.delivered; }));
  CHECK(f.placed_again == 2);
  for (size_t i = 0; i < f.ranks.size(); ++i) f.CheckResult(i);
  f.NothingLeft();
}

TEST_CASE("GpuStage: a GPU that does not come back ends the job with its name", "[gpu]") {
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
