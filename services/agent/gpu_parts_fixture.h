// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_PARTS_FIXTURE_H_
#define TALWEG_SERVICES_AGENT_GPU_PARTS_FIXTURE_H_

// Parts of the stage by themselves, on fake GPUs in virtual time.

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/agent/gpu_deliveries.h"
#include "services/agent/gpu_failures.h"
#include "services/agent/gpu_homes.h"
#include "services/agent/gpu_lanes.h"
#include "services/agent/gpu_paths.h"
#include "services/agent/gpu_pins.h"
#include "services/agent/gpu_releases.h"
#include "services/agent/gpu_reopening.h"
#include "services/agent/gpu_stage_fixture.h"
#include "services/agent/gpu_tasks.h"

namespace talweg::agent {

// The parts, with one tensor of 1000 32-bit integers, and a record of the events that they send.
struct Parts : public HostTensors, public GpuEvents {
  explicit Parts(const FakeMachineOptions& given = {.gpu_count = 4}) : machine(clock, given) {}

  // Adds a rank that has exported memory for the tensor on the GPU.
  TestRank& AddRank(size_t gpu) {
    ranks.push_back(std::make_unique<TestRank>(machine, gpu, spec.bytes()));
    TestRank& rank = *ranks.back();
    const LocalRank number{static_cast<uint32_t>(ranks.size() - 1)};
    REQUIRE(node.Open(machine.uuid(gpu)).ok());
    const auto exported = buffers.Export(number, machine.uuid(gpu), next_buffer_id++,
                                         *rank.device->Export(rank.memory));
    REQUIRE(exported.ok());
    rank.buffer = exported->buffer;
    return rank;
  }
  void Place(uint32_t number) {
    TestRank& rank = *ranks[number];
    REQUIRE(gradients.Place(LocalRank{number}, TensorIndex{0}, rank.device->info().uuid).ok());
    const auto placed = gradients.ExportEvents(LocalRank{number}, TensorIndex{0});
    REQUIRE(placed.ok());
    rank.pushed = *rank.device->ImportEvent(placed->pushed);
    rank.taken = *rank.device->ImportEvent(placed->taken);
  }
  // Posts what writes a gradient to the rank's stream.
  void Write(uint32_t number) {
    TestRank& rank = *ranks[number];
    REQUIRE(rank.device->CopyToDevice(rank.stream, rank.tensor(), rank.host).ok());
    REQUIRE(rank.device->Record(rank.pushed, rank.stream).ok());
  }
  absl::Status Push(uint32_t number, uint64_t round, bool again = false) {
    return gradients.Push(LocalRank{number}, TensorIndex{0}, Round{round}, 0,
                          {ranks[number]->buffer, 256, again});
  }
  // Returns how many of the rank's pushes the core is told of.
  size_t Ask(uint32_t number) {
    GpuGradients::Asked asked;
    REQUIRE(gradients.Ask(LocalRank{number}, clock.NowNs(), asked).ok());
    return asked.pushes.size();
  }
  void PassTime(int64_t ns = 10'000'000) {
    clock.Advance(ns);
    machine.Advance();
  }
  // Adds a rank whose gradient of this round is ready: `value` in every element.
  void AddReady(size_t gpu, uint64_t round, uint32_t value = 0) {
    TestRank& rank = AddRank(gpu);
    const auto number = static_cast<uint32_t>(ranks.size() - 1);
    for (size_t at = 0; at < rank.host.size(); at += 4) std::memcpy(&rank.host[at], &value, 4);
    Place(number);
    Write(number);
    REQUIRE(Push(number, round).ok());
    PassTime();
    REQUIRE(Ask(number) == 1);
  }
  // Gives the lane the next piece. There must be one.
  Lane& Start(size_t lane) {
    const auto started = lanes.Start(lanes.all()[lane], clock.NowNs());
    REQUIRE(started.ok());
    REQUIRE(*started);
    return lanes.all()[lane];
  }
  // Steps the lane until it is at `step`, or an error occurs.
  GpuLanes::Progress StepUntil(Lane& lane, LaneStep step) {
    for (int i = 0; i < 1000 && lane.step != step; ++i) {
      GpuLanes::Progress progress = lanes.Step(lane, clock.NowNs());
      if (progress.trouble != GpuLanes::Trouble::kNone) return progress;
      PassTime(10'000);
    }
    REQUIRE(lane.step == step);
    return {};
  }
  // Loses this process's context, and opens the GPU again.
  void LoseAndReopen(size_t gpu) {
    const gpu::GpuUuid uuid = machine.uuid(gpu);
    machine.LoseContext(*node.At(uuid).device);
    node.Close(uuid);
    REQUIRE(node.Open(uuid).ok());
  }
  pipeline::ReduceSlice ReduceOf(uint64_t round, std::vector<LocalRank> inputs) {
    wanted.insert(next_ticket);
    return {.ticket = next_ticket++,
            .target = {.tensor = TensorIndex{0},
                       .round = Round{round},
                       .memory = pipeline::Memory::kSendBuffer,
                       .offset_bytes = 0,
                       .length_bytes = static_cast<uint32_t>(spec.bytes())},
            .inputs = std::move(inputs)};
  }

  // HostTensors
  const pipeline::TensorSpec& Spec(TensorIndex) const override { return spec; }
  std::span<std::byte> Writable(const pipeline::SliceBytes& slice) const override {
    auto& all =
        slice.memory == pipeline::Memory::kSendBuffer ? send : results[slice.round.value() & 1];
    return std::span(all).subspan(slice.offset_bytes, slice.length_bytes);
  }
  std::span<const std::byte> Contribution(const pipeline::SliceBytes&, LocalRank) const override {
    return {};
  }
  std::span<std::byte> PinnableSend(TensorIndex) const override { return send; }
  std::array<std::span<std::byte>, 2> PinnableResults(TensorIndex) const override {
    return {std::span(results[0]), std::span(results[1])};
  }

  // GpuEvents
  void OnGradientReady(LocalRank, TensorIndex, Round, int32_t) override {}
  bool ReduceWanted(uint64_t ticket) override { return wanted.contains(ticket); }
  void OnReduced(uint64_t ticket, uint64_t) override { reduced.push_back(ticket); }
  void OnDelivered(const pipeline::CompleteRound& round) override {
    delivered.push_back(round.round);
  }
  void OnUnexported(LocalRank rank, uint32_t request) override {
    unexported.emplace_back(rank, request);
  }
  void OnEventsLost(LocalRank) override {}
  void OnGpuFailed(const std::string& text) override { failed.push_back(text); }
  void OnGpuNote(const std::string& text) override { notes.push_back(text); }

  GpuStageOptions options{.lanes = 2, .piece_bytes = 256 * kKiB, .piece_bytes_min = 64 * kKiB};
  runtime::ManualClock clock;
  pipeline::TensorSpec spec{.name = "w", .collective = Collective::Of(DType::kI32, Op::kSum, 1000)};
  mutable std::vector<std::byte> send = std::vector<std::byte>(4096);
  mutable std::vector<std::byte> results[2] = {std::vector<std::byte>(4096),
                                               std::vector<std::byte>(4096)};
  FakeMachine machine;
  std::vector<std::unique_ptr<TestRank>> ranks;
  std::unique_ptr<gpu::Platform> platform = machine.NewProcess();
  GpuNode node{options, *platform};
  SlowGraveyard graveyard;
  GpuCollectives collectives{options, node, graveyard};
  GpuLosses losses{options};
  GpuBuffers buffers{node, losses};
  GpuPins pins{node, *this, *this};
  GpuGradients gradients{options, node, *this, losses, buffers};
  GpuTasks tasks{*this, *this, losses, buffers, gradients};
  GpuDeliveries deliveries{options, node, *this, gradients};
  GpuPaths paths{options, node, collectives};
  GpuHomes homes{options, node, collectives, losses, buffers};
  GpuStageCounters counters;
  GpuLanes lanes{options, *this, node, collectives, losses, pins, tasks, counters};
  GpuFailures failures{node, collectives, losses, lanes, *this, counters};
  GpuReleases releases{node, collectives, losses, buffers, pins, gradients, homes, lanes, *this};
  GpuReopening reopening{options, node, collectives, losses, buffers, pins, gradients, lanes};
  std::set<uint64_t> wanted;
  std::vector<uint64_t> reduced;
  std::vector<Round> delivered;
  std::vector<std::pair<LocalRank, uint32_t>> unexported;
  std::vector<std::string> failed;
  std::vector<std::string> notes;
  uint64_t next_ticket = 1;
  uint64_t next_buffer_id = 100;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_PARTS_FIXTURE_H_
