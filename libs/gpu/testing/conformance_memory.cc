// SPDX-License-Identifier: Apache-2.0
//
// Memory of every Device: what may be allocated, pinned and copied, and what is refused.
#include <sys/mman.h>

#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/gpu/testing/harness.h"

namespace talweg::gpu {
namespace {

using Catch::Matchers::Contains;

constexpr uint64_t kMiB = 1 << 20;

TEST_CASE("device: a GPU is opened by its UUID, and an unknown UUID is refused", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const auto gpus = c.harness->platform().Gpus();
  REQUIRE(gpus.ok());
  CHECK(c.device->info().uuid == gpus->front().uuid);
  CHECK(c.device->info().memory_bytes > kMiB);
  CHECK_FALSE(c.device->info().name.empty());
  CHECK_THAT(c.device->info().pci_bus_id, Contains(":"));
  GpuUuid other = gpus->front().uuid;
  other.bytes[3] ^= 0x55;
  const auto refused = c.harness->platform().Open(other);
  REQUIRE_FALSE(refused.ok());
  CHECK(absl::IsNotFound(refused.status()));
  CHECK_THAT(std::string(refused.status().message()),
             Contains(FormatUuid(other)) && Contains(FormatUuid(gpus->front().uuid)));
}

TEST_CASE("device: memory is counted, and a request for too much is refused without harm",
          "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const auto before = c.device->Memory();
  REQUIRE(before.ok());
  CHECK(before->free_bytes <= before->total_bytes);
  const auto refused = c.device->Allocate(c.harness->TooManyBytes(*c.device));
  REQUIRE_FALSE(refused.ok());
  CHECK(absl::IsResourceExhausted(refused.status()));
  CHECK_THAT(std::string(refused.status().message()), Contains(FormatUuid(c.device->info().uuid)));
  const DeviceSpan span = c.Memory(3 * kMiB + 5);
  CHECK(span.bytes == 3 * kMiB + 5);
  CHECK(span.address % 256 == 0);
  CHECK(c.device->Free(span).ok());
  CHECK(absl::IsInvalidArgument(c.device->Free(span)));
  CHECK(absl::IsInvalidArgument(c.device->Allocate(0).status()));
}

TEST_CASE("device: bytes are copied there and back", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{17}, uint64_t{4096}, 2 * kMiB + 3}) {
    const std::span<std::byte> host = c.Host(bytes);
    const std::span<std::byte> back = c.Host(bytes);
    const DeviceSpan first = c.Memory(bytes);
    const DeviceSpan second = c.Memory(bytes);
    const StreamId stream = c.Stream();
    FillPattern(host, bytes);
    REQUIRE(c.device->CopyToDevice(stream, first, host).ok());
    REQUIRE(c.device->CopyOnDevice(stream, second, first).ok());
    REQUIRE(c.device->CopyToHost(stream, back, second).ok());
    c.Finish(stream);
    CHECK(IsPattern(back, bytes));
    c.device->DestroyStream(stream);
    CHECK(c.device->Free(first).ok());
    CHECK(c.device->Free(second).ok());
    CHECK(c.device->FreeHost(host).ok());
    CHECK(c.device->FreeHost(back).ok());
  }
}

TEST_CASE("device: memory that others mapped can be pinned", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  void* const arena =
      mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(arena != MAP_FAILED);
  const std::span<std::byte> host(static_cast<std::byte*>(arena), kMiB);
  const DeviceSpan memory = c.Memory(4096);
  const StreamId stream = c.Stream();
  CHECK(absl::IsInvalidArgument(c.device->CopyToDevice(stream, memory, host.first(4096))));
  REQUIRE(c.device->RegisterHost(host).ok());
  CHECK(absl::IsInvalidArgument(c.device->RegisterHost(host.first(4096))));
  FillPattern(host.subspan(8192, 4096), 7);
  CHECK(c.device->CopyToDevice(stream, memory, host.subspan(8192, 4096)).ok());
  CHECK(c.device->CopyToHost(stream, host.first(4096), memory).ok());
  c.Finish(stream);
  CHECK(IsPattern(host.first(4096), 7));
  CHECK(absl::IsInvalidArgument(c.device->FreeHost(host)));
  CHECK(absl::IsInvalidArgument(c.device->UnregisterHost(host.first(4096))));
  CHECK(c.device->UnregisterHost(host).ok());
  CHECK(absl::IsInvalidArgument(c.device->UnregisterHost(host)));
  CHECK(absl::IsInvalidArgument(c.device->CopyToDevice(stream, memory, host.first(4096))));
  munmap(arena, kMiB);
}

