// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/fake_machine.h"

#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/gpu/import_cache.h"
#include "libs/runtime/manual_clock.h"

namespace talweg::gpu::fake {
namespace {

using Catch::Matchers::Contains;
using State = Communicator::State;

constexpr uint64_t kBytes = 1'600'000;  // Copying this much takes 2 us to start and 100 us to run.
constexpr int64_t kCopyNs = 102'000;

struct Fixture {
  explicit Fixture(const FakeMachineOptions& options = {})
      : machine(clock, options), platform(machine.NewProcess()) {
    for (size_t gpu = 0; gpu < options.gpu_count; ++gpu) {
      devices.push_back(*platform->Open(machine.uuid(gpu)));
    }
    device = devices[0].get();
    memory = *device->Allocate(kBytes);
    other = *device->Allocate(kBytes);
    host = *device->AllocateHost(kBytes);
    result = *device->AllocateHost(kBytes);
    a = *device->NewStream(StreamPriority::kNormal);
    b = *device->NewStream(StreamPriority::kNormal);
    event = *device->NewEvent(EventScope::kShared);
    std::memset(host.data(), 1, host.size());
  }

  void Pass(int64_t ns) {
    clock.Advance(ns);
    machine.Advance();
  }
  // Returns the only violation so far, and forgets it.
  std::string OnlyViolation() {
    REQUIRE(machine.violations().size() == 1);
    const std::string violation = machine.violations()[0];
    machine.ClearViolations();
    return violation;
  }
  bool IsDone() { return *device->Query(event); }

