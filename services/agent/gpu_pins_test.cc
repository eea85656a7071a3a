// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_pins.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

using pipeline::Memory;

pipeline::SliceBytes In(Memory memory) { return {.tensor = TensorIndex{0}, .memory = memory}; }

TEST_CASE("GpuPins: a tensor's memory is pinned once, and given back", "[gpu]") {
  Parts p;
  REQUIRE(p.node.Open(p.machine.uuid(0)).ok());
  REQUIRE(p.node.Open(p.machine.uuid(1)).ok());
  const uint64_t staging = p.machine.pinned_bytes();
  CHECK_FALSE(p.pins.IsPinned(In(Memory::kSendBuffer)));
  p.pins.Pin(TensorIndex{0}, p.machine.uuid(0));
  p.pins.Pin(TensorIndex{0}, p.machine.uuid(1));
  CHECK(p.machine.pinned_bytes() == staging + 3 * 4096);
  CHECK(p.pins.IsPinned(In(Memory::kSendBuffer)));
  CHECK(p.pins.IsPinned(In(Memory::kResult)));
  p.pins.UnpinOn(p.machine.uuid(1));
  CHECK(p.pins.IsPinned(In(Memory::kResult)));
  CHECK(p.machine.pinned_bytes() == staging + 3 * 4096);  // The other GPU has pinned nothing.
  p.pins.UnpinOn(p.machine.uuid(0));
  CHECK_FALSE(p.pins.IsPinned(In(Memory::kResult)));
  CHECK(p.machine.pinned_bytes() == staging);
  CHECK(p.notes.empty());
}

TEST_CASE("GpuPins: memory that cannot be pinned is staged, and that is reported", "[gpu]") {
  Parts p({.gpu_count = 4, .pinned_bytes_max = 2 * 256 * kKiB + 4096});
  REQUIRE(p.node.Open(p.machine.uuid(0)).ok());
  p.pins.Pin(TensorIndex{0}, p.machine.uuid(0));
  CHECK(p.pins.IsPinned(In(Memory::kSendBuffer)));
  CHECK_FALSE(p.pins.IsPinned(In(Memory::kResult)));
  REQUIRE(p.notes.size() == 1);
  CHECK_THAT(p.notes[0], Catch::Matchers::Contains("results of tensor 'w' go through staging"));
  p.pins.UnpinAll();
}

}  // namespace
}  // namespace talweg::agent
