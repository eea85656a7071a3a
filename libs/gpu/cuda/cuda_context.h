// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_CUDA_CONTEXT_H_
#define TALWEG_LIBS_GPU_CUDA_CUDA_CONTEXT_H_

#include <absl/status/statusor.h>

#include <memory>
#include <set>
#include <utility>

#include "libs/gpu/cuda/driver_api.h"
#include "libs/gpu/device.h"

namespace talweg::gpu::cuda {

// This process's hold on a GPU's primary context. Knows whether a fault has ended the context, and
// turns the driver's results into statuses.
class CudaContext {
 public:
  // FAILED_PRECONDITION: a fault has ended an earlier context, and the driver gives no other.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Retain(
      std::shared_ptr<const DriverApi> driver, CuDevice device, GpuInfo info);
  // Ends everything on the context, unless other code of this process holds it, too.
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const DriverApi& driver() const { return *driver_; }
  CuDevice device() const { return device_; }
  const GpuInfo& info() const { return info_; }
  // OK until a call has shown that the context is lost.
  const absl::Status& lost() const { return lost_; }

  // Makes the context current on this thread. ABORTED: the context is lost.
  absl::Status Enter();
  // The same for destructors, which do not care whether it is lost.
  void MakeCurrent() const { driver_->CtxSetCurrent(context_); }
  // Returns the status of a call on the context. Remembers if the context is lost.
  absl::Status Check(CuResult result, const char* what);
  // Returns the status of a call about another process's memory or event.
  absl::Status CheckShared(CuResult result, const char* what);

  // ----- The context must be current. -----

  absl::StatusOr<CuStream> NewStream(StreamPriority priority);
  // Makes copies to the peer's memory direct, if the machine can.
  absl::Status ReachPeer(const CudaContext& peer);
  absl::Status CopyToPeer(const CudaContext& peer, uint64_t target, uint64_t source, uint64_t bytes,
                          CuStream stream);

 private:
  CudaContext(std::shared_ptr<const DriverApi> driver, CuDevice device, CuContext context,
              GpuInfo info)
      : driver_(std::move(driver)), device_(device), context_(context), info_(std::move(info)) {}

  const std::shared_ptr<const DriverApi> driver_;
  const CuDevice device_;
  const CuContext context_;
  const GpuInfo info_;
  absl::Status lost_;
  int priority_least_ = 0;
  int priority_greatest_ = 0;
  std::set<CuContext> peers_;  // The peers that ReachPeer asked for.
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_CUDA_CONTEXT_H_
