// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_CUDA_COMMUNICATOR_H_
#define TALWEG_LIBS_GPU_CUDA_CUDA_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libs/gpu/cuda/cuda_device.h"
#include "libs/gpu/cuda/nccl_api.h"
#include "libs/gpu/device.h"

namespace talweg::gpu::cuda {

// NCCL communicators of several GPUs in one process and thread, in NCCL's non-blocking mode: every
// call may return before it is done, and CommGetAsyncError says when it is.
class CudaCommunicator final : public Communicator {
 public:
  // UNAVAILABLE: it cannot even start.
  static absl::StatusOr<std::unique_ptr<CudaCommunicator>> Start(
      std::shared_ptr<const NcclApi> nccl, std::vector<CudaDevice*> devices);
  ~CudaCommunicator() override { Abort(); }

  State Poll() override;
  absl::Status error() const override { return error_; }
  absl::Status ReduceScatter(DType dtype, Op op, uint64_t shard_elements,
                             std::span<const CollectivePart> parts) override;
  absl::Status AllGather(DType dtype, uint64_t shard_elements,
                         std::span<const CollectivePart> parts) override;
  absl::Status Reduce(DType dtype, Op op, uint64_t element_count, size_t root,
                      std::span<const CollectivePart> parts) override;
  absl::Status Broadcast(DType dtype, uint64_t element_count, size_t root,
                         std::span<const CollectivePart> parts) override;
  absl::Status AllReduce(DType dtype, Op op, uint64_t element_count,
                         std::span<const CollectivePart> parts) override;
  void Abort() override;

 private:
  // The NCCL call of one part.
  using PartCall =
      std::function<NcclResult(const CollectivePart& part, NcclComm comm, CuStream stream)>;

  CudaCommunicator(std::shared_ptr<const NcclApi> nccl, std::vector<CudaDevice*> devices)
      : nccl_(std::move(nccl)), devices_(std::move(devices)), comms_(devices_.size(), nullptr) {}

  absl::Status Post(const char* what, uint64_t send_bytes, uint64_t receive_bytes,
                    std::span<const CollectivePart> parts, const PartCall& call);
  // Makes the communicator fail. Returns why, with the device's name and NCCL's text.
  absl::Status Fail(const char* what, NcclResult result, size_t device);

  const std::shared_ptr<const NcclApi> nccl_;
  const std::vector<CudaDevice*> devices_;
  std::vector<NcclComm> comms_;  // Null once aborted.
  absl::Status error_;
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_CUDA_COMMUNICATOR_H_