  runtime::ManualClock clock;
  FakeMachine machine;
  std::unique_ptr<Platform> platform;
  std::vector<std::unique_ptr<Device>> devices;
  Device* device;
  DeviceSpan memory;
  DeviceSpan other;
  std::span<std::byte> host;
  std::span<std::byte> result;
  StreamId a;
  StreamId b;
  EventId event;
};

TEST_CASE("fake: a copy takes its time, and its bytes land at its end", "[gpu]") {
  Fixture f;
  REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
  REQUIRE(f.device->CopyToHost(f.a, f.result, f.memory).ok());
  REQUIRE(f.device->Record(f.event, f.a).ok());
  CHECK(f.machine.NextEndNs() == kCopyNs);
  f.Pass(2 * kCopyNs - 1);
  CHECK_FALSE(f.IsDone());
  CHECK(f.result[0] == std::byte{0xee});  // Poison reveals whoever reads too early.
  f.Pass(1);
  CHECK(f.IsDone());
  CHECK(f.result[0] == std::byte{1});
  CHECK(f.machine.NextEndNs() == std::nullopt);
  CHECK(f.machine.violations().empty());
}

TEST_CASE("fake: a source that changes too early is copied changed", "[gpu]") {
  Fixture f;
  REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
  f.Pass(kCopyNs - 1);
  f.machine.HostWrites(f.host);
  std::memset(f.host.data(), 2, f.host.size());
  CHECK_THAT(f.OnlyViolation(), Contains("the host writes host memory") &&
                                    Contains("a copy to the device (stream 1), which reads it"));
  REQUIRE(f.device->CopyToHost(f.a, f.result, f.memory).ok());
  f.Pass(2 * kCopyNs);
  CHECK(f.result[0] == std::byte{2});
}

TEST_CASE("fake: copies in different directions run at once, copies in one direction take turns",
          "[gpu]") {
  Fixture f;
  REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
  REQUIRE(f.device->CopyToHost(f.b, f.result, f.other).ok());
  REQUIRE(f.device->Record(f.event, f.b).ok());
  f.Pass(kCopyNs);
  CHECK(f.IsDone());
  CHECK(f.machine.NextEndNs() == std::nullopt);  // Both are done.

  const std::span<std::byte> more = *f.device->AllocateHost(kBytes);
  REQUIRE(f.device->CopyToHost(f.a, f.result, f.memory).ok());
  REQUIRE(f.device->CopyToHost(f.b, more, f.other).ok());
  REQUIRE(f.device->Record(f.event, f.b).ok());
  f.Pass(kCopyNs);
  CHECK(f.machine.NextEndNs() == f.clock.NowNs() + kCopyNs);
  f.Pass(kCopyNs);
  CHECK(f.IsDone());
}

TEST_CASE("fake: a stream of high priority goes first when both are ready", "[gpu]") {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    Fixture f({.seed = seed});
    const StreamId high = *f.device->NewStream(StreamPriority::kHigh);
    REQUIRE(f.device->CopyToHost(f.a, f.result, f.memory).ok());  // This copy holds the engine.
    const std::span<std::byte> first = *f.device->AllocateHost(kBytes);
    const std::span<std::byte> second = *f.device->AllocateHost(kBytes);
    REQUIRE(f.device->CopyToHost(f.b, second, f.other).ok());
    REQUIRE(f.device->CopyToHost(high, first, f.other).ok());
    REQUIRE(f.device->Record(f.event, high).ok());
    f.Pass(2 * kCopyNs);
    CHECK(f.IsDone());
  }
}

TEST_CASE("fake: times do not depend on how often the machine is asked", "[gpu]") {
  Fixture f;
  REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
  REQUIRE(f.device->Record(f.event, f.a).ok());
  REQUIRE(f.device->Wait(f.b, f.event).ok());
  REQUIRE(f.device->CopyToHost(f.b, f.result, f.memory).ok());
  REQUIRE(f.device->Record(f.event, f.b).ok());
  f.clock.Advance(2 * kCopyNs);  // This is one step over both copies.
  CHECK(f.IsDone());
  CHECK(f.result[0] == std::byte{1});
}

TEST_CASE("fake: a missing wait is found, whatever the times were", "[gpu]") {
  for (const bool waits : {true, false}) {
    Fixture f;
    REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
    REQUIRE(f.device->Record(f.event, f.a).ok());
    f.Pass(10 * kCopyNs);  // The work is long done, but nobody asked.
    if (waits) REQUIRE(f.device->Wait(f.b, f.event).ok());
    REQUIRE(f.device->CopyToHost(f.b, f.result, f.memory).ok());
    if (waits) {
      CHECK(f.machine.violations().empty());
    } else {
      CHECK_THAT(f.OnlyViolation(), Contains("a copy to the host (stream 2) reads GPU 0's") &&
                                        Contains("a copy to the device (stream 1)"));
    }
  }
}

TEST_CASE("fake: a query by the host orders what it posts next", "[gpu]") {
  Fixture f;
  REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
  REQUIRE(f.device->Record(f.event, f.a).ok());
  CHECK_FALSE(f.IsDone());
  REQUIRE(f.device->CopyOnDevice(f.b, f.other, f.memory).ok());
  CHECK_THAT(f.OnlyViolation(), Contains("a copy on the device"));
  f.Pass(10 * kCopyNs);
  CHECK(f.IsDone());
  f.machine.HostWrites(f.host);
  REQUIRE(f.device->CopyToHost(f.b, f.result, f.memory).ok());
  CHECK(f.machine.violations().empty());
}

TEST_CASE("fake: reads do not race with reads, and accesses to different bytes do not race",
          "[gpu]") {
  Fixture f;
  REQUIRE(f.device->CopyToHost(f.a, f.result.first(1000), f.memory.Part(0, 1000)).ok());
  REQUIRE(f.device->CopyToHost(f.b, f.result.subspan(1000, 1000), f.memory.Part(0, 1000)).ok());
  REQUIRE(f.device->CopyToDevice(f.b, f.memory.Part(1000, 1000), f.host.first(1000)).ok());
  CHECK(f.machine.violations().empty());
  REQUIRE(f.device->CopyToDevice(f.b, f.memory.Part(999, 1000), f.host.first(1000)).ok());
  CHECK_THAT(f.OnlyViolation(), Contains("+ 999, 1000 bytes"));
}

TEST_CASE("fake: giving back memory that work may still use is a violation", "[gpu]") {
  Fixture f;
  REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
  CHECK(f.device->Free(f.memory).ok());
  CHECK_THAT(f.OnlyViolation(), Contains("frees GPU 0's"));
  CHECK(f.device->FreeHost(f.host).ok());
  CHECK_THAT(f.OnlyViolation(), Contains("unpins host memory"));
}

TEST_CASE("fake: memory is limited, and what others take counts", "[gpu]") {
  Fixture f({.gpu_memory_bytes = uint64_t{256} << 20, .context_bytes = uint64_t{64} << 20});
  const uint64_t free_bytes = f.device->Memory()->free_bytes;
  CHECK(free_bytes == (uint64_t{192} << 20) - 2 * kBytes);
  f.machine.OccupyMemory(0, free_bytes - 10);
  const auto refused = f.device->Allocate(11);
  CHECK(absl::IsResourceExhausted(refused.status()));
  CHECK(f.device->Allocate(10).ok());
  CHECK(absl::IsResourceExhausted(f.machine.NewProcess()->Open(f.machine.uuid(0)).status()));
  f.machine.OccupyMemory(0, 0);
  CHECK(f.device->Allocate(11).ok());
}

TEST_CASE("fake: a lost GPU ends everything on it, and nothing else", "[gpu]") {
  Fixture f({.gpu_count = 2});
  REQUIRE(f.device->CopyToDevice(f.a, f.memory, f.host).ok());
  REQUIRE(f.device->Record(f.event, f.a).ok());
  f.machine.LoseGpu(0);
  CHECK(absl::IsAborted(f.device->Query(f.event).status()));
  CHECK(absl::IsAborted(f.device->Allocate(1).status()));
  CHECK(absl::IsAborted(f.device->CopyToDevice(f.a, f.memory, f.host)));
  CHECK_THAT(std::string(f.device->Memory().status().message()), Contains("Fake GPU 0"));
  CHECK(f.devices[1]->Allocate(1).ok());
  f.devices[0].reset();
  CHECK(absl::IsAborted(f.platform->Open(f.machine.uuid(0)).status()));
}

TEST_CASE("fake: imports can be refused", "[gpu]") {
  Fixture f;
  f.machine.RefuseImports(absl::PermissionDeniedError("another container"));
  const auto peer_platform = f.machine.NewProcess();
  const auto peer = *peer_platform->Open(f.machine.uuid(0));
  const MemoryHandle handle = *f.device->Export(f.memory);
  CHECK(absl::IsPermissionDenied(peer->Map(handle).status()));
  CHECK(absl::IsPermissionDenied(peer->ImportEvent(*f.device->ExportEvent(f.event)).status()));
  f.machine.RefuseImports(absl::OkStatus());
  CHECK(peer->Map(handle).ok());
}

TEST_CASE("fake: a process sees the GPUs that it may see, by their UUIDs", "[gpu]") {
  Fixture f({.gpu_count = 3});
  const auto narrow = f.machine.NewProcess({f.machine.uuid(2), f.machine.uuid(1)});
  const auto gpus = *narrow->Gpus();
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].uuid == f.machine.uuid(2));
  CHECK((*narrow->Open(f.machine.uuid(1)))->info().uuid == f.devices[1]->info().uuid);
  CHECK(absl::IsNotFound(narrow->Open(f.machine.uuid(0)).status()));
  CHECK(absl::IsNotFound(f.machine.NewProcess({})->Gpus().status()));
}

