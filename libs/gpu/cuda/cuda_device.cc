// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/cuda_device.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <utility>

#include "libs/gpu/cuda/ipc_handle.h"
#include "libs/gpu/kernels/reduce_plan.h"
#include "libs/status/status.h"

namespace talweg::gpu::cuda {

CudaDevice::CudaDevice(std::unique_ptr<CudaContext> context, std::shared_ptr<PinnedRegions> pinned)
    : context_(std::move(context)),
      api_(context_->driver()),
      pinned_(std::move(pinned)),
      kernels_(*context_),
      wakeups_(*context_) {}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(
    std::shared_ptr<const DriverApi> driver, std::shared_ptr<PinnedRegions> pinned,
    std::span<const std::byte> kernel_image, CuDevice device, GpuInfo info) {
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context,
                          CudaContext::Retain(std::move(driver), device, std::move(info)));
  std::unique_ptr<CudaDevice> opened(new CudaDevice(std::move(context), std::move(pinned)));
  if (!opened->wakeups_.descriptor().valid()) return status::ErrnoStatus(errno, "eventfd");
  TALWEG_RETURN_IF_ERROR(opened->kernels_.Load(kernel_image));
  return opened;
}

CudaDevice::~CudaDevice() {
  // Ignores errors: everything ends with the context at the latest.
  context_->MakeCurrent();
  wakeups_.Close();
  for (const auto& [id, stream] : streams_) api_.StreamDestroy(stream);
  for (const auto& [id, event] : events_) api_.EventDestroy(event.event);
  for (const auto& [address, entry] : memory_.entries()) {
    if (entry.value.imported) {
      api_.IpcCloseMemHandle(address);
    } else {
      api_.MemFree(address);
    }
  }
  pinned_->UnpinAllOf(*context_);
}

// ----- Streams and events. -----

absl::StatusOr<StreamId> CudaDevice::NewStream(StreamPriority priority) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(const CuStream stream, context_->NewStream(priority));
  const StreamId id(next_id_++);
  streams_[id] = stream;
  return id;
}

absl::StatusOr<EventId> CudaDevice::NewEvent(EventScope scope) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  const bool shared = scope == EventScope::kShared;
  Event event = {.exportable = shared};
  const CuResult result =
      api_.EventCreate(&event.event, kCuEventDisableTiming | (shared ? kCuEventInterprocess : 0));
  TALWEG_RETURN_IF_ERROR(shared ? context_->CheckShared(result, "cuEventCreate")
                                : context_->Check(result, "cuEventCreate"));
  const EventId id(next_id_++);
  events_[id] = event;
  return id;
}

absl::StatusOr<EventHandle> CudaDevice::ExportEvent(EventId event) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  if (!found->exportable) return absl::InvalidArgumentError("the event was not made as kShared");
  CuIpcHandle handle;
  TALWEG_RETURN_IF_ERROR(
      context_->CheckShared(api_.IpcGetEventHandle(&handle, found->event), "cuIpcGetEventHandle"));
  return FromDriver<EventHandle>(handle);
}

absl::StatusOr<EventId> CudaDevice::ImportEvent(const EventHandle& handle) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  Event event = {.imported = true};
  TALWEG_RETURN_IF_ERROR(context_->CheckShared(
      api_.IpcOpenEventHandle(&event.event, ToDriver(handle)), "cuIpcOpenEventHandle"));
  const EventId id(next_id_++);
  events_[id] = event;
  return id;
}

void CudaDevice::DestroyStream(StreamId stream) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return;
  if (context_->Enter().ok()) {
    context_->Check(api_.StreamDestroy(at->second), "cuStreamDestroy").IgnoreError();
  }
  streams_.erase(at);
}

void CudaDevice::DestroyEvent(EventId event) {
  const auto at = events_.find(event);
  if (at == events_.end()) return;
  if (context_->Enter().ok()) {
    context_->Check(api_.EventDestroy(at->second.event), "cuEventDestroy").IgnoreError();
  }
  events_.erase(at);
}

absl::StatusOr<CuStream> CudaDevice::FindStream(StreamId stream) const {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no stream ", stream.value(), " on this device"));
  }
  return at->second;
}

