// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_WAKE_STREAMS_H_
#define TALWEG_LIBS_GPU_CUDA_WAKE_STREAMS_H_

#include <absl/status/statusor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/gpu/cuda/cuda_context.h"

namespace talweg::gpu::cuda {

// Streams that wait for events, and then wake this process through a descriptor. Each stream has
// one wake-up at a time, so that no wake-up delays another.
class WakeStreams {
 public:
  // The context outlives this object.
  explicit WakeStreams(CudaContext& context);
  WakeStreams(const WakeStreams&) = delete;
  WakeStreams& operator=(const WakeStreams&) = delete;

  // Not valid if the process has no descriptors left.
  const Descriptor& descriptor() const { return *descriptor_; }
  // Makes the descriptor readable when the event is done. The context must be current.
  absl::Status WakeWhenDone(CuEvent event);
  void Drain();
  // Call it when the device ends. Wake-ups that are under way do not come.
  void Close();

 private:
  struct WakeStream {
    CuStream stream = nullptr;
    std::shared_ptr<std::atomic<bool>> is_idle;
  };
  absl::StatusOr<WakeStream> Idle();

  CudaContext& context_;
  const std::shared_ptr<Descriptor> descriptor_;
  std::vector<WakeStream> streams_;
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_WAKE_STREAMS_H_