TEST_CASE("device: a few bytes are copied there and back at once", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const DeviceSpan memory = c.Memory(8192);
  const std::vector<std::byte> first = Pattern(1, 4096);
  const std::vector<std::byte> second = Pattern(2, 100);
  std::vector<std::byte> back(4096);
  REQUIRE(c.device->WriteNow(memory.Part(4096, 4096), first).ok());
  REQUIRE(c.device->WriteNow(memory.Part(4100, 100), second).ok());
  REQUIRE(c.device->ReadNow(back, memory.Part(4096, 4096)).ok());
  CHECK(std::equal(second.begin(), second.end(), back.begin() + 4));
  CHECK(std::equal(first.begin() + 104, first.end(), back.begin() + 104));
  CHECK(absl::IsInvalidArgument(c.device->ReadNow(back, memory)));
  CHECK(absl::IsInvalidArgument(c.device->WriteNow({memory.address + 8192, 100}, second)));
}

TEST_CASE("device: a NIC gets only whole pages of this process's own memory", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const DeviceSpan memory = c.Memory(4 * kNicPageBytes);
  const uint64_t skipped = (kNicPageBytes - memory.address % kNicPageBytes) % kNicPageBytes;
  const DeviceSpan pages = memory.Part(skipped, 3 * kNicPageBytes);
  const auto opened = c.device->OpenToNic(pages);
  if (!opened.ok()) {  // Some GPUs cannot do this, and say so.
    CHECK(absl::IsUnimplemented(opened.status()));
    CHECK_THAT(std::string(opened.status().message()), Contains(FormatUuid(c.device->info().uuid)));
    return;
  }
  CHECK(opened->address == pages.address);
  CHECK(opened->bytes == pages.bytes);
  CHECK(c.device->FlushNicWrites().ok());
  CHECK(absl::IsInvalidArgument(c.device->OpenToNic(pages.Part(0, 100)).status()));
  CHECK(absl::IsInvalidArgument(c.device->OpenToNic(pages.Part(256, kNicPageBytes)).status()));
  CHECK(absl::IsInvalidArgument(c.device->OpenToNic({pages.address, 8 * kNicPageBytes}).status()));
}

TEST_CASE("device: addresses that belong to nobody are refused before the GPU sees them", "[gpu]") {
  Case c;
  if (c.skipped()) return;
  const DeviceSpan memory = c.Memory(4096);
  const std::span<std::byte> host = c.Host(8192);
  const StreamId stream = c.Stream();
  const auto refused = [](const absl::Status& status) {
    INFO(status.ToString());
    CHECK(absl::IsInvalidArgument(status));
  };
  refused(c.device->CopyToDevice(stream, {memory.address, 8192}, host));
  refused(c.device->CopyToDevice(stream, {memory.address + 1, 4096}, host.first(4096)));
  refused(c.device->CopyToDevice(stream, {0, 4096}, host.first(4096)));
  refused(c.device->CopyToDevice(stream, memory, host));
  refused(c.device->CopyToHost(stream, host.first(4096), {memory.address - 1, 4096}));
  refused(c.device->CopyOnDevice(stream, memory, {memory.address + 4096, 4096}));
  refused(c.device->CopyOnDevice(stream, memory.Part(0, 100), memory.Part(50, 100)));
  refused(c.device->CopyToHost(StreamId(999'999), host.first(4096), memory));
  refused(c.device->Record(EventId(999'999), stream));
  refused(c.device->Wait(stream, EventId(999'999)));
  refused(c.device->Query(EventId(999'999)).status());
  refused(c.device->Export({memory.address, 100}).status());
  refused(c.device->Unmap(memory));
  const uint64_t inputs[] = {memory.address, memory.address + 4096};
  refused(c.device->Reduce(stream, {.dtype = DType::kF32, .op = Op::kSum}, inputs, memory.address,
                           1024));
  const uint64_t twice[] = {memory.address, memory.address};
  refused(c.device->Reduce(stream, {.dtype = DType::kF32, .op = Op::kSum}, twice,
                           memory.address + 4096, 512));
  c.Finish(stream);  // None of these calls reached the GPU.
}

}  // namespace
}  // namespace talweg::gpu
