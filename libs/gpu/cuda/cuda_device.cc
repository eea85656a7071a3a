// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/cuda_device.h"

#include <absl/strings/str_cat.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "libs/base/check.h"
#include "libs/gpu/cuda/ipc_handle.h"
#include "libs/gpu/cuda/wakeups.h"
#include "libs/status/status.h"

namespace talweg::gpu::cuda {
namespace {

// The most blocks of a grid for each multiprocessor. With more, each thread has too little to do.
// The kernels go on with what the grid does not cover.
constexpr uint64_t kBlocksPerMultiprocessor = 8;

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<const DriverApi> driver,
                       std::shared_ptr<PinnedRegions> pinned, CuDevice device, CuContext context,
                       GpuInfo info)
    : driver_(std::move(driver)),
      pinned_(std::move(pinned)),
      device_(device),
      context_(context),
      info_(std::move(info)),
      wakeups_(std::make_shared<Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(
    std::shared_ptr<const DriverApi> driver, std::shared_ptr<PinnedRegions> pinned,
    std::span<const std::byte> kernel_image, CuDevice device, GpuInfo info) {
  CuContext context = nullptr;
  const absl::Status retained = DriverStatus(*driver, driver->PrimaryCtxRetain(&context, device),
                                             absl::StrCat("a context on ", Describe(info)));
  if (absl::IsAborted(retained)) {
    // Seen with driver 580 after an illegal address, whether or not the context was reset.
    return absl::FailedPreconditionError(
        absl::StrCat(retained.message(), "; this process gets no context there, as after a fault"));
  }
  TALWEG_RETURN_IF_ERROR(retained);
  const DriverApi& api = *driver;
  std::unique_ptr<CudaDevice> opened(
      new CudaDevice(std::move(driver), std::move(pinned), device, context, std::move(info)));
  if (!opened->wakeups_->valid()) return status::ErrnoStatus(errno, "eventfd");
  TALWEG_RETURN_IF_ERROR(opened->Enter());
  TALWEG_RETURN_IF_ERROR(
      opened->Check(api.DeviceGetAttribute(&opened->multiprocessor_count_,
                                           kCuAttributeMultiprocessorCount, device),
                    "cuDeviceGetAttribute"));
  TALWEG_RETURN_IF_ERROR(opened->Check(
      api.CtxGetStreamPriorityRange(&opened->priority_least_, &opened->priority_greatest_),
      "cuCtxGetStreamPriorityRange"));
  opened->LoadKernels(kernel_image);
  return opened;
}

CudaDevice::~CudaDevice() {
  Wakeups::Get().DropAll(wakeups_);
  // Nothing can be done about failures here. Everything goes with the context at the latest.
  const DriverApi& api = *driver_;
  api.CtxSetCurrent(context_);
  for (const auto& [id, stream] : streams_) api.StreamDestroy(stream);
  for (const WakeStream& wake : wake_streams_) api.StreamDestroy(wake.stream);
  for (const auto& [id, event] : events_) api.EventDestroy(event.event);
  for (const auto& [address, entry] : memory_.entries()) {
    if (entry.value.imported) {
      api.IpcCloseMemHandle(address);
    } else {
      api.MemFree(address);
    }
  }
  std::vector<std::pair<uint64_t, bool>> mine;
  for (const auto& [address, entry] : pinned_->entries()) {
    if (entry.value.owner == this) mine.emplace_back(address, entry.value.allocated);
  }
  for (const auto& [address, allocated] : mine) {
    void* const host = reinterpret_cast<void*>(address);
    if (allocated) {
      api.MemFreeHost(host);
    } else {
      api.MemHostUnregister(host);
    }
    pinned_->Erase(address);
  }
  if (module_ != nullptr) api.ModuleUnload(module_);
  api.CtxSetCurrent(nullptr);
  api.PrimaryCtxRelease(device_);
  // NCCL's runtime holds the context as well, and would keep what is of no use to anybody.
  if (!lost_.ok()) api.PrimaryCtxReset(device_);
}

absl::Status CudaDevice::Enter() {
  if (!lost_.ok()) return lost_;
  return Check(driver_->CtxSetCurrent(context_), "cuCtxSetCurrent");
}

absl::Status CudaDevice::Check(CuResult result, const char* what) {
  if (result == kCuSuccess) return absl::OkStatus();
  absl::Status status = DriverStatus(*driver_, result, absl::StrCat(what, " on ", Describe(info_)));
  if (absl::IsAborted(status)) lost_ = status;
  return status;
}

absl::Status CudaDevice::CheckShared(CuResult result, const char* what) {
  const absl::Status status =
      DriverStatus(*driver_, result, absl::StrCat(what, " on ", Describe(info_)));
  // The driver says almost anything about a process that it does not reach: that a value, a handle,
  // or this context is invalid, that mapping failed, that it does not know. Only the results below
  // mean what they say. A context that is really gone says so to the next call as well.
  const bool is_vague = result == kCuInvalidContext || result == kCuUnknown;
  if (status.ok() || absl::IsResourceExhausted(status) || (absl::IsAborted(status) && !is_vague)) {
    return Check(result, what);
  }
  return absl::PermissionDeniedError(
      absl::StrCat(status.message(),
                   "; memory of another process cannot be mapped: in containers both sides need "
                   "the same IPC and PID namespaces (docker: --ipc=host --pid=host, Kubernetes: "
                   "hostIPC and hostPID, or one pod with shareProcessNamespace); gradients go "
                   "through host memory"));
}

// ----- Streams and events. -----

absl::StatusOr<CuStream> CudaDevice::MakeStream(StreamPriority priority) {
  CuStream stream = nullptr;
  TALWEG_RETURN_IF_ERROR(
      Check(driver_->StreamCreateWithPriority(
                &stream, kCuStreamNonBlocking,
                priority == StreamPriority::kHigh ? priority_greatest_ : priority_least_),
            "cuStreamCreateWithPriority"));
  return stream;
}

absl::StatusOr<StreamId> CudaDevice::NewStream(StreamPriority priority) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_ASSIGN_OR_RETURN(const CuStream stream, MakeStream(priority));
  const StreamId id(next_id_++);
  streams_[id] = stream;
  return id;
}

absl::StatusOr<EventId> CudaDevice::NewEvent(EventScope scope) {
  TALWEG_RETURN_IF_ERROR(Enter());
  const bool shared = scope == EventScope::kShared;
  Event event = {.exportable = shared};
  const CuResult result = driver_->EventCreate(
      &event.event, kCuEventDisableTiming | (shared ? kCuEventInterprocess : 0));
  TALWEG_RETURN_IF_ERROR(shared ? CheckShared(result, "cuEventCreate")
                                : Check(result, "cuEventCreate"));
  const EventId id(next_id_++);
  events_[id] = event;
  return id;
}

absl::StatusOr<EventHandle> CudaDevice::ExportEvent(EventId event) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  if (!found->exportable) return absl::InvalidArgumentError("the event was not made as kShared");
  CuIpcHandle handle;
  TALWEG_RETURN_IF_ERROR(
      CheckShared(driver_->IpcGetEventHandle(&handle, found->event), "cuIpcGetEventHandle"));
  return FromDriver<EventHandle>(handle);
}

