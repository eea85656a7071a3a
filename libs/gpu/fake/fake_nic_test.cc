// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <catch2/catch.hpp>

#include "libs/gpu/fake/fake_machine.h"
#include "libs/runtime/manual_clock.h"

namespace talweg::gpu::fake {
namespace {

using Catch::Matchers::Contains;

// A GPU with some pages that are open to a NIC, and other memory.
struct Fixture {
  Fixture() : machine(clock, {}), platform(machine.NewProcess()) {
    device = *platform->Open(machine.uuid(0));
    const DeviceSpan memory = *device->Allocate(4 * kNicPageBytes);
    const uint64_t skipped = (kNicPageBytes - memory.address % kNicPageBytes) % kNicPageBytes;
    pages = memory.Part(skipped, 2 * kNicPageBytes);
    other = *device->Allocate(pages.bytes);
    stream = *device->NewStream(StreamPriority::kNormal);
    event = *device->NewEvent(EventScope::kProcess);
    bytes.resize(pages.bytes);
    REQUIRE(device->OpenToNic(pages).ok());
  }
  // Posts a copy to or from the pages. Finish() waits for it.
  void Copy(DeviceSpan target, DeviceSpan source) {
    REQUIRE(device->CopyOnDevice(stream, target, source).ok());
    REQUIRE(device->Record(event, stream).ok());
  }
  void Finish() {
    while (!*device->Query(event)) {
      clock.Advance(1'000);
      machine.Advance();
    }
  }

  runtime::ManualClock clock;
  FakeMachine machine;
  std::unique_ptr<Platform> platform;
  std::unique_ptr<Device> device;
  DeviceSpan pages;
  DeviceSpan other;
  StreamId stream;
  EventId event;
  std::vector<std::byte> bytes;
};

TEST_CASE("FakeNic: what a NIC reads must be done, and known to be done", "[gpu]") {
  Fixture f;
  f.Copy(f.pages, f.other);
  const bool asked = GENERATE(false, true);
  f.clock.Advance(1'000'000'000);  // The work is done, but the host has not asked.
  if (asked) f.Finish();
  f.machine.NicReads(*f.device, f.pages, f.bytes);
  CHECK(f.machine.violations().empty() == asked);
  if (!asked) CHECK_THAT(f.machine.violations()[0], Contains("a NIC reads"));
  f.machine.ClearViolations();
  f.Copy(f.pages, f.other);  // The host knows that this comes after the read.
  CHECK(f.machine.violations().empty());
}

TEST_CASE("FakeNic: after a flush the GPU sees what a NIC wrote", "[gpu]") {
  Fixture f;
  const std::vector<std::byte> written(f.pages.bytes, std::byte{7});
  f.machine.NicWrites(*f.device, f.pages, written);
  const bool flushed = GENERATE(false, true);
  if (flushed) REQUIRE(f.device->FlushNicWrites().ok());
  f.Copy(f.other, f.pages);
  CHECK(f.machine.violations().empty() == flushed);
  if (!flushed) CHECK_THAT(f.machine.violations()[0], Contains("a NIC, which writes it"));
  f.Finish();
  REQUIRE(f.device->ReadNow(f.bytes, f.other).ok());
  CHECK(f.bytes == written);
}

TEST_CASE("FakeNic: a NIC's read after its own writes needs no flush", "[gpu]") {
  Fixture f;
  const std::vector<std::byte> written(f.pages.bytes, std::byte{7});
  f.machine.NicWrites(*f.device, f.pages, written);
  f.machine.NicReads(*f.device, f.pages, f.bytes);
  CHECK(f.machine.violations().empty());
  CHECK(f.bytes == written);
  // The GPU's engines still do not see the writes.
  f.Copy(f.other, f.pages);
  CHECK_FALSE(f.machine.violations().empty());
}

TEST_CASE("FakeNic: a NIC may not use memory that was not opened to it", "[gpu]") {
  Fixture f;
  std::vector<std::byte> bytes(f.other.bytes);
  f.machine.NicReads(*f.device, f.other, bytes);
  REQUIRE(f.machine.violations().size() == 1);
  CHECK_THAT(f.machine.violations()[0], Contains("which nobody opened"));
}

}  // namespace
}  // namespace talweg::gpu::fake
