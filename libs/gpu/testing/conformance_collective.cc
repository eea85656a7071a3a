// SPDX-License-Identifier: Apache-2.0
//
// Communicators among all GPUs of the machine. One GPU is enough.
#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/gpu/testing/harness.h"

namespace talweg::gpu {
namespace {

constexpr uint64_t kShard = 10'007;  // Elements.
using State = Communicator::State;

struct CollectiveCase {
  CollectiveCase() : harness(NewHarness()) {
    if (harness == nullptr) return;
    const auto gpus = harness->platform().Gpus();
    REQUIRE(gpus.ok());
    for (const GpuInfo& gpu : *gpus) {
      auto device = harness->platform().Open(gpu.uuid);
      REQUIRE(device.ok());
      devices.push_back(*std::move(device));
      pointers.push_back(devices.back().get());
    }
    count = devices.size();
    for (Device* const device : pointers) {
      CollectivePart part;
      part.stream = *device->NewStream(StreamPriority::kHigh);
      sends.push_back(*device->Allocate(kShard * count * 4));
      receives.push_back(*device->Allocate(kShard * count * 4));
      hosts.push_back(*device->AllocateHost(kShard * count * 4));
      part.send = sends.back().address;
      part.receive = receives.back().address;
      parts.push_back(part);
    }
    auto made = harness->platform().NewCommunicator(pointers);
    INFO(made.status().ToString());
    REQUIRE(made.ok());
    communicator = *std::move(made);
  }
  ~CollectiveCase() {
    communicator.reset();
    devices.clear();
    if (harness != nullptr) harness->CheckClean();
  }

  void Settle() {
    State state = State::kBusy;
    REQUIRE(harness->RunUntil([&] {
      state = communicator->Poll();
      return state != State::kBusy;
    }));
    INFO(communicator->error().ToString());
    REQUIRE(state == State::kReady);
  }

  // Sets element e of device d's input to d + 1 + e, as an int.
  void Fill(uint64_t element_count) {
    for (size_t d = 0; d < count; ++d) {
      std::vector<int32_t> values(element_count);
      for (uint64_t e = 0; e < element_count; ++e) values[e] = static_cast<int32_t>(d + 1 + e);
      std::memcpy(hosts[d].data(), values.data(), element_count * 4);
      REQUIRE(pointers[d]
                  ->CopyToDevice(parts[d].stream, sends[d].Part(0, element_count * 4),
                                 hosts[d].first(element_count * 4))
                  .ok());
    }
    Finish();
  }

  void Finish() {
    for (size_t d = 0; d < count; ++d) {
      const EventId event = *pointers[d]->NewEvent(EventScope::kProcess);
      REQUIRE(pointers[d]->Record(event, parts[d].stream).ok());
      REQUIRE(harness->RunUntil([&] { return *pointers[d]->Query(event); }));
    }
  }

  std::vector<int32_t> Result(size_t d, uint64_t element_count) {
    REQUIRE(pointers[d]
                ->CopyToHost(parts[d].stream, hosts[d].first(element_count * 4),
                             receives[d].Part(0, element_count * 4))
                .ok());
    Finish();
    std::vector<int32_t> values(element_count);
    std::memcpy(values.data(), hosts[d].data(), element_count * 4);
    return values;
  }

  // Returns the sum of element e over the devices.
  int32_t Sum(uint64_t e) const {
    return static_cast<int32_t>(count * (count + 1) / 2 + count * e);
  }

