// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_homes.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

// Here even the smallest tensors get a home on a GPU.
struct Homes : Parts {
  Homes() { options.direct_bytes_min = 1000; }
  absl::StatusOr<GpuHomes::DirectMemory> Make(uint32_t tensor = 0) {
    return homes.Make(TensorIndex{tensor}, spec, static_cast<uint32_t>(ranks.size()),
                      clock.NowNs());
  }
  const GpuHome& Home() const { return *homes.Find(TensorIndex{0}); }
  static pipeline::SliceBytes Slice(pipeline::Memory memory, uint32_t length_bytes) {
    return {.tensor = TensorIndex{0},
            .round = Round{1},
            .memory = memory,
            .offset_bytes = 64,
            .length_bytes = length_bytes};
  }
};

TEST_CASE("GpuHomes: a NIC gets pages of the GPU that the ranks use", "[gpu]") {
  Homes p;
  p.AddRank(1);
  const uint64_t before = p.machine.allocated_bytes(1);
  REQUIRE(p.Make().ok());
  CHECK(p.Home().gpu == p.machine.uuid(1));
  CHECK(p.homes.AreOn(p.machine.uuid(1)));
  CHECK_FALSE(p.homes.AreOn(p.machine.uuid(0)));
  const std::vector<gpu::DeviceSpan> parts = {p.Home().send, p.Home().results[0],
                                              p.Home().results[1]};
  for (size_t i = 0; i < parts.size(); ++i) {
    CHECK(parts[i].address % gpu::kNicPageBytes == 0);
    CHECK(parts[i].bytes >= p.spec.bytes());
    const uint64_t end = parts[i].address + parts[i].bytes;
    CHECK(end <= (i + 1 < parts.size() ? parts[i + 1].address
                                       : p.Home().allocated.address + p.Home().allocated.bytes));
  }
  CHECK(p.homes.Drop(TensorIndex{0}));
  CHECK_FALSE(p.homes.Drop(TensorIndex{0}));
  CHECK(p.machine.allocated_bytes(1) == before);
}

TEST_CASE("GpuHomes: a tensor that a NIC cannot use stays on the host", "[gpu]") {
  Homes p;
  p.AddRank(0);
  SECTION("The tensor is too short") {
    p.options.direct_bytes_min = p.spec.bytes() + 1;
    CHECK(absl::IsOutOfRange(p.Make().status()));
  }
  SECTION("The tensor is a broadcast") {
    p.spec.collective = Collective::Of(DType::kI32, Op::kCopy, 1000);
    CHECK(absl::IsOutOfRange(p.Make().status()));
  }
  SECTION("A rank has exported nothing yet") {
    const auto made = p.homes.Make(TensorIndex{0}, p.spec, 2, p.clock.NowNs());
    CHECK(absl::IsFailedPrecondition(made.status()));
    CHECK(made.status().message() == "1 of the node's ranks have exported no memory yet");
  }
  SECTION("The GPU is lost") {
    p.losses.Add(p.machine.uuid(0), absl::AbortedError(""), 0);
    CHECK(absl::IsFailedPrecondition(p.Make().status()));
  }
  SECTION("The tensor needs more than its part of the GPU's memory") {
    p.options.direct_share = (uint64_t{1} << 30) / (8 * gpu::kNicPageBytes);
    REQUIRE(p.Make(0).ok());
    REQUIRE(p.Make(1).ok());
    CHECK(absl::IsResourceExhausted(p.Make(2).status()));
    p.homes.DropAll();
    CHECK(p.Make(2).ok());
    p.homes.DropAll();
  }
  SECTION("GPUs cannot combine the tensor") {
    p.AddRank(1);
    p.spec.collective = Collective::Of(DType::kF32, Op::kMax, 1000);
    CHECK(absl::IsOutOfRange(p.Make().status()));
  }
  CHECK(p.homes.empty());
}

TEST_CASE(
    "GpuHomes: tensors have their homes on all GPUs of the ranks, each always on the same one",
    "[gpu]") {
  Homes p;
  p.AddRank(0);
  p.AddRank(1);
  std::set<gpu::GpuUuid> used;
  for (int i = 0; i < 16; ++i) {
    p.spec.name = "w" + std::to_string(i);
    REQUIRE(p.Make().ok());
    const gpu::GpuUuid home = p.Home().gpu;
    used.insert(home);
    p.homes.DropAll();
    REQUIRE(p.Make().ok());
    CHECK(p.Home().gpu == home);
    p.homes.DropAll();
  }
  CHECK(used == std::set{p.machine.uuid(0), p.machine.uuid(1)});
}

TEST_CASE("GpuHomes: slices that leave in frames lie on the host, and results lie whole on the GPU",
          "[gpu]") {
  Homes p;
  p.AddRank(0);
  REQUIRE(p.Make().ok());
  CHECK(p.homes.HomeOf(Homes::Slice(pipeline::Memory::kSendBuffer, 100)) == nullptr);
  CHECK(p.homes.HomeOf(Homes::Slice(pipeline::Memory::kSendBuffer, wire::kInlineBytesMax + 1)) !=
        nullptr);
  const pipeline::SliceBytes result = Homes::Slice(pipeline::Memory::kResult, 100);
  CHECK(p.homes.HomeOf(result) == &p.Home());
  const std::vector<std::byte> bytes(100, std::byte{7});
  REQUIRE(p.homes.Store(result, bytes).ok());
  std::vector<std::byte> fetched(100);
  REQUIRE(p.homes.Fetch(result, fetched).ok());
  CHECK(fetched == bytes);
  CHECK(p.Home().Bytes(result).address == p.Home().results[1].address + 64);
  p.homes.DropAll();
}

}  // namespace
}  // namespace talweg::agent
