// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_WAKEUPS_H_
#define TALWEG_LIBS_GPU_CUDA_WAKEUPS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "libs/base/descriptor.h"

namespace talweg::gpu::cuda {

struct Wakeup {
  std::shared_ptr<Descriptor> descriptor;
  std::shared_ptr<std::atomic<bool>> is_idle;  // Whether the stream has no wake-up.
};

// The wake-ups of this process that are under way. The driver calls Signal on a thread of its own,
// perhaps after the device is gone, and never for a lost context. So a call owns nothing: it gets a
// number, and the device drops its remaining wake-ups itself.
//
// Any thread may call it.
class Wakeups {
 public:
  static Wakeups& Get();

  // Returns the number for Signal.
  void* Add(Wakeup wakeup);
  // The wake-up will not come.
  void Drop(void* number) { Take(number); }
  // Drops all wake-ups that would write to this descriptor.
  void DropAll(const std::shared_ptr<Descriptor>& descriptor);
  // Writes to the descriptor, unless the wake-up was dropped. The driver calls it.
  static void Signal(void* number);

 private:
  std::optional<Wakeup> Take(void* number);

  std::mutex mutex_;
  uintptr_t last_ = 0;
  std::map<uintptr_t, Wakeup> under_way_;
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_WAKEUPS_H_