absl::StatusOr<EventId> CudaDevice::ImportEvent(const EventHandle& handle) {
  TALWEG_RETURN_IF_ERROR(Enter());
  Event event = {.imported = true};
  TALWEG_RETURN_IF_ERROR(CheckShared(driver_->IpcOpenEventHandle(&event.event, ToDriver(handle)),
                                     "cuIpcOpenEventHandle"));
  const EventId id(next_id_++);
  events_[id] = event;
  return id;
}

void CudaDevice::DestroyStream(StreamId stream) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return;
  if (Enter().ok()) Check(driver_->StreamDestroy(at->second), "cuStreamDestroy").IgnoreError();
  streams_.erase(at);
}

void CudaDevice::DestroyEvent(EventId event) {
  const auto at = events_.find(event);
  if (at == events_.end()) return;
  if (Enter().ok()) {
    Check(driver_->EventDestroy(at->second.event), "cuEventDestroy").IgnoreError();
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
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  found->recorded_here = true;
  return Check(driver_->EventRecord(found->event, on), "cuEventRecord");
}

absl::Status CudaDevice::Wait(StreamId stream, EventId event) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return Check(driver_->StreamWaitEvent(on, found->event, 0), "cuStreamWaitEvent");
}

absl::StatusOr<bool> CudaDevice::Query(EventId event) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  const CuResult result = driver_->EventQuery(found->event);
  if (result == kCuNotReady) return false;
  TALWEG_RETURN_IF_ERROR(Check(result, "cuEventQuery"));
  return true;
}