// ----- Processes that share memory and die. -----

struct TwoProcesses : Fixture {
  TwoProcesses()
      : rank_platform(machine.NewProcess()), rank(*rank_platform->Open(machine.uuid(0))) {
    theirs = *rank->Allocate(kBytes);
    handle = *rank->Export(theirs);
    rank_stream = *rank->NewStream(StreamPriority::kNormal);
    rank_event = *rank->NewEvent(EventScope::kShared);
    mapped = *device->Map(handle);
    imported = *device->ImportEvent(*rank->ExportEvent(rank_event));
    rank_host = *rank->AllocateHost(kBytes);
  }
  std::unique_ptr<Platform> rank_platform;
  std::unique_ptr<Device> rank;
  DeviceSpan theirs;
  MemoryHandle handle;
  StreamId rank_stream;
  EventId rank_event;
  DeviceSpan mapped;
  EventId imported;
  std::span<std::byte> rank_host;
};

TEST_CASE("fake: a dead process's work is dropped, and its events are never done", "[gpu]") {
  TwoProcesses f;
  CHECK(f.mapped.address != f.theirs.address);
  REQUIRE(f.rank->CopyToDevice(f.rank_stream, f.theirs, f.rank_host).ok());
  REQUIRE(f.rank->Record(f.rank_event, f.rank_stream).ok());
  f.rank.reset();
  f.Pass(10 * kCopyNs);
  // On a real GPU, an agent that waits for it on a stream would hang here.
  CHECK_FALSE(*f.device->Query(f.imported));
  CHECK(f.machine.context_count(0) == 1);
  CHECK(f.machine.allocated_bytes(0) == 3 * kBytes);  // It is still mapped.
  CHECK(f.device->Unmap(f.mapped).ok());
  CHECK(f.machine.allocated_bytes(0) == 2 * kBytes);
  CHECK(f.machine.mapping_count() == 0);
  CHECK(f.machine.violations().empty());
}

