// SPDX-License-Identifier: Apache-2.0
//
// Copies between two GPUs of the machine. With one GPU, only refusals are tested.
#include <algorithm>
#include <cstring>

#include <catch2/catch.hpp>

#include "libs/gpu/testing/harness.h"

namespace talweg::gpu {
namespace {

constexpr uint64_t kPeerBytes = 100'003;

TEST_CASE("peer: bytes are copied from one GPU to another, each way, after earlier work", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const auto gpus = c.harness->platform().Gpus();
  REQUIRE(gpus.ok());
  if (gpus->size() < 2) return;
  const std::unique_ptr<Device> peer = *c.harness->platform().Open((*gpus)[1].uuid);
  const DeviceSpan here = c.Memory(kPeerBytes);
  const DeviceSpan there = *peer->Allocate(kPeerBytes);
  const StreamId to = c.Stream();
  const StreamId back = *peer->NewStream(StreamPriority::kHigh);
  const std::span<std::byte> host = c.Host(kPeerBytes);
  FillPattern(host, 5);
  REQUIRE(c.device->CopyToDevice(to, here, host).ok());
  REQUIRE(c.device->CopyToPeer(to, *peer, there, here).ok());
  c.Finish(to);
  // The way back ends at another place, so that the test cannot take the first bytes for the
  // result.
  const DeviceSpan home = c.Memory(kPeerBytes);
  REQUIRE(peer->CopyToPeer(back, *c.device, home, there).ok());
  const EventId returned = *peer->NewEvent(EventScope::kProcess);
  REQUIRE(peer->Record(returned, back).ok());
  REQUIRE(c.harness->RunUntil([&] { return *peer->Query(returned); }));
  std::fill(host.begin(), host.end(), std::byte{0});
  REQUIRE(c.device->CopyToHost(to, host, home).ok());
  c.Finish(to);
  CHECK(IsPattern(host, 5));
}

TEST_CASE("peer: invalid arguments are refused", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const auto gpus = c.harness->platform().Gpus();
  REQUIRE(gpus.ok());
  const DeviceSpan here = c.Memory(kPeerBytes);
  const StreamId stream = c.Stream();
  CHECK(absl::IsInvalidArgument(c.device->CopyToPeer(stream, *c.device, here, here)));
  if (gpus->size() < 2) return;
  const std::unique_ptr<Device> peer = *c.harness->platform().Open((*gpus)[1].uuid);
  const DeviceSpan there = *peer->Allocate(kPeerBytes);
  const auto refused = [&](DeviceSpan target, DeviceSpan source, StreamId on) {
    CHECK(absl::IsInvalidArgument(c.device->CopyToPeer(on, *peer, target, source)));
  };
  refused(there.Part(0, 10), here, stream);
  refused({there.address, kPeerBytes + 1}, {here.address, kPeerBytes + 1}, stream);
  refused(here, there, stream);  // Each span is the other GPU's.
  refused(there, here, StreamId(999'999));
}

}  // namespace
}  // namespace talweg::gpu
