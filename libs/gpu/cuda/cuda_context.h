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

// What this process has on a GPU while it holds the GPU's primary context, and whether a fault has
// taken it. It turns the driver's results into statuses.
class CudaContext {
 public:
  // FAILED_PRECONDITION: a fault has ended an earlier one, and the driver gives no other.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Retain(
      std::shared_ptr<const DriverApi> driver, CuDevice device, GpuInfo info);
  // Ends all that is on it, unless somebody else in this process holds it too.
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const DriverApi& driver() const { return *driver_; }
  CuDevice device() const { return device_; }
  const GpuInfo& info() const { return info_; }
  // OK until a call has said that it is lost.
  const absl::Status& lost() const { return lost_; }

  // Makes it the thread's. ABORTED when it is lost.
  absl::Status Enter();
  // The same at the end, when nobody cares whether it is lost.
  void MakeCurrent() const { driver_->CtxSetCurrent(context_); }
  // The status of a call on it. Remembers that it is lost.
  absl::Status Check(CuResult result, const char* what);
  // The status of a call about another process's memory or event.
  absl::Status CheckShared(CuResult result, const char* what);

  // ----- It is the thread's. -----

  absl::StatusOr<CuStream> NewStream(StreamPriority priority);
  // Makes copies to the peer's memory go straight there, if the machine can.
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
