// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_STUB_STUB_MACHINE_H_
#define TALWEG_LIBS_GPU_CUDA_STUB_STUB_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libs/gpu/cuda/driver_api.h"

// GPUs made of host memory behind the driver's and NCCL's own functions, so that libs/gpu/cuda runs
// on a machine without a GPU. It tests calls, their arguments and their order, not speed. Each
// query of an event runs one piece of a stream's work. So nothing is done at once, and work that
// nobody queries never ends.
namespace talweg::gpu::cuda::stub {

inline constexpr int kGpuCount = 2;
inline constexpr uint64_t kGpuBytes = uint64_t{1} << 30;

struct Memory {
  int gpu = 0;
  size_t bytes = 0;
  bool freed_by_owner = false;
  int mappings = 0;
  bool sync_memops = false;
};

struct EventState {
  std::shared_ptr<bool> latest;  // Whether the latest record is done; null: there is none.
};

struct Stream;

// Work that several streams do together, once each has reached it.
struct Joint {
  std::vector<Stream*> streams;
  std::function<void()> run;
  bool over = false;
};

struct Work {
  std::function<bool()> ready;  // Empty: always.
  std::function<void()> run;
  std::shared_ptr<Joint> joint;
};

struct Stream {
  int gpu = 0;
  bool closed = false;
  int priority = 0;
  std::deque<Work> works;
};

// Returns the result that TALWEG_STUB_FAIL=FUNCTION=RESULT injects into this function, or 0 for
// none.
int InjectedResult(const char* function);

// One per process. CHECKs what is undefined behaviour with a real driver.
class Machine {
 public:
  static Machine& Get();

  // Runs one piece of work, in turn over the streams. Returns whether one could run.
  bool Step();
  void RunAll();
  // Drops the unfinished work of the GPU's streams, without notice, as a context does that is reset
  // after a fault.
  void DropWork(int gpu);

  int current_gpu = -1;  // The context that is current.
  int contexts[kGpuCount] = {};
  int resets[kGpuCount] = {};  // How often each context was reset.
  int functions_loaded = 0;    // From modules.
  uint64_t block_before = 0;   // Bytes of its block before an allocation.
  bool linked = false;         // By NVLink.
  bool reaches_peers = true;   // Straight from one GPU to another.
  int peers_enabled = 0;
  bool lets_nics = true;  // GPUDirect RDMA, and dma-buf.
  bool has_dma_buf = false;
  int flush_options = kCuRdmaFlushByHost;
  int writes_ordering = 0;
  int flushes = 0;
  uint64_t used_bytes[kGpuCount] = {};
  std::map<uint64_t, Memory> memory;  // By address.
  std::map<uint64_t, size_t> pinned;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<std::shared_ptr<EventState>>> events;

  // Returns whether all these bytes lie in one allocation of the current GPU.
  bool IsDeviceMemory(uint64_t address, size_t bytes) const;
  bool IsMemoryOf(int gpu, uint64_t address, size_t bytes) const;
  bool IsPinned(uint64_t address, size_t bytes) const;
  void FreeIfUnused(uint64_t address);

 private:
  size_t next_ = 0;
};

}  // namespace talweg::gpu::cuda::stub

#endif  // TALWEG_LIBS_GPU_CUDA_STUB_STUB_MACHINE_H_
