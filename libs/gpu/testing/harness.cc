// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/testing/harness.h"

#include <cstring>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/status/status.h"

namespace talweg::gpu {
namespace {

class PlatformPeer final : public Peer {
 public:
  PlatformPeer(std::unique_ptr<Platform> platform, const GpuUuid& uuid,
               std::function<bool(const std::function<bool()>&)> run_until)
      : platform_(std::move(platform)), uuid_(uuid), run_until_(std::move(run_until)) {}

  absl::StatusOr<Shared> Share(uint64_t bytes, uint64_t seed) override {
    if (device_ == nullptr) {
      TALWEG_ASSIGN_OR_RETURN(device_, platform_->Open(uuid_));
      TALWEG_ASSIGN_OR_RETURN(stream_, device_->NewStream(StreamPriority::kNormal));
      TALWEG_ASSIGN_OR_RETURN(written_, device_->NewEvent(EventScope::kShared));
      TALWEG_ASSIGN_OR_RETURN(taken_, device_->NewEvent(EventScope::kShared));
    }
    Shared shared;
    TALWEG_ASSIGN_OR_RETURN(memory_, device_->Allocate(bytes));
    TALWEG_ASSIGN_OR_RETURN(host_, device_->AllocateHost(bytes));
    TALWEG_RETURN_IF_ERROR(Write(seed, false));
    TALWEG_RETURN_IF_ERROR(Finish());
    TALWEG_ASSIGN_OR_RETURN(shared.memory, device_->Export(memory_));
    TALWEG_ASSIGN_OR_RETURN(shared.written, device_->ExportEvent(written_));
    TALWEG_ASSIGN_OR_RETURN(shared.taken, device_->ExportEvent(taken_));
    shared.bytes = bytes;
    return shared;
  }

  absl::Status Write(uint64_t seed, bool wait_for_taken) override {
    TALWEG_RETURN_IF_ERROR(Finish());  // Afterwards the host buffer is free again.
    FillPattern(host_, seed);
    if (wait_for_taken) TALWEG_RETURN_IF_ERROR(device_->Wait(stream_, taken_));
    TALWEG_RETURN_IF_ERROR(device_->CopyToDevice(stream_, memory_, host_));
    return device_->Record(written_, stream_);
  }

  absl::StatusOr<std::vector<std::byte>> Read() override {
    TALWEG_RETURN_IF_ERROR(device_->CopyToHost(stream_, host_, memory_));
    TALWEG_RETURN_IF_ERROR(device_->Record(written_, stream_));
    TALWEG_RETURN_IF_ERROR(Finish());
    return std::vector<std::byte>(host_.begin(), host_.end());
  }

  absl::Status Free() override {
    TALWEG_RETURN_IF_ERROR(Finish());
    TALWEG_RETURN_IF_ERROR(device_->Free(memory_));
    return device_->FreeHost(host_);
  }

  void Kill() override {
    device_.reset();
    platform_.reset();
  }

 private:
  absl::Status Finish() {
    absl::Status status;
    const bool done = run_until_([&] {
      const auto query = device_->Query(written_);
      status = query.status();
      return !query.ok() || *query;
    });
    return done ? status : absl::DeadlineExceededError("the peer's work is not done");
  }

  std::unique_ptr<Platform> platform_;
  const GpuUuid uuid_;
  const std::function<bool(const std::function<bool()>&)> run_until_;
  std::unique_ptr<Device> device_;
  StreamId stream_;
  EventId written_;
  EventId taken_;
  DeviceSpan memory_;
  std::span<std::byte> host_;
};

}  // namespace

std::unique_ptr<Peer> NewPlatformPeer(std::unique_ptr<Platform> platform, const GpuUuid& uuid,
                                      std::function<bool(const std::function<bool()>&)> run_until) {
  return std::make_unique<PlatformPeer>(std::move(platform), uuid, std::move(run_until));
}

Case::Case() : harness(NewHarness()) {
  if (harness == nullptr) return;
  const auto gpus = harness->platform().Gpus();
  REQUIRE(gpus.ok());
  REQUIRE_FALSE(gpus->empty());
  auto opened = harness->platform().Open(gpus->front().uuid);
  REQUIRE(opened.ok());
  device = *std::move(opened);
}

Case::~Case() {
  device.reset();
  if (harness != nullptr) harness->CheckClean();
}

void Case::Finish(StreamId stream) {
  const EventId event = Event();
  REQUIRE(device->Record(event, stream).ok());
  absl::Status status;
  REQUIRE(harness->RunUntil([&] {
    const auto query = device->Query(event);
    status = query.status();
    return !query.ok() || *query;
  }));
  INFO(status.ToString());
  REQUIRE(status.ok());
  device->DestroyEvent(event);
}

std::span<std::byte> Case::Host(uint64_t bytes) {
  const auto host = device->AllocateHost(bytes);
  INFO(host.status().ToString());
  REQUIRE(host.ok());
  return *host;
}

DeviceSpan Case::Memory(uint64_t bytes) {
  const auto span = device->Allocate(bytes);
  INFO(span.status().ToString());
  REQUIRE(span.ok());
  return *span;
}

StreamId Case::Stream() {
  const auto stream = device->NewStream(StreamPriority::kNormal);
  REQUIRE(stream.ok());
  return *stream;
}

EventId Case::Event(EventScope scope) {
  const auto event = device->NewEvent(scope);
  REQUIRE(event.ok());
  return *event;
}

void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  Random random(seed);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
  }
}

std::vector<std::byte> Pattern(uint64_t seed, size_t size) {
  std::vector<std::byte> bytes(size);
  FillPattern(bytes, seed);
  return bytes;
}

bool IsPattern(std::span<const std::byte> bytes, uint64_t seed) {
  const std::vector<std::byte> want = Pattern(seed, bytes.size());
  return std::memcmp(bytes.data(), want.data(), want.size()) == 0;
}

}  // namespace talweg::gpu