absl::StatusOr<CudaDevice::Event*> CudaDevice::FindEvent(EventId event) {
  const auto at = events_.find(event);
  if (at == events_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no event ", event.value(), " on this device"));
  }
  return &at->second;
}

absl::Status CudaDevice::Record(EventId event, StreamId stream) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  found->recorded_here = true;
  return context_->Check(api_.EventRecord(found->event, on), "cuEventRecord");
}

absl::Status CudaDevice::Wait(StreamId stream, EventId event) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return context_->Check(api_.StreamWaitEvent(on, found->event, 0), "cuStreamWaitEvent");
}

absl::StatusOr<bool> CudaDevice::Query(EventId event) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  const CuResult result = api_.EventQuery(found->event);
  if (result == kCuNotReady) return false;
  TALWEG_RETURN_IF_ERROR(context_->Check(result, "cuEventQuery"));
  return true;
}

absl::Status CudaDevice::WakeWhenDone(EventId event) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  if (found->is_shared() && !found->recorded_here) return NotRecordedHere(event);
  return wakeups_.WakeWhenDone(found->event);
}

// ----- Work. -----

absl::Status CudaDevice::CopyToHost(StreamId stream, std::span<std::byte> target,
                                    DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
  TALWEG_RETURN_IF_ERROR(pinned_->Check(target));
  TALWEG_RETURN_IF_ERROR(CheckSpan(source));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return context_->Check(api_.MemcpyDtoHAsync(target.data(), source.address, source.bytes, on),
                         "cuMemcpyDtoHAsync");
}

absl::Status CudaDevice::CopyToDevice(StreamId stream, DeviceSpan target,
                                      std::span<const std::byte> source) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
  TALWEG_RETURN_IF_ERROR(pinned_->Check(source));
  TALWEG_RETURN_IF_ERROR(CheckSpan(target));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return context_->Check(api_.MemcpyHtoDAsync(target.address, source.data(), source.size(), on),
                         "cuMemcpyHtoDAsync");
}

absl::Status CudaDevice::CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
  TALWEG_RETURN_IF_ERROR(CheckSpan(target));
  TALWEG_RETURN_IF_ERROR(CheckSpan(source));
  if (target.address < source.address + source.bytes &&
      source.address < target.address + target.bytes) {
    return absl::InvalidArgumentError("a copy between bytes that overlap");
  }
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return context_->Check(api_.MemcpyDtoDAsync(target.address, source.address, source.bytes, on),
                         "cuMemcpyDtoDAsync");
}

absl::Status CudaDevice::CopyToPeer(StreamId stream, Device& peer, DeviceSpan target,
                                    DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
  const auto* const other = dynamic_cast<CudaDevice*>(&peer);
  if (other == nullptr || other == this) return NoPeer();
  TALWEG_RETURN_IF_ERROR(other->context_->lost());
  TALWEG_RETURN_IF_ERROR(other->CheckSpan(target));
  TALWEG_RETURN_IF_ERROR(CheckSpan(source));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  TALWEG_RETURN_IF_ERROR(context_->ReachPeer(*other->context_));
  return context_->CopyToPeer(*other->context_, target.address, source.address, source.bytes, on);
}

absl::Status CudaDevice::ReduceTo(StreamId stream, const ReduceSpec& spec,
                                  std::span<const uint64_t> inputs,
                                  std::span<const uint64_t> outputs, uint64_t element_count) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(kernels::ReducePlan plan,
                          kernels::PlanReduce(spec, inputs, outputs, element_count));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  if (plan.bytes == 0) return absl::OkStatus();
  for (const uint64_t input : inputs) TALWEG_RETURN_IF_ERROR(CheckSpan({input, plan.bytes}));
  for (const uint64_t output : outputs) {
    TALWEG_RETURN_IF_ERROR(CheckSpan({output, plan.bytes}));
  }
  if (plan.is_copy) {
    for (const uint64_t output : outputs) {
      if (inputs[0] == output) continue;
      TALWEG_RETURN_IF_ERROR(context_->Check(
          api_.MemcpyDtoDAsync(output, inputs[0], plan.bytes, on), "cuMemcpyDtoDAsync"));
    }
    return absl::OkStatus();
  }
  return kernels_.Launch(plan, on);
}

}  // namespace talweg::gpu::cuda
