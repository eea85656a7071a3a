// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_IPC_HANDLE_H_
#define TALWEG_LIBS_GPU_CUDA_IPC_HANDLE_H_

#include <cstring>

#include "libs/gpu/cuda/driver_api.h"

// Converts handles of memory and of events between Device's types and the driver's.
namespace talweg::gpu::cuda {

template <class Handle>
CuIpcHandle ToDriver(const Handle& handle) {
  CuIpcHandle result;
  static_assert(sizeof(result) == sizeof(handle.bytes));
  std::memcpy(&result, handle.bytes.data(), sizeof(result));
  return result;
}

template <class Handle>
Handle FromDriver(const CuIpcHandle& handle) {
  Handle result;
  std::memcpy(result.bytes.data(), &handle, sizeof(handle));
  return result;
}

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_IPC_HANDLE_H_