absl::StatusOr<CudaDevice::WakeStream> CudaDevice::IdleWakeStream() {
  for (const WakeStream& wake : wake_streams_) {
    if (wake.is_idle->load()) return wake;
  }
  WakeStream wake{.is_idle = std::make_shared<std::atomic<bool>>(true)};
  TALWEG_ASSIGN_OR_RETURN(wake.stream, MakeStream(StreamPriority::kHigh));
  wake_streams_.push_back(wake);
  return wake;
}

absl::Status CudaDevice::WakeWhenDone(EventId event) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  if (found->is_shared() && !found->recorded_here) return NotRecordedHere(event);
  TALWEG_ASSIGN_OR_RETURN(const WakeStream on, IdleWakeStream());
  TALWEG_RETURN_IF_ERROR(
      Check(driver_->StreamWaitEvent(on.stream, found->event, 0), "cuStreamWaitEvent"));
  // Set before the launch, because the driver's thread may be faster than this one.
  on.is_idle->store(false);
  void* const number = Wakeups::Get().Add({wakeups_, on.is_idle});
  const absl::Status launched =
      Check(driver_->LaunchHostFunc(on.stream, &Wakeups::Signal, number), "cuLaunchHostFunc");
  if (!launched.ok()) Wakeups::Get().Drop(number);
  return launched;
}

void CudaDevice::DrainWakeups() {
  uint64_t count = 0;
  TALWEG_CHECK(read(wakeups_->get(), &count, sizeof(count)) == sizeof(count) || errno == EAGAIN);
}

// ----- Work. -----

absl::Status CudaDevice::CopyToHost(StreamId stream, std::span<std::byte> target,
                                    DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
  TALWEG_RETURN_IF_ERROR(CheckHost(target));
  TALWEG_RETURN_IF_ERROR(CheckSpan(source));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return Check(driver_->MemcpyDtoHAsync(target.data(), source.address, source.bytes, on),
               "cuMemcpyDtoHAsync");
}

absl::Status CudaDevice::CopyToDevice(StreamId stream, DeviceSpan target,
                                      std::span<const std::byte> source) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
  TALWEG_RETURN_IF_ERROR(CheckHost(source));
  TALWEG_RETURN_IF_ERROR(CheckSpan(target));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return Check(driver_->MemcpyHtoDAsync(target.address, source.data(), source.size(), on),
               "cuMemcpyHtoDAsync");
}

absl::Status CudaDevice::CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
  TALWEG_RETURN_IF_ERROR(CheckSpan(target));
  TALWEG_RETURN_IF_ERROR(CheckSpan(source));
  if (target.address < source.address + source.bytes &&
      source.address < target.address + target.bytes) {
    return absl::InvalidArgumentError("a copy between bytes that overlap");
  }
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  return Check(driver_->MemcpyDtoDAsync(target.address, source.address, source.bytes, on),
               "cuMemcpyDtoDAsync");
}