TEST_CASE("fake: an agent that dies unmaps what it had mapped", "[gpu]") {
  TwoProcesses f;
  f.devices.clear();
  CHECK(f.machine.mapping_count() == 0);
  CHECK(f.machine.pinned_bytes() == kBytes);  // The rank's memory is still pinned.
  CHECK(f.machine.allocated_bytes(0) == kBytes);
  CHECK(f.rank->Free(f.theirs).ok());
  CHECK(f.machine.violations().empty());
}

TEST_CASE("fake: memory that is freed while another has it mapped is a violation", "[gpu]") {
  TwoProcesses f;
  CHECK(f.rank->Free(f.theirs).ok());
  CHECK_THAT(f.OnlyViolation(), Contains("which another process has mapped"));
  CHECK(absl::IsInvalidArgument(f.device->Map(f.handle).status()));
}

TEST_CASE("fake: a query of an event that its owner has destroyed is a violation", "[gpu]") {
  TwoProcesses f;
  f.rank->DestroyEvent(f.rank_event);
  CHECK(f.device->Query(f.imported).ok());
  CHECK_THAT(f.OnlyViolation(), Contains("its owner has destroyed"));
}

TEST_CASE("fake: a message alone does not order another process's work", "[gpu]") {
  TwoProcesses f;
  REQUIRE(f.rank->CopyToDevice(f.rank_stream, f.theirs, f.rank_host).ok());
  REQUIRE(f.rank->Record(f.rank_event, f.rank_stream).ok());
  REQUIRE(f.device->CopyToHost(f.a, f.result, f.mapped).ok());
  CHECK_THAT(f.OnlyViolation(), Contains("a copy to the host"));
  f.Pass(10 * kCopyNs);
  REQUIRE(*f.device->Query(f.imported));
  REQUIRE(f.device->CopyToHost(f.a, f.result, f.mapped).ok());
  CHECK(f.machine.violations().empty());
}

// ----- Collectives. -----

