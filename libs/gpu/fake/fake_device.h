// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_FAKE_DEVICE_H_
#define TALWEG_LIBS_GPU_FAKE_FAKE_DEVICE_H_

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/gpu/address_map.h"
#include "libs/gpu/device.h"
#include "libs/gpu/fake/world.h"
#include "libs/gpu/kernels/reduce_plan.h"

namespace talweg::gpu::fake {

// Pinned memory of one process, for all its devices.
struct PinnedRegions {
  struct Region {
    std::shared_ptr<Memory> memory;
    FakeDevice* owner = nullptr;
    std::unique_ptr<std::byte[]> allocated;
  };
  AddressMap<std::shared_ptr<Region>> map;
};

// Bytes of a piece of memory that work reads or writes.
struct Place {
  std::shared_ptr<Memory> memory;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  std::byte* data() const { return memory->data + offset; }
};

// Poison, so that whoever reads what is being written is found out.
inline void Poison(const Place& place) {
  std::memset(place.data(), static_cast<int>(kPoison), place.bytes);
}

struct Access {
  Place place;
  AccessKind kind;
};

class FakeDevice final : public Device {
 public:
  FakeDevice(World& world, std::shared_ptr<PinnedRegions> pinned, size_t gpu);
  ~FakeDevice() override;

  const GpuInfo& info() const override { return state().info; }

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

  // ABORTED when the GPU is lost. Otherwise moves the machine.
  absl::Status Ready();
  bool HasStream(StreamId stream) const { return streams_.contains(stream); }
  absl::StatusOr<Place> Resolve(DeviceSpan span) const;
  VectorClock& clock_of(StreamId stream) { return streams_.at(stream).clock; }
  // Nothing else may be posted to the stream until it is released.
  void Reserve(StreamId stream, bool reserved);
  // Enters the accesses of work that is posted now, and posts it.
  void Post(StreamId stream, Work work, const std::vector<Access>& accesses,
            const std::string& what);
  // The context is lost: its work stops where it is, and every call is ABORTED. Once it is
  // destroyed, what it did is over for everybody.
  void Lose();

 private:
  struct Mapped {
    std::shared_ptr<fake::Memory> memory;
    bool imported = false;
  };
  struct Stream {
    VectorClock clock;
    bool reserved = false;
  };
  struct Event {
    std::shared_ptr<SharedEvent> shared;
    bool imported = false;
    bool exportable = false;
    bool recorded_here = false;
    bool is_shared() const { return imported || exportable; }
  };

  GpuState& state() const { return world_.gpus[gpu_]; }
  absl::StatusOr<Place> ResolveHost(std::span<const std::byte> bytes) const;
  absl::StatusOr<Stream*> FindStream(StreamId stream);
  absl::StatusOr<Event*> FindEvent(EventId event);
  // A violation if work of this device may still use the memory.
  void CheckUnused(const fake::Memory& memory, const char* doing) const;
  // `doing` waits for all of this device's work. A violation if some of it may never end.
  void CheckEnds(const std::string& doing) const;
  uint64_t Place256(uint64_t bytes);
  absl::Status Pin(std::span<std::byte> bytes, std::unique_ptr<std::byte[]> allocated);
  absl::Status Unpin(std::span<std::byte> bytes, bool allocated);
  void ForgetPinned(std::span<std::byte> bytes);
  absl::Status Copy(StreamId stream, Engine engine, const Place& target, const Place& source,
                    const char* what);
  int64_t CostNs(uint64_t bytes, int64_t bytes_per_us) const;

  World& world_;
  const std::shared_ptr<PinnedRegions> pinned_;
  const size_t gpu_;
  bool lost_ = false;
  bool is_known_lost_ = false;  // A call has said so.
  VectorClock stopped_;         // What its streams had posted when it was lost.
  const std::shared_ptr<Descriptor> wakeups_;
  uint64_t next_address_;
  AddressMap<Mapped> memory_;
  std::map<StreamId, Stream> streams_;
  std::set<Actor> actors_;  // Destroyed streams too.
  uint64_t next_event_ = 1;
  std::map<EventId, Event> events_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_FAKE_DEVICE_H_
