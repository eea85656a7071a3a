// SPDX-License-Identifier: Apache-2.0
#include "services/agent/tensor_memory.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/base/test_directory.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/transport/loopback/loopback_transport.h"
#include "libs/wire/frames.h"

namespace talweg::agent {
namespace {

using pipeline::Memory;
using pipeline::TensorIndex;

constexpr uint64_t kElements = 100'001;

// Device memory that nothing is sent from.
class NoDevices final : public transport::LoopbackDevices {
 public:
  void Read(uint64_t, std::span<std::byte>) override {}
  void Write(uint64_t, std::span<const std::byte>) override {}
};

class Fixture {
 public:
  explicit Fixture(bool tells_arrivals = true, uint32_t rank_count = 1, bool one_view = false) {
    shm::RankServerConfig config;
    config.socket_path = directory.Path("a.sock");
    config.local_rank_count = rank_count;
    config.takes_devices = true;
    config.contribution_bytes_max = 8 << 20;
    config.result_bytes_max = 8 << 20;
    auto created = shm::RankServer::Create(config);
    TALWEG_CHECK(created.ok());
    ranks = std::move(created).value();
    network = transport::NewLoopbackNetwork(&devices);
    transport = network->NewTransport();
    registrar.emplace(transport.get());
    memory = std::make_unique<TensorMemory>(
        TensorMemory::Options{
            .rank_count = rank_count, .one_view = one_view, .tells_arrivals = tells_arrivals},
        ranks.get(), &registrar.value());
  }
  ~Fixture() {
    memory.reset();
    ranks.reset();
  }

  // Returns once the kernel has given what the tensor needs.
  absl::Status Allocate(TensorMemory::Wishes wishes) {
    MemoryOrder order;
    absl::Status status = memory->Allocate(TensorIndex{0}, spec, std::move(wishes), &order);
    if (status.ok()) status = order.Fill();
    if (status.ok()) status = memory->OnAllocated(TensorIndex{0});
    if (!status.ok()) memory->Drop(TensorIndex{0});
    return status;
  }
  transport::Region OnDevice(uint64_t address) const {
    return *transport->RegisterDevice({.address = address, .bytes = spec.bytes()});
  }
  // Returns a slice in the tensor's round.
  pipeline::SliceBytes Slice(Memory where, uint64_t round, uint64_t offset, uint32_t bytes) const {
    return {.tensor = TensorIndex{0},
            .round = Round{round},
            .memory = where,
            .offset_bytes = offset,
            .length_bytes = bytes};
  }