  std::unique_ptr<Harness> harness;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Device*> pointers;
  size_t count = 0;
  std::vector<CollectivePart> parts;
  std::vector<DeviceSpan> sends;
  std::vector<DeviceSpan> receives;
  std::vector<std::span<std::byte>> hosts;
  std::unique_ptr<Communicator> communicator;
};

TEST_CASE("communicator: each device gets its shard of the sum", "[gpu]") {
  CollectiveCase c;
  if (c.harness == nullptr) return;
  c.Settle();
  c.Fill(kShard * c.count);
  REQUIRE(c.communicator->ReduceScatter(DType::kI32, Op::kSum, kShard, c.parts).ok());
  c.Settle();
  for (size_t d = 0; d < c.count; ++d) {
    const std::vector<int32_t> values = c.Result(d, kShard);
    size_t wrong = 0;
    for (uint64_t e = 0; e < kShard; ++e) wrong += values[e] != c.Sum(d * kShard + e);
    CHECK(wrong == 0);
  }
}

TEST_CASE("communicator: each device gets every shard", "[gpu]") {
  CollectiveCase c;
  if (c.harness == nullptr) return;
  c.Settle();
  c.Fill(kShard);
  REQUIRE(c.communicator->AllGather(DType::kF32, kShard, c.parts).ok());
  c.Settle();
  for (size_t d = 0; d < c.count; ++d) {
    const std::vector<int32_t> values = c.Result(d, kShard * c.count);
    size_t wrong = 0;
    for (uint64_t e = 0; e < values.size(); ++e) {
      wrong += values[e] != static_cast<int32_t>(e / kShard + 1 + e % kShard);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("communicator: one device gets the sum, or all devices get what one has", "[gpu]") {
  CollectiveCase c;
  if (c.harness == nullptr) return;
  c.Settle();
  for (size_t root = 0; root < c.count; ++root) {
    c.Fill(kShard);
    REQUIRE(c.communicator->Reduce(DType::kI32, Op::kSum, kShard, root, c.parts).ok());
    c.Settle();
    const std::vector<int32_t> sum = c.Result(root, kShard);
    size_t wrong = 0;
    for (uint64_t e = 0; e < kShard; ++e) wrong += sum[e] != c.Sum(e);
    CHECK(wrong == 0);
    REQUIRE(c.communicator->Broadcast(DType::kI32, kShard, root, c.parts).ok());
    c.Settle();
    for (size_t d = 0; d < c.count; ++d) {
      const std::vector<int32_t> values = c.Result(d, kShard);
      wrong = 0;
      for (uint64_t e = 0; e < kShard; ++e)
        wrong += values[e] != static_cast<int32_t>(root + 1 + e);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("communicator: all devices get the sum, even in place and several times in a row",
          "[gpu]") {
  CollectiveCase c;
  if (c.harness == nullptr) return;
  c.Settle();
  c.Fill(kShard);
  std::vector<CollectivePart> in_place = c.parts;
  for (CollectivePart& part : in_place) part.receive = part.send;
  REQUIRE(c.communicator->AllReduce(DType::kI32, Op::kSum, kShard, in_place).ok());
  c.Settle();
  REQUIRE(c.communicator->AllReduce(DType::kI32, Op::kMax, kShard, c.parts).ok());
  c.Settle();
  for (size_t d = 0; d < c.count; ++d) {
    const std::vector<int32_t> values = c.Result(d, kShard);
    size_t wrong = 0;
    for (uint64_t e = 0; e < kShard; ++e) wrong += values[e] != c.Sum(e);
    CHECK(wrong == 0);
  }
}

TEST_CASE("communicator: invalid arguments are refused", "[gpu]") {
  CollectiveCase c;
  if (c.harness == nullptr) return;
  c.Settle();
  const auto refused = [](const absl::Status& status) {
    INFO(status.ToString());
    CHECK(absl::IsInvalidArgument(status));
  };
  refused(c.communicator->AllReduce(DType::kF32, Op::kMax, kShard, c.parts));
  refused(c.communicator->AllReduce(DType::kF32, Op::kAverage, kShard, c.parts));
  refused(c.communicator->AllReduce(DType::kF32, Op::kSum, kShard, {}));
  refused(c.communicator->Reduce(DType::kF32, Op::kMax, kShard, 0, c.parts));
  refused(c.communicator->Reduce(DType::kF32, Op::kSum, kShard, c.count, c.parts));
  refused(c.communicator->Broadcast(DType::kF32, kShard, c.count, c.parts));
  refused(c.communicator->ReduceScatter(DType::kF32, Op::kSum, kShard * 1000, c.parts));
  std::vector<CollectivePart> wrong = c.parts;
  wrong[0].stream = StreamId(999'999);
  refused(c.communicator->AllGather(DType::kF32, 1, wrong));
  CHECK(c.communicator->Poll() == State::kReady);
  const std::vector<Device*> twice = {c.pointers[0], c.pointers[0]};
  refused(c.harness->platform().NewCommunicator(twice).status());
  refused(c.harness->platform().NewCommunicator({}).status());
}

TEST_CASE("communicator: after an abort its streams go on, and another one can be made", "[gpu]") {
  CollectiveCase c;
  if (c.harness == nullptr) return;
  c.Settle();
  c.Fill(kShard);
  REQUIRE(c.communicator->AllReduce(DType::kI32, Op::kSum, kShard, c.parts).ok());
  c.communicator->Abort();
  c.communicator.reset();
  c.Finish();
  auto again = c.harness->platform().NewCommunicator(c.pointers);
  REQUIRE(again.ok());
  c.communicator = *std::move(again);
  c.Settle();
  REQUIRE(c.communicator->AllReduce(DType::kI32, Op::kSum, kShard, c.parts).ok());
  c.Settle();
  CHECK(c.Result(0, kShard)[0] == c.Sum(0));
}

}  // namespace
}  // namespace talweg::gpu
