// SPDX-License-Identifier: Apache-2.0
// Conformance of transports, third part: memory of accelerators.
#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

TEST_CASE("Transport: devices' memory is taken, or an error says why not", "[transport]") {
  const auto harness = NewHarness();
  const auto transport = harness->NewTransport();
  const absl::Status takes = transport->TakesDeviceMemory();
  CHECK(takes.ok() == (harness->device() != nullptr));
  if (takes.ok()) {
    CHECK(absl::IsInvalidArgument(transport->RegisterDevice({}).status()));
    return;
  }
  CHECK_FALSE(takes.message().empty());
  CHECK(transport->RegisterDevice({.address = 4096, .bytes = 4096}).status() == takes);
}

TEST_CASE("Transport: writes from and to devices' memory land like others", "[transport]") {
  const auto harness = NewHarness();
  TestDevice* const device = harness->device();
  if (device == nullptr) return;
  Pair pair(*harness);
  REQUIRE(pair.connected);
  const bool from_device = GENERATE(true, false);
  const bool to_device = GENERATE(true, false);
  const size_t size = GENERATE(size_t{1}, 64 * kKiB, 8 * kMiB + 3);
  CAPTURE(from_device, to_device, size);
  if (!from_device && !to_device) return;
  constexpr size_t kMargin = 5;
  const size_t all = size + 2 * kMargin;
  std::vector<std::byte> source = Pattern(1, all);
  std::vector<std::byte> target(all, std::byte{0xee});
  const DeviceMemory device_source = device->Allocate(all);
  const DeviceMemory device_target = device->Allocate(all);
  device->Store(device_source, source);
  device->Store(device_target, target);
  Transport& client = *pair.client.transport;
  Transport& server = *pair.server.transport;
  const auto from = from_device ? client.RegisterDevice(device_source) : client.Register(source);
  const auto to = to_device ? server.RegisterDevice(device_target) : server.Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  CHECK(from->registration()->on_device() == from_device);
  const auto read = [&] { return to_device ? device->Load(device_target) : target; };
  bool landed = false;
  pair.server.sink.on_frame = [&](ConnectionId, std::span<const std::byte>) {
    const std::vector<std::byte> now = read();
    landed = std::equal(source.begin() + kMargin, source.end() - kMargin, now.begin() + kMargin);
  };
  client.PostWrite(pair.to_server, from->Slice(kMargin, size), to->Ref(kMargin), 77);
  client.PostFrame(pair.to_server, FrameOf(1));
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] {
    return !pair.server.sink.frames.empty() && !pair.client.sink.writes_done.empty();
  }));
  CHECK(landed);
  CHECK(client.PendingBytes(pair.to_server) == 0);
  const std::vector<std::byte> now = read();
  for (size_t i = 0; i < kMargin; ++i) {
    CHECK(now[i] == std::byte{0xee});
    CHECK(now[all - 1 - i] == std::byte{0xee});
  }
}

TEST_CASE("Transport: writes of both kinds of memory do not mix", "[transport]") {
  const auto harness = NewHarness();
  TestDevice* const device = harness->device();
  if (device == nullptr) return;
  Pair pair(*harness);
  REQUIRE(pair.connected);
  constexpr size_t kCount = 40;
  constexpr size_t kLength = 3'001;
  std::vector<std::byte> source = Pattern(1, kCount * kLength);
  std::vector<std::byte> target(source.size());
  const DeviceMemory copy = device->Allocate(source.size());
  device->Store(copy, source);
  const auto from_host = pair.client.transport->Register(source);
  const auto from_device = pair.client.transport->RegisterDevice(copy);
  const auto to = pair.server.transport->Register(target);
  REQUIRE(from_host.ok());
  REQUIRE(from_device.ok());
  REQUIRE(to.ok());
  for (size_t i = 0; i < kCount; ++i) {
    const Region& from = i % 3 == 1 ? *from_device : *from_host;
    pair.client.transport->PostWrite(pair.to_server, from.Slice(i * kLength, kLength),
                                     to->Ref(i * kLength), i);
  }
  pair.client.transport->PostFrame(pair.to_server, FrameOf(1));
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] {
    return !pair.server.sink.frames.empty() && pair.client.sink.writes_done.size() == kCount;
  }));
  CHECK(target == source);
}

TEST_CASE("Transport: a write past the end of a device's region ends the connection",
          "[transport]") {
  const auto harness = NewHarness();
  TestDevice* const device = harness->device();
  if (device == nullptr) return;
  Pair pair(*harness);
  REQUIRE(pair.connected);
  std::vector<std::byte> source(8192, std::byte{1});
  const DeviceMemory memory = device->Allocate(4096);
  const auto from = pair.client.transport->Register(source);
  const auto to = pair.server.transport->RegisterDevice(memory);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  pair.client.transport->PostWrite(pair.to_server, from->Slice(0, 8192), to->Ref(), 1);
  pair.client.transport->PostFrame(pair.to_server, FrameOf(1));
  REQUIRE(PollUntil({&pair.client, &pair.server},
                    [&] { return !pair.client.sink.disconnected.empty(); }));
  CHECK(pair.server.sink.frames.empty());
}

}  // namespace
}  // namespace talweg::transport
