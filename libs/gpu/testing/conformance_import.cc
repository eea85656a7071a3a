// SPDX-License-Identifier: Apache-2.0
//
// Memory and events of another process.
#include <vector>

#include <catch2/catch.hpp>

#include "libs/gpu/import_cache.h"
#include "libs/gpu/testing/harness.h"

namespace talweg::gpu {
namespace {

constexpr uint64_t kBytes = 4 << 20;

// A case with a peer that has shared memory, with Pattern(1) in it.
struct PeerCase : Case {
  PeerCase() {
    if (skipped()) return;
    peer = harness->NewPeer(device->info().uuid);
    REQUIRE(peer != nullptr);
    const auto made = peer->Share(kBytes, 1);
    INFO(made.status().ToString());
    REQUIRE(made.ok());
    shared = *made;
    const auto span = device->Map(shared.memory);
    INFO(span.status().ToString());
    REQUIRE(span.ok());
    mapped = *span;
    written = *device->ImportEvent(shared.written);
    taken = *device->ImportEvent(shared.taken);
    stream = Stream();
    host = Host(kBytes);
  }

  std::unique_ptr<Peer> peer;
  Peer::Shared shared;
  DeviceSpan mapped;
  EventId written;
  EventId taken;
  StreamId stream;
  std::span<std::byte> host;
};

TEST_CASE("import: another process's memory is read and written", "[gpu]") {
  PeerCase c;
  if (c.skipped()) return;
  CHECK(c.mapped.bytes >= kBytes);
  REQUIRE(c.harness->RunUntil([&] { return *c.device->Query(c.written); }));
  REQUIRE(c.device->CopyToHost(c.stream, c.host, c.mapped.Part(0, kBytes)).ok());
  c.Finish(c.stream);
  CHECK(IsPattern(c.host, 1));
  FillPattern(c.host, 2);
  REQUIRE(c.device->CopyToDevice(c.stream, c.mapped.Part(0, kBytes), c.host).ok());
  c.Finish(c.stream);
  const auto read = c.peer->Read();
  REQUIRE(read.ok());
  CHECK(IsPattern(*read, 2));
  CHECK(c.device->Unmap(c.mapped).ok());
  CHECK(c.peer->Free().ok());
}

TEST_CASE("import: another process's memory cannot be opened to this one's NIC", "[gpu]") {
  PeerCase c;
  if (c.skipped()) return;
  const uint64_t skipped = (kNicPageBytes - c.mapped.address % kNicPageBytes) % kNicPageBytes;
  const auto opened = c.device->OpenToNic(c.mapped.Part(skipped, kNicPageBytes));
  CHECK(absl::IsInvalidArgument(opened.status()));
  CHECK(c.device->Unmap(c.mapped).ok());
}

TEST_CASE("import: events of either process order both processes' work", "[gpu]") {
  PeerCase c;
  if (c.skipped()) return;
  for (uint64_t round = 2; round < 8; ++round) {
    // The peer waits until this process has taken the round before.
    REQUIRE(c.peer->Write(round, round > 2).ok());
    REQUIRE(c.device->Wait(c.stream, c.written).ok());
    REQUIRE(c.device->CopyToHost(c.stream, c.host, c.mapped.Part(0, kBytes)).ok());
    REQUIRE(c.device->Record(c.taken, c.stream).ok());
    c.Finish(c.stream);
    CHECK(IsPattern(c.host, round));
  }
  CHECK(c.device->Unmap(c.mapped).ok());
}

TEST_CASE(
    "import: only an event that this process records may wake it: a wake-up may block a stream",
    "[gpu]") {
  PeerCase c;
  if (c.skipped()) return;
  CHECK(absl::IsInvalidArgument(c.device->WakeWhenDone(c.written)));
  CHECK(absl::IsInvalidArgument(c.device->WakeWhenDone(c.Event(EventScope::kShared))));
  REQUIRE(c.device->Record(c.taken, c.stream).ok());
  CHECK(c.device->WakeWhenDone(c.taken).ok());
  c.Finish(c.stream);
  CHECK(c.device->Unmap(c.mapped).ok());
}

TEST_CASE("import: memory that was freed and allocated anew is another allocation", "[gpu]") {
  PeerCase c;
  if (c.skipped()) return;
  REQUIRE(c.harness->RunUntil([&] { return *c.device->Query(c.written); }));
  ImportCache cache(*c.device, 10);
  CHECK(c.device->Unmap(c.mapped).ok());
  const ForeignAllocation first = {Incarnation(1), 1};
  REQUIRE(cache.Map(first, c.shared.memory).ok());
  REQUIRE(cache.Release(first).ok());
  REQUIRE(c.peer->Free().ok());
  const auto anew = c.peer->Share(kBytes, 9);
  REQUIRE(anew.ok());
  CHECK(anew->memory != c.shared.memory);
  const ForeignAllocation second = {Incarnation(1), 2};
  const auto span = cache.Map(second, anew->memory);
  REQUIRE(span.ok());
  REQUIRE(c.harness->RunUntil([&] { return *c.device->Query(c.written); }));
  REQUIRE(c.device->CopyToHost(c.stream, c.host, span->Part(0, kBytes)).ok());
  c.Finish(c.stream);
  CHECK(IsPattern(c.host, 9));
}

TEST_CASE("import: memory stays mapped when its process dies, and nothing leaks", "[gpu]") {
  PeerCase c;
  if (c.skipped()) return;
  REQUIRE(c.harness->RunUntil([&] { return *c.device->Query(c.written); }));
  c.peer->Kill();
  // Mapped memory stays readable, whatever is in it.
  REQUIRE(c.device->CopyToHost(c.stream, c.host, c.mapped.Part(0, kBytes)).ok());
  c.Finish(c.stream);
  CHECK(IsPattern(c.host, 1));
  c.device->DestroyEvent(c.written);
  c.device->DestroyEvent(c.taken);
  CHECK(c.device->Unmap(c.mapped).ok());
  c.Finish(c.stream);
}

TEST_CASE("import: random bytes are refused as a handle", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  MemoryHandle memory;
  FillPattern(memory.bytes, 99);
  EventHandle event;
  FillPattern(event.bytes, 98);
  CHECK_FALSE(c.device->Map(memory).ok());
  CHECK_FALSE(c.device->ImportEvent(event).ok());
  CHECK_FALSE(c.device->Map(MemoryHandle{}).ok());
  c.Finish(c.Stream());
}

TEST_CASE("import: only an event that was made to be shared is exported", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  CHECK(absl::IsInvalidArgument(c.device->ExportEvent(c.Event()).status()));
  CHECK(c.device->ExportEvent(c.Event(EventScope::kShared)).ok());
}

}  // namespace
}  // namespace talweg::gpu
