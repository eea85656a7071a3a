// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_NCCL_API_H_
#define TALWEG_LIBS_GPU_CUDA_NCCL_API_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "libs/base/dtype.h"
#include "libs/gpu/cuda/driver_api.h"

// Declares the used part of NCCL, as driver_api.h does for the driver. Only an agent whose ranks
// use several GPUs opens the library of 300 MB.
namespace talweg::gpu::cuda {

using NcclResult = int;
using NcclComm = struct NcclCommOpaque*;
using NcclDType = int;
using NcclOp = int;

inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;

inline constexpr NcclDType kNcclInt8 = 0;
inline constexpr NcclDType kNcclUint8 = 1;
inline constexpr NcclDType kNcclInt32 = 2;
inline constexpr NcclDType kNcclUint32 = 3;
inline constexpr NcclDType kNcclInt64 = 4;
inline constexpr NcclDType kNcclUint64 = 5;
inline constexpr NcclDType kNcclFloat16 = 6;
inline constexpr NcclDType kNcclFloat32 = 7;
inline constexpr NcclDType kNcclFloat64 = 8;
inline constexpr NcclDType kNcclBfloat16 = 9;
// For bytes that are moved and not combined: NCCL does not have every dtype.
inline constexpr NcclDType kNcclBytes = kNcclUint8;

inline constexpr NcclOp kNcclSum = 0;
inline constexpr NcclOp kNcclProduct = 1;
inline constexpr NcclOp kNcclMax = 2;
inline constexpr NcclOp kNcclMin = 3;

struct NcclUniqueId {
  char internal[128];
};

// The struct of NCCL 2.14, with its size and version. Later versions accept it, and fill in the
// rest.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// X(member, symbol, type)
#define TALWEG_GPU_NCCL_FUNCTIONS(X)                                                    \
  X(GetVersion, "ncclGetVersion", NcclResult(int*))                                     \
  X(GetUniqueId, "ncclGetUniqueId", NcclResult(NcclUniqueId*))                          \
  X(CommInitRankConfig, "ncclCommInitRankConfig",                                       \
    NcclResult(NcclComm*, int, NcclUniqueId, int, NcclConfig*))                         \
  X(CommGetAsyncError, "ncclCommGetAsyncError", NcclResult(NcclComm, NcclResult*))      \
  X(CommAbort, "ncclCommAbort", NcclResult(NcclComm))                                   \
  X(GetErrorString, "ncclGetErrorString", const char*(NcclResult))                      \
  X(GetLastError, "ncclGetLastError", const char*(NcclComm))                            \
  X(GroupStart, "ncclGroupStart", NcclResult())                                         \
  X(GroupEnd, "ncclGroupEnd", NcclResult())                                             \
  X(AllReduce, "ncclAllReduce",                                                         \
    NcclResult(const void*, void*, size_t, NcclDType, NcclOp, NcclComm, CuStream))      \
  X(Reduce, "ncclReduce",                                                               \
    NcclResult(const void*, void*, size_t, NcclDType, NcclOp, int, NcclComm, CuStream)) \
  X(Broadcast, "ncclBroadcast",                                                         \
    NcclResult(const void*, void*, size_t, NcclDType, int, NcclComm, CuStream))         \
  X(AllGather, "ncclAllGather",                                                         \
    NcclResult(const void*, void*, size_t, NcclDType, NcclComm, CuStream))              \
  X(ReduceScatter, "ncclReduceScatter",                                                 \
    NcclResult(const void*, void*, size_t, NcclDType, NcclOp, NcclComm, CuStream))

struct NcclApi {
#define TALWEG_GPU_MEMBER(member, symbol, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  TALWEG_GPU_NCCL_FUNCTIONS(TALWEG_GPU_MEMBER)
#undef TALWEG_GPU_MEMBER

  int version = 0;  // 22803: 2.28.3
  std::string library;
};

// Opens the first of `libraries` that can be opened. UNIMPLEMENTED says where it looked, and how to
// get NCCL.
absl::StatusOr<std::shared_ptr<const NcclApi>> OpenNccl(const std::vector<std::string>& libraries);

// CHECK that Communicator::Combines allows the value.
NcclDType NcclDTypeOf(DType dtype);
NcclOp NcclOpOf(Op op);
// "2.28.3"
std::string NcclVersionText(int version);

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_NCCL_API_H_