struct Pair : Fixture {
  Pair() : Fixture({.gpu_count = 2}) { Start(); }
  void Start() {
    const std::vector<Device*> both = {devices[0].get(), devices[1].get()};
    communicator = *platform->NewCommunicator(both);
    parts.clear();
    for (Device* const each : both) {
      parts.push_back({*each->NewStream(StreamPriority::kNormal), each->Allocate(4000)->address,
                       each->Allocate(4000)->address});
    }
  }
  State PollAfter(int64_t ns) {
    clock.Advance(ns);
    return communicator->Poll();
  }
  absl::Status Sum() { return communicator->AllReduce(DType::kF32, Op::kSum, 1000, parts); }
  std::unique_ptr<Communicator> communicator;
  std::vector<CollectivePart> parts;
};

TEST_CASE("fake: a communicator takes time to start and to launch", "[gpu]") {
  Pair p;
  CHECK(p.communicator->Poll() == State::kBusy);
  CHECK(absl::IsFailedPrecondition(p.Sum()));
  CHECK(p.PollAfter(2'000'000) == State::kReady);
  REQUIRE(p.Sum().ok());
  CHECK(p.communicator->Poll() == State::kBusy);
  // A record at this moment would not come after the collective.
  REQUIRE(p.device->Record(p.event, p.parts[0].stream).ok());
  CHECK_THAT(p.OnlyViolation(), Contains("before its communicator is ready"));
  CHECK(p.PollAfter(20'000) == State::kReady);
  REQUIRE(p.device->Record(p.event, p.parts[0].stream).ok());
  CHECK_FALSE(p.IsDone());
  p.Pass(100'000);
  CHECK(p.IsDone());
  CHECK(p.machine.violations().empty());
}

TEST_CASE("fake: a communicator that does not start says so", "[gpu]") {
  Pair p;
  p.machine.InjectCollectiveFault(CollectiveFault::kStartFails);
  p.Start();
  CHECK(p.communicator->Poll() == State::kFailed);
  CHECK(absl::IsUnavailable(p.communicator->error()));
  CHECK_THAT(std::string(p.communicator->error().message()), Contains("Fake GPU 0"));
}

TEST_CASE("fake: a collective that hangs or fails is ended by an abort", "[gpu]") {
  for (const CollectiveFault fault :
       {CollectiveFault::kHang, CollectiveFault::kError, CollectiveFault::kCallFails}) {
    Pair p;
    CHECK(p.PollAfter(2'000'000) == State::kReady);
    p.machine.InjectCollectiveFault(fault);
    const absl::Status posted = p.Sum();
    CHECK(posted.ok() == (fault != CollectiveFault::kCallFails));
    const State after = p.PollAfter(1'000'000'000);
    CHECK(after == (fault == CollectiveFault::kHang ? State::kReady : State::kFailed));
    CHECK(absl::IsUnavailable(p.communicator->error()) == (fault != CollectiveFault::kHang));
    if (fault == CollectiveFault::kHang) {
      REQUIRE(p.device->Record(p.event, p.parts[0].stream).ok());
      p.Pass(1'000'000'000);
      CHECK_FALSE(p.IsDone());
    }
    p.communicator->Abort();
    REQUIRE(p.device->Record(p.event, p.parts[0].stream).ok());
    CHECK(p.IsDone());
    p.communicator.reset();
    p.Start();
    CHECK(p.PollAfter(2'000'000) == State::kReady);
    CHECK(p.Sum().ok());
    CHECK(p.PollAfter(20'000) == State::kReady);
    CHECK(p.machine.violations().empty());
  }
}

TEST_CASE("fake: a lost GPU fails its communicators", "[gpu]") {
  Pair p;
  CHECK(p.PollAfter(2'000'000) == State::kReady);
  REQUIRE(p.Sum().ok());
  p.machine.LoseGpu(1);
  CHECK(p.communicator->Poll() == State::kFailed);
  p.communicator.reset();
  REQUIRE(p.device->Record(p.event, p.parts[0].stream).ok());
  CHECK(p.IsDone());  // The other GPU goes on.
}

TEST_CASE("fake: a collective that nothing orders after the copy to its input is a violation",
          "[gpu]") {
  Pair p;
  CHECK(p.PollAfter(2'000'000) == State::kReady);
  const DeviceSpan send = {p.parts[0].send, 4000};
  REQUIRE(p.device->CopyToDevice(p.a, send, p.host.first(4000)).ok());
  REQUIRE(p.Sum().ok());  // Nothing orders the collective after the copy.
  CHECK_THAT(p.OnlyViolation(), Contains("an all-reduce"));
}

// ----- ImportCache. -----

TEST_CASE("ImportCache: it maps each allocation once, until its last user lets go", "[gpu]") {
  TwoProcesses f;
  CHECK(f.device->Unmap(f.mapped).ok());
  ImportCache cache(*f.device, 2);
  const ForeignAllocation first = {Incarnation(7), 1};
  const auto span = cache.Map(first, f.handle);
  REQUIRE(span.ok());
  CHECK(*cache.Map(first, f.handle) == *span);
  const ForeignAllocation also = {Incarnation(8), 5};  // Another rank got the same handle.
  CHECK(*cache.Map(also, f.handle) == *span);
  CHECK(cache.mapped_count() == 1);
  CHECK(cache.mapped_bytes() == kBytes);
  CHECK(f.machine.mapping_count() == 1);
  CHECK(cache.Release(first).ok());
  CHECK(f.machine.mapping_count() == 1);
  CHECK(cache.Release(first).ok());
  CHECK(cache.ReleaseOwner(Incarnation(8)).ok());
  CHECK(f.machine.mapping_count() == 0);
  CHECK(cache.mapped_count() == 0);
}

TEST_CASE("ImportCache: handles that do not fit what is known are refused", "[gpu]") {
  TwoProcesses f;
  CHECK(f.device->Unmap(f.mapped).ok());
  const MemoryHandle more = *f.rank->Export(*f.rank->Allocate(100));
  const MemoryHandle third = *f.rank->Export(*f.rank->Allocate(100));
  ImportCache cache(*f.device, 2);
  REQUIRE(cache.Map({Incarnation(7), 1}, f.handle).ok());
  const auto other_handle = cache.Map({Incarnation(7), 1}, more);
  CHECK(absl::IsInvalidArgument(other_handle.status()));
  CHECK_THAT(std::string(other_handle.status().message()), Contains("two different handles"));
  const auto other_allocation = cache.Map({Incarnation(7), 2}, f.handle);
  CHECK(absl::IsInvalidArgument(other_allocation.status()));
  CHECK_THAT(std::string(other_allocation.status().message()), Contains("not released"));
  REQUIRE(cache.Map({Incarnation(7), 2}, more).ok());
  CHECK(absl::IsResourceExhausted(cache.Map({Incarnation(7), 3}, third).status()));
  CHECK(cache.Map({Incarnation(8), 3}, third).ok());  // Each owner has a limit of its own.
  CHECK(cache.ReleaseOwner(Incarnation(7)).ok());
  CHECK(f.machine.mapping_count() == 1);
}

TEST_CASE("ImportCache: a handle that cannot be mapped is not remembered", "[gpu]") {
  TwoProcesses f;
  CHECK(f.device->Unmap(f.mapped).ok());
  {
    ImportCache cache(*f.device, 2);
    f.machine.RefuseImports(absl::UnimplementedError("no"));
    CHECK(absl::IsUnimplemented(cache.Map({Incarnation(7), 1}, f.handle).status()));
    CHECK(cache.mapped_count() == 0);
    f.machine.RefuseImports(absl::OkStatus());
    CHECK(cache.Map({Incarnation(7), 1}, f.handle).ok());
    CHECK(f.machine.mapping_count() == 1);
  }
  CHECK(f.machine.mapping_count() == 0);
}

}  // namespace
}  // namespace talweg::gpu::fake