absl::Status CudaDevice::ReachPeer(const CudaDevice& peer) {
  if (!peers_.insert(peer.context_).second) return absl::OkStatus();
  int reaches = 0;
  TALWEG_RETURN_IF_ERROR(Check(driver_->DeviceCanAccessPeer(&reaches, device_, peer.device_),
                               "cuDeviceCanAccessPeer"));
  if (reaches == 0) return absl::OkStatus();  // The driver copies through the host.
  const CuResult result = driver_->CtxEnablePeerAccess(peer.context_, 0);
  // NCCL asks for peer access as well, and the GPU may have as many peers as it can.
  if (result == kCuPeerAccessAlreadyEnabled || result == kCuTooManyPeers) return absl::OkStatus();
  return Check(result, "cuCtxEnablePeerAccess");
}

absl::Status CudaDevice::CopyToPeer(StreamId stream, Device& peer, DeviceSpan target,
                                    DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
  const auto* const other = dynamic_cast<CudaDevice*>(&peer);
  if (other == nullptr || other == this) return NoPeer();
  TALWEG_RETURN_IF_ERROR(other->lost_);
  TALWEG_RETURN_IF_ERROR(other->CheckSpan(target));
  TALWEG_RETURN_IF_ERROR(CheckSpan(source));
  TALWEG_ASSIGN_OR_RETURN(const CuStream on, FindStream(stream));
  TALWEG_RETURN_IF_ERROR(ReachPeer(*other));
  return Check(driver_->MemcpyPeerAsync(target.address, other->context_, source.address, context_,
                                        source.bytes, on),
               "cuMemcpyPeerAsync");
}

void CudaDevice::LoadKernels(std::span<const std::byte> image) {
  if (image.empty()) {
    kernels_status_ = absl::UnimplementedError(
        "this build has no GPU kernels: build with bazel build --config=cuda");
    return;
  }
  kernels_status_ = Check(driver_->ModuleLoadData(&module_, image.data()), "cuModuleLoadData");
  // Loads all functions now. A driver that loads lazily does so when a function is first asked for,
  // and may wait for everything on the GPU. A step with collectives under way cannot wait like
  // that.
  for (const std::string& name : kernels::KernelNames()) {
    if (!kernels_status_.ok()) return;
    kernels_status_ = Check(driver_->ModuleGetFunction(&kernels_[name], module_, name.c_str()),
                            "cuModuleGetFunction");
  }
}

absl::StatusOr<CuFunction> CudaDevice::FindKernel(const kernels::ReducePlan& plan) {
  TALWEG_RETURN_IF_ERROR(kernels_status_);
  const auto at = kernels_.find(kernels::KernelName(plan.dtype, plan.combine));
  TALWEG_CHECK(at != kernels_.end());  // PlanReduce makes no others.
  return at->second;
}

absl::Status CudaDevice::ReduceTo(StreamId stream, const ReduceSpec& spec,
                                  std::span<const uint64_t> inputs,
                                  std::span<const uint64_t> outputs, uint64_t element_count) {
  TALWEG_RETURN_IF_ERROR(Enter());
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
      TALWEG_RETURN_IF_ERROR(
          Check(driver_->MemcpyDtoDAsync(output, inputs[0], plan.bytes, on), "cuMemcpyDtoDAsync"));
    }
    return absl::OkStatus();
  }
  TALWEG_ASSIGN_OR_RETURN(const CuFunction kernel, FindKernel(plan));
  const uint64_t work = std::max(plan.arguments.vectors, plan.arguments.head);
  const uint64_t blocks_wanted = (work + kernels::kBlockThreads - 1) / kernels::kBlockThreads;
  const uint64_t blocks_max =
      kBlocksPerMultiprocessor * static_cast<uint64_t>(std::max(multiprocessor_count_, 1));
  const unsigned blocks = static_cast<unsigned>(std::clamp<uint64_t>(blocks_wanted, 1, blocks_max));
  void* parameters[] = {&plan.arguments};
  return Check(driver_->LaunchKernel(kernel, blocks, 1, 1, kernels::kBlockThreads, 1, 1, 0, on,
                                     parameters, nullptr),
               "cuLaunchKernel");
}

}  // namespace talweg::gpu::cuda