  TestDirectory directory;
  NoDevices devices;
  pipeline::TensorSpec spec = {.name = "w",
                               .collective = Collective::Of(DType::kF32, Op::kSum, kElements)};
  std::unique_ptr<shm::RankServer> ranks;
  std::unique_ptr<transport::LoopbackNetwork> network;
  std::unique_ptr<transport::Transport> transport;
  std::optional<MemberRegistrar> registrar;
  std::unique_ptr<TensorMemory> memory;
};

TEST_CASE("TensorMemory: a NIC has some memory of a tensor, and the host has the rest", "[agent]") {
  Fixture f;
  TensorMemory::NicRegions nic{.send = f.OnDevice(0x1000'0000),
                               .results = {f.OnDevice(0x2000'0000), f.OnDevice(0x3000'0000)}};
  const auto* const send = nic.send.registration();
  const std::array results = {nic.results[0].registration(), nic.results[1].registration()};
  const absl::Status allocated = f.Allocate({.on_device = true, .nic = std::move(nic)});
  REQUIRE(allocated.ok());

  // Results are whole where the NIC writes them. Short contributions travel in frames.
  CHECK(f.memory->OnNic(f.Slice(Memory::kResult, 1, 0, 4)));
  CHECK(f.memory->OnNic(f.Slice(Memory::kSendBuffer, 1, 0, wire::kInlineBytesMax + 1)));
  CHECK_FALSE(f.memory->OnNic(f.Slice(Memory::kSendBuffer, 1, 0, wire::kInlineBytesMax)));
  const auto short_one = f.Slice(Memory::kSendBuffer, 1, 8192, 64);
  CHECK(f.memory->Readable(short_one).data() == f.memory->SendBuffer(TensorIndex{0}).data() + 8192);

  const auto sent = f.memory->RegionOf(f.Slice(Memory::kSendBuffer, 1, 65'536, 100'000));
  CHECK(sent.registration == send);
  CHECK(sent.offset == 65'536);
  CHECK(sent.length == 100'000);
  for (const uint64_t round : {6, 7}) {
    const auto held = f.memory->RegionOf(f.Slice(Memory::kResult, round, 4096, 100'000));
    CHECK(held.registration == results[round & 1]);
    CHECK(held.offset == 4096);
    CHECK(f.memory->ResultRefs(TensorIndex{0})[round & 1].key == results[round & 1]->base().key);
  }
}

TEST_CASE("TensorMemory: without a NIC the host has all of it", "[agent]") {
  Fixture f;
  REQUIRE(f.Allocate({.on_device = true}).ok());
  for (const Memory where : {Memory::kSendBuffer, Memory::kResult}) {
    CHECK_FALSE(f.memory->OnNic(f.Slice(where, 1, 0, 100'000)));
    CHECK_FALSE(f.memory->RegionOf(f.Slice(where, 1, 0, 100'000)).registration->on_device());
  }
  CHECK(f.memory->RegionOf(f.Slice(Memory::kResult, 6, 0, 100)).registration !=
        f.memory->RegionOf(f.Slice(Memory::kResult, 7, 0, 100)).registration);
}

TEST_CASE(
    "TensorMemory: where views change, a contribution and two results have places of their own",
    "[agent]") {
  const uint32_t ranks = GENERATE(1u, 2u);
  Fixture f(true, ranks, /*one_view=*/false);
  REQUIRE(f.Allocate({.one_place = shm::RankConnectionId{1}}).ok());
  const auto even = f.memory->RegionOf(f.Slice(Memory::kResult, 6, 0, 100));
  const auto odd = f.memory->RegionOf(f.Slice(Memory::kResult, 7, 0, 100));
  CHECK(even.registration != odd.registration);
  const auto refs = f.memory->ResultRefs(TensorIndex{0});
  CHECK(refs[0].key != refs[1].key);
  if (ranks == 1) return;
  const auto sent = f.memory->RegionOf(f.Slice(Memory::kSendBuffer, 6, 0, 100));
  CHECK(sent.registration != even.registration);
  CHECK(sent.registration != odd.registration);
}

TEST_CASE("TensorMemory: in a job of one view, ranks are reduced to where the result comes",
          "[agent]") {
  Fixture f(true, 2, /*one_view=*/true);
  REQUIRE(f.Allocate({.one_place = shm::RankConnectionId{1}}).ok());
  const auto result = f.memory->RegionOf(f.Slice(Memory::kResult, 6, 4096, 100));
  for (const uint64_t round : {6, 7}) {
    for (const Memory where : {Memory::kSendBuffer, Memory::kResult}) {
      CHECK(f.memory->RegionOf(f.Slice(where, round, 4096, 100)).registration ==
            result.registration);
      CHECK(f.memory->Writable(f.Slice(where, round, 4096, 100)).data() ==
            f.memory->Readable(f.Slice(Memory::kResult, 6, 4096, 100)).data());
    }
  }
  const auto refs = f.memory->ResultRefs(TensorIndex{0});
  CHECK((refs[0].key == refs[1].key && refs[0].address == refs[1].address));
  const auto locations = f.memory->ResultLocations(TensorIndex{0});
  CHECK(locations[0] == locations[1]);
  const auto shape = shm::BufferShape::Of(f.spec.collective, 2);
  CHECK(f.memory->bytes() == shape.total_bytes());  // The ranks' contributions are not counted.
}

TEST_CASE("TensorMemory: a GPU's tensor has two results in every job", "[agent]") {
  Fixture f(true, 1, /*one_view=*/true);
  REQUIRE(f.Allocate({.on_device = true}).ok());
  CHECK(f.memory->RegionOf(f.Slice(Memory::kResult, 6, 0, 100)).registration !=
        f.memory->RegionOf(f.Slice(Memory::kResult, 7, 0, 100)).registration);
  CHECK(f.memory->SendBuffer(TensorIndex{0}).size() == f.spec.bytes());
}

TEST_CASE(
    "TensorMemory: a tensor without memory can be declared, so that it can be reported as failed",
    "[agent]") {
  Fixture f;
  f.spec.collective.element_count = 64 * kMiB;
  CHECK_FALSE(f.Allocate({}).ok());
  CHECK(f.memory->ResultRefs(TensorIndex{0})[0] == wire::RemoteRef{});
}

TEST_CASE("TensorMemory: a tensor of a rank that is gone is not in one place", "[agent]") {
  Fixture f(true, 1, /*one_view=*/true);
  REQUIRE(f.Allocate({.one_place = shm::RankConnectionId{1}}).ok());
  CHECK(f.memory->ResultLocations(TensorIndex{0})[0].segment != 0);
}

TEST_CASE("TensorMemory: arrivals of a result are announced, and forgotten with the ranks",
          "[agent]") {
  Fixture f;
  constexpr uint32_t kSlice = 65'536;
  f.spec.collective.element_count = kMiB / sizeof(float);
  for (int generation = 0; generation < 2; ++generation) {
    REQUIRE(f.Allocate({}).ok());
    CHECK(f.memory->ArrivalsLocation(TensorIndex{0}).segment != 0);
    CHECK(f.memory->AddArrival(f.Slice(Memory::kResult, 1, kSlice, kSlice)) == kSlice);
    CHECK(f.memory->AddArrival(f.Slice(Memory::kResult, 1, 0, kSlice)) == 2 * kSlice);
    CHECK(f.memory->AddArrival(f.Slice(Memory::kResult, 2, 0, kSlice)) == kSlice);
    CHECK(f.memory->AddArrival(f.Slice(Memory::kResult, 1, 0, kSlice)) == kSlice);
    f.memory->Forget();
    f.ranks->DropTensorMemory();
  }
}

TEST_CASE("TensorMemory: a tensor that just fits has no log", "[agent]") {
  Fixture f;
  // It fits with its table of lengths, which has a cache line of its own.
  f.spec.collective.element_count = (4 * kMiB - kCacheLineBytes) / sizeof(float);
  REQUIRE(f.Allocate({}).ok());
  CHECK(f.memory->ArrivalsLocation(TensorIndex{0}).segment == 0);
  CHECK(f.memory->AddArrival(f.Slice(Memory::kResult, 1, 0, 65'536)) == 0);
  const auto shape = shm::BufferShape::Of(f.spec.collective, 1);
  CHECK(f.memory->bytes() == 2 * shape.total_bytes());
}

TEST_CASE("TensorMemory: forgotten tensors make room for tensors of any size", "[agent]") {
  Fixture f;
  for (uint64_t bytes = kMiB; bytes <= 3 * kMiB; bytes += kMiB / 4) {
    f.spec.collective.element_count = bytes / sizeof(float);
    REQUIRE(f.Allocate({}).ok());
    CHECK(f.memory->bytes() >= 2 * bytes);
    f.memory->Forget();
    f.ranks->DropTensorMemory();
    CHECK(f.memory->bytes() == 0);
  }
}

TEST_CASE("TensorMemory: small tensors, small slices and tensors on GPUs announce no arrivals",
          "[agent]") {
  const int which = GENERATE(0, 1, 2);
  Fixture f(/*tells_arrivals=*/which != 1);
  const bool on_device = which == 2;
  f.spec.collective.element_count = kMiB / sizeof(float) - (which == 0 ? 1 : 0);
  REQUIRE(f.Allocate({.on_device = on_device}).ok());
  CHECK(f.memory->ArrivalsLocation(TensorIndex{0}).segment == 0);
  CHECK(f.memory->AddArrival(f.Slice(Memory::kResult, 1, 0, 65'536)) == 0);
}

TEST_CASE("TensorMemory: what travels encoded has room of its own, and its place by its offset",
          "[agent]") {
  const bool one_view = GENERATE(false, true);
  Fixture f(true, 1, one_view);
  f.spec.collective.encoding = Encoding::kTwice;
  REQUIRE(f.Allocate({.one_place = shm::RankConnectionId{1}}).ok());
  // Results of both parities arrive in one region, which is neither result.
  const auto refs = f.memory->ResultRefs(TensorIndex{0});
  CHECK(refs[0] == refs[1]);
  CHECK(refs[0].key !=
        f.memory->RegionOf(f.Slice(Memory::kResult, 6, 0, 100)).registration->base().key);
  const auto sent = f.memory->RegionOf(f.Slice(Memory::kSendBuffer, 6, 4096, 100));
  CHECK(sent.offset == 2 * 4096);
  CHECK(sent.length == 100);
  // The last cache line has all the room that it may need.
  const auto bytes = static_cast<uint32_t>(f.spec.bytes());
  for (const Memory where : {Memory::kSendBuffer, Memory::kArrivals}) {
    CHECK(f.memory->Writable(f.Slice(where, 6, bytes - 64, 128)).size() == 128);
  }
  CHECK(f.memory->Writable(f.Slice(Memory::kArrivals, 6, 64, 8)).data() ==
        f.memory->Writable(f.Slice(Memory::kArrivals, 7, 0, 8)).data() + 128);
  CHECK_FALSE(f.memory->TakesDevices(TensorIndex{0}));
}

}  // namespace
}  // namespace talweg::agent
