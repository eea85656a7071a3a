// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_STAGE_FIXTURE_H_
#define TALWEG_SERVICES_AGENT_GPU_STAGE_FIXTURE_H_

// The stage on fake GPUs in virtual time, with ranks that push to it.

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/gpu/fake/fake_machine.h"
#include "libs/runtime/manual_clock.h"
#include "libs/topology/topology.h"
#include "libs/wire/frames.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {

using gpu::fake::CollectiveFault;
using gpu::fake::FakeMachine;
using gpu::fake::FakeMachineOptions;
using pipeline::TensorIndex;

constexpr int64_t kStepNs = 20'000;

// Finishes an abort only when it is told to, like an abort that takes long or for ever.
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

// An agent's surroundings: one tensor of 32-bit integers, cut into slices, and a "network" that
// doubles what this node contributes, or none.
class Fixture final : public HostTensors, public GpuEvents {
 public:
  struct Setup {
    std::vector<size_t> gpus;  // Each rank's.
    uint64_t elements = 300'001;
    uint64_t slice_bytes = 256 * kKiB;
    bool standalone = false;
    bool pinned = true;
    bool direct = false;  // A NIC has the tensor on one of the ranks' GPUs.
    std::string name = "w";
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
    spec = {.name = setup.name,
            .collective = Collective::Of(setup.dtype, setup.op, setup.elements)};
    send.resize(spec.bytes());
    for (auto& result : results) result.resize(spec.bytes());
    platform = machine->NewProcess();
    stage = std::make_unique<GpuStage>(setup.stage, *platform, *this, graveyard, *this);
    for (const size_t gpu : setup.gpus) AddRank(gpu);
    if (setup.direct) MakeDirect();
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
    const auto exported = stage->Export(number, rank.device->info().uuid, next_buffer_id++,
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

  void MakeDirect() {
    const auto made = stage->MakeDirect(TensorIndex{0}, spec, rank_count());
    REQUIRE(made.ok());
    home = static_cast<size_t>(made->send.device);  // A number that a fake GPU has.
    direct_send = {made->send.address, made->send.bytes};
    for (size_t parity = 0; parity < 2; ++parity) {
      direct_results[parity] = {made->results[parity].address, made->results[parity].bytes};
    }
  }
  uint32_t rank_count() const { return static_cast<uint32_t>(ranks.size() + host_ranks); }
  gpu::Device& AgentsDevice(size_t gpu) {
    return *stage->node().gpus().at(machine->uuid(gpu)).device;
  }
  // The NIC's part of the network. It sends each slice when it may, and receives the results of two
  // equal nodes.
  bool IsShort(uint32_t bytes) const { return bytes <= wire::kInlineBytesMax; }
  void SendDirect(const pipeline::SliceBytes& slice) {
    if (IsShort(slice.length_bytes)) return;  // The host's.
    const gpu::DeviceSpan from = direct_send.Part(slice.offset_bytes, slice.length_bytes);
    machine->NicReads(AgentsDevice(home), from,
                      std::span(send).subspan(slice.offset_bytes, slice.length_bytes));
  }
  void ReceiveDirect() {
    const size_t parity = round.value() & 1;
    for (uint64_t at = 0; at < spec.bytes(); at += setup.slice_bytes) {
      const auto bytes = static_cast<uint32_t>(std::min(setup.slice_bytes, spec.bytes() - at));
      const std::span<const std::byte> from = std::span(results[parity]).subspan(at, bytes);
      if (IsShort(bytes)) {
        const pipeline::SliceBytes slice{.tensor = TensorIndex{0},
                                         .round = round,
                                         .memory = pipeline::Memory::kResult,
                                         .offset_bytes = at,
                                         .length_bytes = bytes};
        REQUIRE(stage->StoreResult(slice, from).ok());
      } else {
        machine->NicWrites(AgentsDevice(home), direct_results[parity].Part(at, bytes), from);
      }
    }
    // The host's bytes mean nothing.
    std::fill(results[parity].begin(), results[parity].end(), std::byte{0xdd});
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
  std::span<std::byte> PinnableSend(TensorIndex) const override {
    return setup.pinned ? std::span(send) : std::span<std::byte>();
  }
  std::array<std::span<std::byte>, 2> PinnableResults(TensorIndex) const override {
    if (!setup.pinned) return {};
    return {std::span(results[0]), std::span(results[1])};
  }

  // GpuEvents
  void OnGradientReady(LocalRank rank, TensorIndex, Round ready, int32_t) override {
    CHECK(ready == round);
    CHECK(stage->HasGradients(TensorIndex{0}, round));
    ready_ranks.push_back(rank);
    if (starts_slices && ready_ranks.size() == ranks.size()) StartSlices();
  }
  bool ReduceWanted(uint64_t ticket) override { return open_tickets.contains(ticket); }
  void OnReduced(uint64_t ticket, uint64_t) override {
    REQUIRE(open_tickets.contains(ticket));
    if (setup.direct) SendDirect(open_tickets.at(ticket));
    open_tickets.erase(ticket);
    if (!open_tickets.empty()) return;
    if (!setup.standalone) {  // The network: two nodes that are alike.
      auto& result = results[round.value() & 1];
      for (size_t i = 0; i < setup.elements; ++i) {
        uint32_t value;
        std::memcpy(&value, &send[i * 4], 4);
        value *= 2;
        std::memcpy(&result[i * 4], &value, 4);
      }
      if (setup.direct) ReceiveDirect();
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
      for (uint32_t i = 0; i < rank_count() && !root; ++i) reduce.inputs.push_back(LocalRank{i});
      if (root) reduce.inputs.push_back(*root);
      open_tickets.emplace(reduce.ticket, reduce.target);
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
    if (host_ranks > 0) FillHostContribution();
    for (size_t i = 0; i < ranks.size(); ++i) Push(i);
    if (ranks.empty()) StartSlices();
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
  // Runs to a moment less than `within_ns` from now, which the seed chooses.
  void RunUntilSomeMoment(uint64_t within_ns) {
    const int64_t moment_ns = clock.NowNs() + static_cast<int64_t>(random.Below(within_ns));
    RunUntil([&] { return clock.NowNs() >= moment_ns; });
  }
  // Runs like an agent that sleeps whenever it may, and that descriptors wake, or the stage's
  // deadline. Returns false if it would sleep for ever.
  bool SleepUntil(const std::function<bool()>& done) {
    for (;;) {
      while (stage->Poll(clock.NowNs()) > 0) ++polls;
      ++polls;
      if (done()) return true;
      const std::optional<int64_t> at_ns = stage->PrepareToSleep();
      timed_sleeps += at_ns.has_value() && ready_ranks.size() == ranks.size();
      pollfd wakeup = {.fd = stage->WaitDescriptor(), .events = POLLIN, .revents = 0};
      while (poll(&wakeup, 1, 0) == 0 && (!at_ns || clock.NowNs() < *at_ns)) {
        const std::optional<int64_t> end_ns = machine->NextEndNs();
        if (!end_ns && !at_ns) return false;
        const int64_t next_ns = std::min(end_ns.value_or(INT64_MAX), at_ns.value_or(INT64_MAX));
        clock.Advance(std::max<int64_t>(next_ns - clock.NowNs(), 0));
        machine->Advance();
      }
      stage->DrainWakeups();
    }
  }
  // Checks the bytes in the tensor of `rank`.
  void CheckResult(size_t rank) {
    TestRank& at = *ranks[rank];
    REQUIRE(at.device->Wait(at.stream, at.taken).ok());
    REQUIRE(at.device->CopyToHost(at.stream, at.host, at.tensor()).ok());
    REQUIRE(at.device->Record(at.done, at.stream).ok());
    REQUIRE(RunUntil([&] { return *at.device->Query(at.done); }));
    CHECK(IsResult(at.host));
  }
  bool IsResult(std::span<const std::byte> bytes) const {
    size_t wrong = 0;
    for (size_t i = 0; i < setup.elements; ++i) {
      uint32_t want = 0;
      for (size_t r = 0; r < rank_count(); ++r) want += ValueOf(r, i);
      if (!setup.standalone) want *= 2;
      uint32_t got;
      std::memcpy(&got, &bytes[i * 4], 4);
      wrong += got != want;
    }
    return wrong == 0;
  }
  // The ranks after those on GPUs, if there are any, push from host memory.
  void FillHostContribution() {
    host_contribution.resize(spec.bytes());
    for (size_t i = 0; i < setup.elements; ++i) {
      const uint32_t value = ValueOf(ranks.size(), i);
      std::memcpy(&host_contribution[i * 4], &value, 4);
    }
  }
  void RoundTrip() {
    PushAll();
    INFO("failed: " << failed);
    REQUIRE(RunUntil([&] { return delivered || !failed.empty(); }));
    REQUIRE(failed.empty());
    for (size_t i = 0; i < ranks.size(); ++i) CheckResult(i);
  }
  // Loses the agent's own context.
  void LoseContext(size_t gpu) {
    machine->LoseContext(*stage->node().gpus().at(machine->uuid(gpu)).device);
  }
  void NothingLeft() {
    if (setup.direct) {
      RunUntil([&] { return delivered; }, 1);
      stage->ForgetTensors();
    }
    for (uint32_t i = 0; i < rank_count(); ++i) stage->OnRankLeft(LocalRank{i});
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
  runtime::ManualClock clock;
  std::unique_ptr<FakeMachine> machine;
  pipeline::TensorSpec spec;
  mutable std::vector<std::byte> send;
  mutable std::vector<std::byte> results[2];
  std::vector<std::byte> host_contribution;
  std::optional<LocalRank> root;  // A broadcast's.
  size_t host_ranks = 0;          // These push host_contribution, after the others.
  size_t home = 0;                // The GPU of a tensor that a NIC has.
  gpu::DeviceSpan direct_send;
  gpu::DeviceSpan direct_results[2];
  SlowGraveyard graveyard;
  std::unique_ptr<gpu::Platform> platform;
  std::unique_ptr<GpuStage> stage;
  std::vector<std::unique_ptr<TestRank>> ranks;
  Round round;
  std::vector<LocalRank> ready_ranks;
  bool starts_slices = true;  // When all are ready.
  std::map<uint64_t, pipeline::SliceBytes> open_tickets;
  uint64_t next_ticket = 1;
  uint64_t next_buffer_id = 100;
  bool delivered = true;
  int placed_again = 0;
  int polls = 0;
  int timed_sleeps = 0;
  std::vector<std::pair<LocalRank, uint32_t>> unexported;
  std::string failed;
  std::vector<std::string> notes;
};

// GPUs 0 and 1 behind one switch, 2 and 3 behind another.
inline topology::Topology TwoSwitches() {
  std::ifstream file("libs/topology/testdata/two_switches_four_gpus.xml");
  REQUIRE(file);
  return topology::ParseTopology(std::string(std::istreambuf_iterator<char>(file), {})).value();
}

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_STAGE_FIXTURE_H_
