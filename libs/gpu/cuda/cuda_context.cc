// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/cuda_context.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "libs/status/status.h"

namespace talweg::gpu::cuda {

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Retain(
    std::shared_ptr<const DriverApi> driver, CuDevice device, GpuInfo info) {
  CuContext context = nullptr;
  const absl::Status retained = DriverStatus(*driver, driver->PrimaryCtxRetain(&context, device),
                                             absl::StrCat("a context on ", Describe(info)));
  if (absl::IsAborted(retained)) {
    // Seen with driver 580 after an illegal address, whether or not the context was reset.
    return absl::FailedPreconditionError(
        absl::StrCat(retained.message(), "; this process gets no context there, as after a fault"));
  }
  TALWEG_RETURN_IF_ERROR(retained);
  std::unique_ptr<CudaContext> held(
      new CudaContext(std::move(driver), device, context, std::move(info)));
  TALWEG_RETURN_IF_ERROR(held->Enter());
  TALWEG_RETURN_IF_ERROR(held->Check(
      held->driver_->CtxGetStreamPriorityRange(&held->priority_least_, &held->priority_greatest_),
      "cuCtxGetStreamPriorityRange"));
  return held;
}

CudaContext::~CudaContext() {
  driver_->CtxSetCurrent(nullptr);
  driver_->PrimaryCtxRelease(device_);
  // NCCL's runtime holds the context, too, and would keep a context that nobody can use.
  if (!lost_.ok()) driver_->PrimaryCtxReset(device_);
}

absl::Status CudaContext::Enter() {
  if (!lost_.ok()) return lost_;
  return Check(driver_->CtxSetCurrent(context_), "cuCtxSetCurrent");
}

absl::Status CudaContext::Check(CuResult result, const char* what) {
  if (result == kCuSuccess) return absl::OkStatus();
  absl::Status status = DriverStatus(*driver_, result, absl::StrCat(what, " on ", Describe(info_)));
  if (absl::IsAborted(status)) lost_ = status;
  return status;
}

absl::Status CudaContext::CheckShared(CuResult result, const char* what) {
  const absl::Status status =
      DriverStatus(*driver_, result, absl::StrCat(what, " on ", Describe(info_)));
  // If the driver cannot reach another process, it may return almost any error: invalid value,
  // invalid handle, invalid context, map failed, unknown. Only the results below are reliable. If
  // the context is really gone, the next call says so, too.
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

absl::StatusOr<CuStream> CudaContext::NewStream(StreamPriority priority) {
  CuStream stream = nullptr;
  TALWEG_RETURN_IF_ERROR(
      Check(driver_->StreamCreateWithPriority(
                &stream, kCuStreamNonBlocking,
                priority == StreamPriority::kHigh ? priority_greatest_ : priority_least_),
            "cuStreamCreateWithPriority"));
  return stream;
}

absl::Status CudaContext::ReachPeer(const CudaContext& peer) {
  if (!peers_.insert(peer.context_).second) return absl::OkStatus();
  int reaches = 0;
  TALWEG_RETURN_IF_ERROR(Check(driver_->DeviceCanAccessPeer(&reaches, device_, peer.device_),
                               "cuDeviceCanAccessPeer"));
  if (reaches == 0) return absl::OkStatus();  // The driver copies through the host.
  const CuResult result = driver_->CtxEnablePeerAccess(peer.context_, 0);
  // NCCL may have enabled peer access already, or the GPU may have its most peers.
  if (result == kCuPeerAccessAlreadyEnabled || result == kCuTooManyPeers) return absl::OkStatus();
  return Check(result, "cuCtxEnablePeerAccess");
}

absl::Status CudaContext::CopyToPeer(const CudaContext& peer, uint64_t target, uint64_t source,
                                     uint64_t bytes, CuStream stream) {
  return Check(driver_->MemcpyPeerAsync(target, peer.context_, source, context_, bytes, stream),
               "cuMemcpyPeerAsync");
}

}  // namespace talweg::gpu::cuda
