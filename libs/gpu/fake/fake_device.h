// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_FAKE_DEVICE_H_
#define TALWEG_LIBS_GPU_FAKE_FAKE_DEVICE_H_

#include <memory>

#include "libs/base/descriptor.h"
#include "libs/gpu/device.h"
#include "libs/gpu/fake/device_events.h"
#include "libs/gpu/fake/device_streams.h"
#include "libs/gpu/fake/mapped_memory.h"
#include "libs/gpu/fake/pinned_memory.h"
#include "libs/gpu/fake/place.h"
#include "libs/gpu/fake/world.h"

namespace talweg::gpu::fake {

// One GPU of one process.
class FakeDevice final : public Device {
 public:
  FakeDevice(World& world, std::shared_ptr<PinnedMemory> pinned, size_t gpu);
  ~FakeDevice() override;

  const GpuInfo& info() const override { return state_.info; }

  absl::StatusOr<MemoryInfo> Memory() override;
  absl::StatusOr<DeviceSpan> Allocate(uint64_t bytes) override;
  absl::Status Free(DeviceSpan span) override;
  absl::StatusOr<std::span<std::byte>> AllocateHost(uint64_t bytes) override;
  absl::Status FreeHost(std::span<std::byte> bytes) override;
  absl::Status RegisterHost(std::span<std::byte> bytes) override;
  absl::Status UnregisterHost(std::span<std::byte> bytes) override;
  absl::StatusOr<MemoryHandle> Export(DeviceSpan span) override;
  absl::StatusOr<DeviceSpan> Map(const MemoryHandle& handle) override;
  absl::Status Unmap(DeviceSpan span) override;
  absl::StatusOr<NicMemory> OpenToNic(DeviceSpan span) override;
  absl::Status FlushNicWrites() override;
  absl::Status ReadNow(std::span<std::byte> target, DeviceSpan source) override;
  absl::Status WriteNow(DeviceSpan target, std::span<const std::byte> source) override;

  absl::StatusOr<StreamId> NewStream(StreamPriority priority) override;
  absl::StatusOr<EventId> NewEvent(EventScope scope) override;
  absl::StatusOr<EventHandle> ExportEvent(EventId event) override;
  absl::StatusOr<EventId> ImportEvent(const EventHandle& handle) override;
  void DestroyStream(StreamId stream) override;
  void DestroyEvent(EventId event) override;
  absl::Status Record(EventId event, StreamId stream) override;
  absl::Status Wait(StreamId stream, EventId event) override;
  absl::StatusOr<bool> Query(EventId event) override;
  int WaitDescriptor() const override { return wakeups_->get(); }
  absl::Status WakeWhenDone(EventId event) override;
  void DrainWakeups() override;

  absl::Status CopyToHost(StreamId stream, std::span<std::byte> target, DeviceSpan source) override;
  absl::Status CopyToDevice(StreamId stream, DeviceSpan target,
                            std::span<const std::byte> source) override;
  absl::Status CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) override;
  absl::Status CopyToPeer(StreamId stream, Device& peer, DeviceSpan target,
                          DeviceSpan source) override;
  absl::Status ReduceTo(StreamId stream, const ReduceSpec& spec, std::span<const uint64_t> inputs,
                        std::span<const uint64_t> outputs, uint64_t element_count) override;

  // ----- For communicators and the machine. -----

  // Advances the machine. ABORTED: the GPU is lost.
  absl::Status Ready();
  DeviceStreams& streams() { return streams_; }
  const MappedMemory& memory() const { return memory_; }
  // Loses the context: its work stops where it is, and every call returns ABORTED. Once the device
  // is destroyed, its work is over for every actor.
  void Lose();

 private:
  absl::Status Copy(StreamId stream, Engine engine, const Place& target, const Place& source,
                    const char* what);

  World& world_;
  const std::shared_ptr<PinnedMemory> pinned_;
  const size_t gpu_;
  GpuState& state_;
  bool lost_ = false;
  const std::shared_ptr<Descriptor> wakeups_;
  MappedMemory memory_;
  DeviceStreams streams_;
  DeviceEvents events_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_FAKE_DEVICE_H_
