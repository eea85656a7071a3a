// SPDX-License-Identifier: Apache-2.0
//
// Order within a stream, between streams, and for queries by the host.
#include <poll.h>

#include <vector>

#include <catch2/catch.hpp>

#include "libs/gpu/testing/harness.h"

namespace talweg::gpu {
namespace {

constexpr uint64_t kLong = 64 << 20;  // Copying this takes long enough to be overtaken.
constexpr uint64_t kShort = 4096;

// Posts work to the stream that takes a while, and ends with Pattern(seed) in `target`.
void PostSlowWrite(Case& c, StreamId stream, DeviceSpan slow, std::span<std::byte> slow_host,
                   DeviceSpan target, std::span<std::byte> source, uint64_t seed) {
  for (int i = 0; i < 4; ++i) {
    REQUIRE(c.device->CopyToHost(stream, slow_host, slow).ok());
  }
  FillPattern(source, seed);
  REQUIRE(c.device->CopyToDevice(stream, target, source).ok());
}

struct SlowWriter {
  explicit SlowWriter(Case& c)
      : c(c),
        stream(c.Stream()),
        slow(c.Memory(kLong)),
        slow_host(c.Host(kLong)),
        target(c.Memory(kShort)),
        source(c.Host(kShort)) {}
  void Post(uint64_t seed) { PostSlowWrite(c, stream, slow, slow_host, target, source, seed); }

  Case& c;
  StreamId stream;
  DeviceSpan slow;
  std::span<std::byte> slow_host;
  DeviceSpan target;
  std::span<std::byte> source;
};

TEST_CASE("stream: its work runs in order", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const StreamId stream = c.Stream();
  const DeviceSpan memory = c.Memory(kShort);
  std::vector<std::span<std::byte>> sources;
  std::vector<std::span<std::byte>> results;
  for (uint64_t i = 0; i < 20; ++i) {
    sources.push_back(c.Host(kShort));
    results.push_back(c.Host(kShort));
    FillPattern(sources.back(), i);
    REQUIRE(c.device->CopyToDevice(stream, memory, sources.back()).ok());
    REQUIRE(c.device->CopyToHost(stream, results.back(), memory).ok());
  }
  c.Finish(stream);
  for (uint64_t i = 0; i < 20; ++i) CHECK(IsPattern(results[i], i));
}

TEST_CASE("event: a stream that waits for an event sees the work before it", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  SlowWriter writer(c);
  const StreamId reader = c.Stream();
  const EventId written = c.Event();
  const std::span<std::byte> result = c.Host(kShort);
  writer.Post(1);
  REQUIRE(c.device->Record(written, writer.stream).ok());
  REQUIRE(c.device->Wait(reader, written).ok());
  REQUIRE(c.device->CopyToHost(reader, result, writer.target).ok());
  c.Finish(reader);
  CHECK(IsPattern(result, 1));
  c.Finish(writer.stream);
}

TEST_CASE("event: an event that is recorded anew no longer stands for earlier work", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  SlowWriter writer(c);
  const StreamId idle = c.Stream();
  const StreamId reader = c.Stream();
  const EventId event = c.Event();
  const std::span<std::byte> result = c.Host(kShort);
  writer.Post(2);
  REQUIRE(c.device->Record(event, writer.stream).ok());
  REQUIRE(c.device->Wait(reader, event).ok());
  // The reader still waits for the writer. From now on the event stands for an idle stream.
  REQUIRE(c.device->Record(event, idle).ok());
  REQUIRE(c.device->CopyToHost(reader, result, writer.target).ok());
  c.Finish(reader);
  CHECK(IsPattern(result, 2));
  const auto query = c.device->Query(event);
  REQUIRE(query.ok());
  CHECK(*query);
  c.Finish(writer.stream);
}

TEST_CASE("event: a query by the host is true when all work is done, and not before", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  SlowWriter writer(c);
  const EventId event = c.Event();
  auto query = c.device->Query(event);
  REQUIRE(query.ok());
  CHECK(*query);  // The event was never recorded, so there is nothing to wait for.
  writer.Post(3);
  const std::span<std::byte> result = c.Host(kShort);
  REQUIRE(c.device->CopyToHost(writer.stream, result, writer.target).ok());
  REQUIRE(c.device->Record(event, writer.stream).ok());
  query = c.device->Query(event);
  REQUIRE(query.ok());
  CHECK_FALSE(*query);  // A quarter of a GB cannot have been copied since.
  REQUIRE(c.harness->RunUntil([&] { return *c.device->Query(event); }));
  CHECK(IsPattern(result, 3));
}

TEST_CASE("event: a descriptor becomes readable when an event is done", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  SlowWriter writer(c);
  const auto readable = [&] {
    pollfd descriptor = {.fd = c.device->WaitDescriptor(), .events = POLLIN, .revents = 0};
    return poll(&descriptor, 1, 0) == 1;
  };
  const EventId event = c.Event();
  CHECK_FALSE(readable());
  writer.Post(4);
  REQUIRE(c.device->Record(event, writer.stream).ok());
  REQUIRE(c.device->WakeWhenDone(event).ok());
  CHECK_FALSE(readable());
  // A query moves a machine that stands still between calls.
  REQUIRE(c.harness->RunUntil([&] { return *c.device->Query(event); }));
  REQUIRE(c.harness->RunUntil(readable));
  c.device->DrainWakeups();
  CHECK_FALSE(readable());
  REQUIRE(c.device->WakeWhenDone(event).ok());
  REQUIRE(c.harness->RunUntil(readable));
}

TEST_CASE("stream: the work of a destroyed stream goes on", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  SlowWriter writer(c);
  const EventId event = c.Event();
  const std::span<std::byte> result = c.Host(kShort);
  writer.Post(5);
  REQUIRE(c.device->CopyToHost(writer.stream, result, writer.target).ok());
  REQUIRE(c.device->Record(event, writer.stream).ok());
  c.device->DestroyStream(writer.stream);
  CHECK(absl::IsInvalidArgument(c.device->Record(event, writer.stream)));
  REQUIRE(c.harness->RunUntil([&] { return *c.device->Query(event); }));
  CHECK(IsPattern(result, 5));
}

TEST_CASE("device: a device that is destroyed with work under way takes everything with it",
          "[gpu]") {
  Case c;
  if (c.skipped()) return;
  SlowWriter writer(c);
  writer.Post(6);
  c.device.reset();
  const auto gpus = c.harness->platform().Gpus();
  REQUIRE(gpus.ok());
  auto opened = c.harness->platform().Open(gpus->front().uuid);
  REQUIRE(opened.ok());
  c.device = *std::move(opened);
  c.Finish(c.Stream());
}

}  // namespace
}  // namespace talweg::gpu
