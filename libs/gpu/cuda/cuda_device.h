// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_CUDA_DEVICE_H_
#define TALWEG_LIBS_GPU_CUDA_CUDA_DEVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/gpu/address_map.h"
#include "libs/gpu/cuda/driver_api.h"
#include "libs/gpu/device.h"
#include "libs/gpu/kernels/reduce_plan.h"

namespace talweg::gpu::cuda {

class CudaDevice;

// Pinned memory of this process, for all its devices.
struct PinnedRegion {
  CudaDevice* owner = nullptr;
  bool allocated = false;
};
using PinnedRegions = AddressMap<PinnedRegion>;

class CudaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(std::shared_ptr<const DriverApi> driver,
                                                          std::shared_ptr<PinnedRegions> pinned,
                                                          std::span<const std::byte> kernel_image,
                                                          CuDevice device, GpuInfo info);
  ~CudaDevice() override;

  const GpuInfo& info() const override { return info_; }

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

  // ----- For communicators. -----

  // Makes this device's context the thread's. ABORTED when the device is lost.
  absl::Status Enter();
  absl::StatusOr<CuStream> FindStream(StreamId stream) const;
  absl::Status CheckSpan(DeviceSpan span) const;

 private:
  struct Mapped {
    bool imported = false;
  };
  // A stream for one wake-up at a time, so that none holds up another.
  struct WakeStream {
    CuStream stream = nullptr;
    std::shared_ptr<std::atomic<bool>> is_idle;
  };
  struct Event {
    CuEvent event = nullptr;
    bool imported = false;
    bool exportable = false;
    bool recorded_here = false;
    bool is_shared() const { return imported || exportable; }
  };

  CudaDevice(std::shared_ptr<const DriverApi> driver, std::shared_ptr<PinnedRegions> pinned,
             CuDevice device, CuContext context, GpuInfo info);

  // The status of a call on this device. Remembers that the device is lost.
  absl::Status Check(CuResult result, const char* what);
  // The status of a call about another process's memory or event.
  absl::Status CheckShared(CuResult result, const char* what);
  absl::StatusOr<Event*> FindEvent(EventId event);
  absl::Status Unpin(std::span<std::byte> bytes, bool allocated);
  // Makes copies to the peer's memory go straight there, if the machine can.
  absl::Status ReachPeer(const CudaDevice& peer);
  absl::Status CheckHost(std::span<const std::byte> bytes) const;
  absl::StatusOr<CuFunction> FindKernel(const kernels::ReducePlan& plan);
  void LoadKernels(std::span<const std::byte> image);
  absl::StatusOr<CuStream> MakeStream(StreamPriority priority);
  absl::StatusOr<WakeStream> IdleWakeStream();

  const std::shared_ptr<const DriverApi> driver_;
  const std::shared_ptr<PinnedRegions> pinned_;
  const CuDevice device_;
  const CuContext context_;
  const GpuInfo info_;
  absl::Status lost_;
  int multiprocessor_count_ = 1;
  int priority_least_ = 0;
  int priority_greatest_ = 0;

  absl::Status kernels_status_;
  CuModule module_ = nullptr;
  std::map<std::string, CuFunction> kernels_;

  AddressMap<Mapped> memory_;
  uint64_t next_id_ = 1;
  std::map<StreamId, CuStream> streams_;
  std::map<EventId, Event> events_;
  std::vector<WakeStream> wake_streams_;
  std::set<CuContext> peers_;  // The peers that ReachPeer asked for.
  const std::shared_ptr<Descriptor> wakeups_;
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_CUDA_DEVICE_H_
