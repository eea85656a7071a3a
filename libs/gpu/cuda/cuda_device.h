// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_CUDA_DEVICE_H_
#define TALWEG_LIBS_GPU_CUDA_CUDA_DEVICE_H_

#include <map>
#include <memory>

#include "libs/gpu/address_map.h"
#include "libs/gpu/cuda/cuda_context.h"
#include "libs/gpu/cuda/driver_api.h"
#include "libs/gpu/cuda/pinned_regions.h"
#include "libs/gpu/cuda/reduce_kernels.h"
#include "libs/gpu/cuda/wake_streams.h"
#include "libs/gpu/device.h"

namespace talweg::gpu::cuda {

// One GPU, through the driver. CudaContext has the context; this class has everything that was made
// on it.
class CudaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(std::shared_ptr<const DriverApi> driver,
                                                          std::shared_ptr<PinnedRegions> pinned,
                                                          std::span<const std::byte> kernel_image,
                                                          CuDevice device, GpuInfo info);
  ~CudaDevice() override;

  const GpuInfo& info() const override { return context_->info(); }

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
  int WaitDescriptor() const override { return wakeups_.descriptor().get(); }
  absl::Status WakeWhenDone(EventId event) override;
  void DrainWakeups() override { wakeups_.Drain(); }

  absl::Status CopyToHost(StreamId stream, std::span<std::byte> target, DeviceSpan source) override;
  absl::Status CopyToDevice(StreamId stream, DeviceSpan target,
                            std::span<const std::byte> source) override;
  absl::Status CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) override;
  absl::Status CopyToPeer(StreamId stream, Device& peer, DeviceSpan target,
                          DeviceSpan source) override;
  absl::Status ReduceTo(StreamId stream, const ReduceSpec& spec, std::span<const uint64_t> inputs,
                        std::span<const uint64_t> outputs, uint64_t element_count) override;

  // ----- For communicators. -----

  CudaContext& context() { return *context_; }
  absl::StatusOr<CuStream> FindStream(StreamId stream) const;
  absl::Status CheckSpan(DeviceSpan span) const;

 private:
  struct Mapped {
    bool imported = false;
  };
  struct Event {
    CuEvent event = nullptr;
    bool imported = false;
    bool exportable = false;
    bool recorded_here = false;
    bool is_shared() const { return imported || exportable; }
  };

  CudaDevice(std::unique_ptr<CudaContext> context, std::shared_ptr<PinnedRegions> pinned);

  absl::StatusOr<Event*> FindEvent(EventId event);

  const std::unique_ptr<CudaContext> context_;
  const DriverApi& api_;
  const std::shared_ptr<PinnedRegions> pinned_;
  ReduceKernels kernels_;
  WakeStreams wakeups_;

  AddressMap<Mapped> memory_;
  uint64_t next_id_ = 1;
  std::map<StreamId, CuStream> streams_;
  std::map<EventId, Event> events_;
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_CUDA_DEVICE_H_
