// SPDX-License-Identifier: Apache-2.0
//
// Compares our declarations of the driver and of NCCL with the headers of the toolkit, under
// --config=cuda only. The compiler checks most of it.
#include <cstddef>
#include <cstdio>
#include <tuple>
#include <type_traits>

#include <catch2/catch.hpp>

#include "libs/gpu/cuda/driver_api.h"
#include "libs/gpu/cuda/nccl_api.h"

#if defined(TALWEG_WITH_CUDA)

#include <cuda.h>
#include <nccl.h>

namespace talweg::gpu::cuda {
namespace {

// Both arguments are the same in a call: they have one size, and both are a pointer, a class or a
// number.
template <class Ours, class Theirs>
constexpr bool kSameArgument =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    std::is_class_v<Ours> == std::is_class_v<Theirs>;

template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class OurResult, class... Ours, class TheirResult, class... Theirs>
struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> {
  static constexpr bool Arguments() {
    if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
      return (kSameArgument<Ours, Theirs> && ...);
    }
    return false;
  }
  static constexpr bool value = kSameArgument<OurResult, TheirResult> && Arguments();
};

#define TALWEG_SAME_CALL(table, member, theirs)                              \
  static_assert(SameCall<decltype(table::member), decltype(&theirs)>::value, \
                "our declaration of " #theirs " is not that of its header")

// The macros of cuda.h name the versions (cuMemAlloc is cuMemAlloc_v2).
TALWEG_SAME_CALL(DriverApi, Init, cuInit);
TALWEG_SAME_CALL(DriverApi, DriverGetVersion, cuDriverGetVersion);
TALWEG_SAME_CALL(DriverApi, GetErrorName, cuGetErrorName);
TALWEG_SAME_CALL(DriverApi, GetErrorString, cuGetErrorString);
TALWEG_SAME_CALL(DriverApi, DeviceGetCount, cuDeviceGetCount);
TALWEG_SAME_CALL(DriverApi, DeviceGet, cuDeviceGet);
TALWEG_SAME_CALL(DriverApi, DeviceGetName, cuDeviceGetName);
TALWEG_SAME_CALL(DriverApi, DeviceGetUuid, cuDeviceGetUuid_v2);
TALWEG_SAME_CALL(DriverApi, DeviceGetAttribute, cuDeviceGetAttribute);
TALWEG_SAME_CALL(DriverApi, DeviceGetP2PAttribute, cuDeviceGetP2PAttribute);
TALWEG_SAME_CALL(DriverApi, DeviceCanAccessPeer, cuDeviceCanAccessPeer);
TALWEG_SAME_CALL(DriverApi, DeviceTotalMem, cuDeviceTotalMem_v2);
TALWEG_SAME_CALL(DriverApi, DeviceGetPciBusId, cuDeviceGetPCIBusId);
TALWEG_SAME_CALL(DriverApi, PrimaryCtxRetain, cuDevicePrimaryCtxRetain);
TALWEG_SAME_CALL(DriverApi, PrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);
TALWEG_SAME_CALL(DriverApi, PrimaryCtxReset, cuDevicePrimaryCtxReset_v2);
TALWEG_SAME_CALL(DriverApi, CtxSetCurrent, cuCtxSetCurrent);
TALWEG_SAME_CALL(DriverApi, CtxEnablePeerAccess, cuCtxEnablePeerAccess);
TALWEG_SAME_CALL(DriverApi, CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange);
TALWEG_SAME_CALL(DriverApi, MemGetInfo, cuMemGetInfo_v2);
TALWEG_SAME_CALL(DriverApi, MemAlloc, cuMemAlloc_v2);
TALWEG_SAME_CALL(DriverApi, MemFree, cuMemFree_v2);
TALWEG_SAME_CALL(DriverApi, MemGetAddressRange, cuMemGetAddressRange_v2);
TALWEG_SAME_CALL(DriverApi, MemHostAlloc, cuMemHostAlloc);
TALWEG_SAME_CALL(DriverApi, MemFreeHost, cuMemFreeHost);
TALWEG_SAME_CALL(DriverApi, MemHostRegister, cuMemHostRegister_v2);
TALWEG_SAME_CALL(DriverApi, MemHostUnregister, cuMemHostUnregister);
TALWEG_SAME_CALL(DriverApi, IpcGetMemHandle, cuIpcGetMemHandle);
TALWEG_SAME_CALL(DriverApi, IpcOpenMemHandle, cuIpcOpenMemHandle_v2);
TALWEG_SAME_CALL(DriverApi, IpcCloseMemHandle, cuIpcCloseMemHandle);
TALWEG_SAME_CALL(DriverApi, IpcGetEventHandle, cuIpcGetEventHandle);
TALWEG_SAME_CALL(DriverApi, IpcOpenEventHandle, cuIpcOpenEventHandle);
TALWEG_SAME_CALL(DriverApi, StreamCreateWithPriority, cuStreamCreateWithPriority);
TALWEG_SAME_CALL(DriverApi, StreamDestroy, cuStreamDestroy_v2);
TALWEG_SAME_CALL(DriverApi, StreamWaitEvent, cuStreamWaitEvent);
TALWEG_SAME_CALL(DriverApi, EventCreate, cuEventCreate);
TALWEG_SAME_CALL(DriverApi, EventDestroy, cuEventDestroy_v2);
TALWEG_SAME_CALL(DriverApi, EventRecord, cuEventRecord);
TALWEG_SAME_CALL(DriverApi, EventQuery, cuEventQuery);
TALWEG_SAME_CALL(DriverApi, MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);
TALWEG_SAME_CALL(DriverApi, MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);
TALWEG_SAME_CALL(DriverApi, MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2);
TALWEG_SAME_CALL(DriverApi, MemcpyPeerAsync, cuMemcpyPeerAsync);
TALWEG_SAME_CALL(DriverApi, MemcpyDtoH, cuMemcpyDtoH_v2);
TALWEG_SAME_CALL(DriverApi, MemcpyHtoD, cuMemcpyHtoD_v2);
TALWEG_SAME_CALL(DriverApi, PointerSetAttribute, cuPointerSetAttribute);
TALWEG_SAME_CALL(DriverApi, FlushRdmaWrites, cuFlushGPUDirectRDMAWrites);
TALWEG_SAME_CALL(DriverApi, MemGetHandleForAddressRange, cuMemGetHandleForAddressRange);
TALWEG_SAME_CALL(DriverApi, LaunchHostFunc, cuLaunchHostFunc);
TALWEG_SAME_CALL(DriverApi, ModuleLoadData, cuModuleLoadData);
TALWEG_SAME_CALL(DriverApi, ModuleUnload, cuModuleUnload);
TALWEG_SAME_CALL(DriverApi, ModuleGetFunction, cuModuleGetFunction);
TALWEG_SAME_CALL(DriverApi, LaunchKernel, cuLaunchKernel);

static_assert(sizeof(CuUuid) == sizeof(CUuuid));
static_assert(sizeof(CuIpcHandle) == CU_IPC_HANDLE_SIZE);
static_assert(kCuInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kCuOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCuDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(kCuStubLibrary == CUDA_ERROR_STUB_LIBRARY);
static_assert(kCuDeviceUnavailable == CUDA_ERROR_DEVICE_UNAVAILABLE);
static_assert(kCuNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kCuInvalidDevice == CUDA_ERROR_INVALID_DEVICE);
static_assert(kCuInvalidImage == CUDA_ERROR_INVALID_IMAGE);
static_assert(kCuInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kCuMapFailed == CUDA_ERROR_MAP_FAILED);
static_assert(kCuNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kCuEccUncorrectable == CUDA_ERROR_ECC_UNCORRECTABLE);
static_assert(kCuPeerAccessUnsupported == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
static_assert(kCuInvalidPtx == CUDA_ERROR_INVALID_PTX);
static_assert(kCuNvlinkUncorrectable == CUDA_ERROR_NVLINK_UNCORRECTABLE);
static_assert(kCuJitCompilerNotFound == CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
static_assert(kCuUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(kCuJitCompilationDisabled == CUDA_ERROR_JIT_COMPILATION_DISABLED);
static_assert(kCuContained == CUDA_ERROR_CONTAINED);
static_assert(kCuOperatingSystem == CUDA_ERROR_OPERATING_SYSTEM);
static_assert(kCuInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(kCuNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kCuNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCuIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(kCuLaunchTimeout == CUDA_ERROR_LAUNCH_TIMEOUT);
static_assert(kCuContextIsDestroyed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
static_assert(kCuAssert == CUDA_ERROR_ASSERT);
static_assert(kCuHostMemoryAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(kCuPeerAccessAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(kCuTooManyPeers == CUDA_ERROR_TOO_MANY_PEERS);
static_assert(kCuHardwareStackError == CUDA_ERROR_HARDWARE_STACK_ERROR);
static_assert(kCuIllegalInstruction == CUDA_ERROR_ILLEGAL_INSTRUCTION);
static_assert(kCuMisalignedAddress == CUDA_ERROR_MISALIGNED_ADDRESS);
static_assert(kCuInvalidAddressSpace == CUDA_ERROR_INVALID_ADDRESS_SPACE);
static_assert(kCuInvalidPc == CUDA_ERROR_INVALID_PC);
static_assert(kCuLaunchFailed == CUDA_ERROR_LAUNCH_FAILED);
static_assert(kCuNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(kCuNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kCuSystemNotReady == CUDA_ERROR_SYSTEM_NOT_READY);
static_assert(kCuSystemDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(kCuMpsRpcFailure == CUDA_ERROR_MPS_RPC_FAILURE);
static_assert(kCuMpsClientTerminated == CUDA_ERROR_MPS_CLIENT_TERMINATED);
static_assert(kCuUnknown == CUDA_ERROR_UNKNOWN);
static_assert(kCuAttributeMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kCuP2pNativeAtomics == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
static_assert(kCuAttributeComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kCuAttributeComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kCuAttributeRdmaSupported == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
static_assert(kCuAttributeRdmaFlushOptions ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
static_assert(kCuAttributeRdmaWritesOrdering ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(kCuAttributeDmaBufSupported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(kCuRdmaFlushByHost == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
static_assert(kCuRdmaOrderingOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
static_assert(kCuRdmaFlushCurrentContext == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
static_assert(kCuRdmaFlushToOwner == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
static_assert(kCuPointerSyncMemops == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
static_assert(kCuRangeHandleDmaBuf == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
static_assert(kCuHostPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kCuHostPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCuEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCuEventInterprocess == CU_EVENT_INTERPROCESS);
static_assert(kCuIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

#if !defined(TALWEG_NO_NCCL_HEADER)
TALWEG_SAME_CALL(NcclApi, GetVersion, ncclGetVersion);
TALWEG_SAME_CALL(NcclApi, GetUniqueId, ncclGetUniqueId);
TALWEG_SAME_CALL(NcclApi, CommInitRankConfig, ncclCommInitRankConfig);
TALWEG_SAME_CALL(NcclApi, CommGetAsyncError, ncclCommGetAsyncError);
TALWEG_SAME_CALL(NcclApi, CommAbort, ncclCommAbort);
TALWEG_SAME_CALL(NcclApi, GetErrorString, ncclGetErrorString);
TALWEG_SAME_CALL(NcclApi, GetLastError, ncclGetLastError);
TALWEG_SAME_CALL(NcclApi, GroupStart, ncclGroupStart);
TALWEG_SAME_CALL(NcclApi, GroupEnd, ncclGroupEnd);
TALWEG_SAME_CALL(NcclApi, AllReduce, ncclAllReduce);
TALWEG_SAME_CALL(NcclApi, Reduce, ncclReduce);
TALWEG_SAME_CALL(NcclApi, Broadcast, ncclBroadcast);
TALWEG_SAME_CALL(NcclApi, AllGather, ncclAllGather);
TALWEG_SAME_CALL(NcclApi, ReduceScatter, ncclReduceScatter);
static_assert(kNcclSuccess == ncclSuccess && kNcclInProgress == ncclInProgress);
static_assert(kNcclInt8 == ncclInt8 && kNcclUint8 == ncclUint8 && kNcclInt32 == ncclInt32 &&
              kNcclInt64 == ncclInt64 && kNcclUint32 == ncclUint32 && kNcclUint64 == ncclUint64 &&
              kNcclFloat16 == ncclFloat16 && kNcclFloat32 == ncclFloat32 &&
              kNcclFloat64 == ncclFloat64 && kNcclBfloat16 == ncclBfloat16);
static_assert(kNcclSum == ncclSum && kNcclProduct == ncclProd && kNcclMax == ncclMax &&
              kNcclMin == ncclMin);
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
#endif

TEST_CASE("abi: our declarations are those of the toolkit's headers", "[gpu]") {
#if defined(TALWEG_NO_NCCL_HEADER)
  std::puts("SKIPPED: no nccl.h (NCCL_HOME); cuda.h was compared");
#else
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  CHECK(NcclConfig().magic == theirs.magic);
  CHECK(NcclConfig().version <= theirs.version);
#endif
  SUCCEED();
}

}  // namespace
}  // namespace talweg::gpu::cuda

#else

TEST_CASE("abi: our declarations are those of the toolkit's headers", "[gpu]") {
  std::puts("SKIPPED: the toolkit's headers are compared under --config=cuda");
}

#endif
