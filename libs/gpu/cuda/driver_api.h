// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_DRIVER_API_H_
#define TALWEG_LIBS_GPU_CUDA_DRIVER_API_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

// Declares the used part of NVIDIA's driver interface, so that the build needs no CUDA, and only
// machines with a GPU need a driver. The library is opened at run time. abi_test compares these
// declarations with cuda.h.
namespace talweg::gpu::cuda {

using CuResult = int;
using CuDevice = int;
using CuDevicePointer = uint64_t;
using CuContext = struct CuContextOpaque*;
using CuStream = struct CuStreamOpaque*;
using CuEvent = struct CuEventOpaque*;
using CuModule = struct CuModuleOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuHostFunction = void (*)(void* argument);

struct CuUuid {
  char bytes[16];
};
struct CuIpcHandle {  // A handle of memory, or of an event.
  char reserved[64];
};

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuInvalidValue = 1;
inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr CuResult kCuDeinitialized = 4;
inline constexpr CuResult kCuStubLibrary = 34;
inline constexpr CuResult kCuDeviceUnavailable = 46;
inline constexpr CuResult kCuNoDevice = 100;
inline constexpr CuResult kCuInvalidDevice = 101;
inline constexpr CuResult kCuInvalidImage = 200;
inline constexpr CuResult kCuInvalidContext = 201;
inline constexpr CuResult kCuMapFailed = 205;
inline constexpr CuResult kCuNoBinaryForGpu = 209;
inline constexpr CuResult kCuEccUncorrectable = 214;
inline constexpr CuResult kCuPeerAccessUnsupported = 217;
inline constexpr CuResult kCuInvalidPtx = 218;
inline constexpr CuResult kCuNvlinkUncorrectable = 220;
inline constexpr CuResult kCuJitCompilerNotFound = 221;
inline constexpr CuResult kCuUnsupportedPtxVersion = 222;
inline constexpr CuResult kCuJitCompilationDisabled = 223;
inline constexpr CuResult kCuContained = 226;
inline constexpr CuResult kCuOperatingSystem = 304;
inline constexpr CuResult kCuInvalidHandle = 400;
inline constexpr CuResult kCuNotFound = 500;
inline constexpr CuResult kCuNotReady = 600;
inline constexpr CuResult kCuIllegalAddress = 700;
inline constexpr CuResult kCuLaunchTimeout = 702;
inline constexpr CuResult kCuPeerAccessAlreadyEnabled = 704;
inline constexpr CuResult kCuContextIsDestroyed = 709;
inline constexpr CuResult kCuAssert = 710;
inline constexpr CuResult kCuTooManyPeers = 711;
inline constexpr CuResult kCuHostMemoryAlreadyRegistered = 712;
inline constexpr CuResult kCuHardwareStackError = 714;
inline constexpr CuResult kCuIllegalInstruction = 715;
inline constexpr CuResult kCuMisalignedAddress = 716;
inline constexpr CuResult kCuInvalidAddressSpace = 717;
inline constexpr CuResult kCuInvalidPc = 718;
inline constexpr CuResult kCuLaunchFailed = 719;
inline constexpr CuResult kCuNotPermitted = 800;
inline constexpr CuResult kCuNotSupported = 801;
inline constexpr CuResult kCuSystemNotReady = 802;
inline constexpr CuResult kCuSystemDriverMismatch = 803;
inline constexpr CuResult kCuMpsRpcFailure = 806;
inline constexpr CuResult kCuMpsClientTerminated = 810;
inline constexpr CuResult kCuUnknown = 999;

inline constexpr int kCuAttributeMultiprocessorCount = 16;
inline constexpr int kCuP2pNativeAtomics = 3;
inline constexpr int kCuAttributeComputeMajor = 75;
inline constexpr int kCuAttributeComputeMinor = 76;
inline constexpr int kCuAttributeRdmaSupported = 116;
inline constexpr int kCuAttributeRdmaFlushOptions = 117;
inline constexpr int kCuAttributeRdmaWritesOrdering = 118;
inline constexpr int kCuAttributeDmaBufSupported = 124;
inline constexpr int kCuRdmaFlushByHost = 1;  // A bit of the options.
inline constexpr int kCuRdmaOrderingOwner = 100;
inline constexpr int kCuRdmaFlushCurrentContext = 0;
inline constexpr int kCuRdmaFlushToOwner = 100;
inline constexpr int kCuPointerSyncMemops = 6;
inline constexpr int kCuRangeHandleDmaBuf = 1;

inline constexpr unsigned kCuHostPortable = 1;  // For cuMemHostAlloc and cuMemHostRegister.
inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr unsigned kCuEventInterprocess = 4;
inline constexpr unsigned kCuIpcLazyPeerAccess = 1;

// X(member, symbol, type)
#define TALWEG_GPU_DRIVER_FUNCTIONS(X)                                                            \
  X(Init, "cuInit", CuResult(unsigned))                                                           \
  X(DriverGetVersion, "cuDriverGetVersion", CuResult(int*))                                       \
  X(GetErrorName, "cuGetErrorName", CuResult(CuResult, const char**))                             \
  X(GetErrorString, "cuGetErrorString", CuResult(CuResult, const char**))                         \
  X(DeviceGetCount, "cuDeviceGetCount", CuResult(int*))                                           \
  X(DeviceGet, "cuDeviceGet", CuResult(CuDevice*, int))                                           \
  X(DeviceGetName, "cuDeviceGetName", CuResult(char*, int, CuDevice))                             \
  X(DeviceGetUuid, "cuDeviceGetUuid_v2", CuResult(CuUuid*, CuDevice))                             \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", CuResult(int*, int, CuDevice))                    \
  X(DeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", CuResult(int*, int, CuDevice, CuDevice))    \
  X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", CuResult(int*, CuDevice, CuDevice))             \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", CuResult(size_t*, CuDevice))                           \
  X(DeviceGetPciBusId, "cuDeviceGetPCIBusId", CuResult(char*, int, CuDevice))                     \
  X(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", CuResult(CuContext*, CuDevice))                 \
  X(PrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", CuResult(CuDevice))                        \
  X(PrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", CuResult(CuDevice))                            \
  X(CtxSetCurrent, "cuCtxSetCurrent", CuResult(CuContext))                                        \
  X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", CuResult(CuContext, unsigned))                  \
  X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", CuResult(int*, int*))               \
  X(MemGetInfo, "cuMemGetInfo_v2", CuResult(size_t*, size_t*))                                    \
  X(MemAlloc, "cuMemAlloc_v2", CuResult(CuDevicePointer*, size_t))                                \
  X(MemFree, "cuMemFree_v2", CuResult(CuDevicePointer))                                           \
  X(MemGetAddressRange, "cuMemGetAddressRange_v2",                                                \
    CuResult(CuDevicePointer*, size_t*, CuDevicePointer))                                         \
  X(MemHostAlloc, "cuMemHostAlloc", CuResult(void**, size_t, unsigned))                           \
  X(MemFreeHost, "cuMemFreeHost", CuResult(void*))                                                \
  X(MemHostRegister, "cuMemHostRegister_v2", CuResult(void*, size_t, unsigned))                   \
  X(MemHostUnregister, "cuMemHostUnregister", CuResult(void*))                                    \
  X(IpcGetMemHandle, "cuIpcGetMemHandle", CuResult(CuIpcHandle*, CuDevicePointer))                \
  X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", CuResult(CuDevicePointer*, CuIpcHandle, unsigned)) \
  X(IpcCloseMemHandle, "cuIpcCloseMemHandle", CuResult(CuDevicePointer))                          \
  X(IpcGetEventHandle, "cuIpcGetEventHandle", CuResult(CuIpcHandle*, CuEvent))                    \
  X(IpcOpenEventHandle, "cuIpcOpenEventHandle", CuResult(CuEvent*, CuIpcHandle))                  \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority", CuResult(CuStream*, unsigned, int))   \
  X(StreamDestroy, "cuStreamDestroy_v2", CuResult(CuStream))                                      \
  X(StreamWaitEvent, "cuStreamWaitEvent", CuResult(CuStream, CuEvent, unsigned))                  \
  X(EventCreate, "cuEventCreate", CuResult(CuEvent*, unsigned))                                   \
  X(EventDestroy, "cuEventDestroy_v2", CuResult(CuEvent))                                         \
  X(EventRecord, "cuEventRecord", CuResult(CuEvent, CuStream))                                    \
  X(EventQuery, "cuEventQuery", CuResult(CuEvent))                                                \
  X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", CuResult(void*, CuDevicePointer, size_t, CuStream))  \
  X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                                      \
    CuResult(CuDevicePointer, const void*, size_t, CuStream))                                     \
  X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                                      \
    CuResult(CuDevicePointer, CuDevicePointer, size_t, CuStream))                                 \
  X(MemcpyPeerAsync, "cuMemcpyPeerAsync",                                                         \
    CuResult(CuDevicePointer, CuContext, CuDevicePointer, CuContext, size_t, CuStream))           \
  X(MemcpyDtoH, "cuMemcpyDtoH_v2", CuResult(void*, CuDevicePointer, size_t))                      \
  X(MemcpyHtoD, "cuMemcpyHtoD_v2", CuResult(CuDevicePointer, const void*, size_t))                \
  X(PointerSetAttribute, "cuPointerSetAttribute", CuResult(const void*, int, CuDevicePointer))    \
  X(FlushRdmaWrites, "cuFlushGPUDirectRDMAWrites", CuResult(int, int))                            \
  X(LaunchHostFunc, "cuLaunchHostFunc", CuResult(CuStream, CuHostFunction, void*))                \
  X(ModuleLoadData, "cuModuleLoadData", CuResult(CuModule*, const void*))                         \
  X(ModuleUnload, "cuModuleUnload", CuResult(CuModule))                                           \
  X(ModuleGetFunction, "cuModuleGetFunction", CuResult(CuFunction*, CuModule, const char*))       \
  X(LaunchKernel, "cuLaunchKernel",                                                               \
    CuResult(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,    \
             CuStream, void**, void**))

// Functions of later drivers. Null where the driver does not have them.
#define TALWEG_GPU_LATER_DRIVER_FUNCTIONS(X)                      \
  X(MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", \
    CuResult(void*, CuDevicePointer, size_t, int, unsigned long long)) /* CUDA 11.7 */

struct DriverApi {
#define TALWEG_GPU_MEMBER(member, symbol, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  TALWEG_GPU_DRIVER_FUNCTIONS(TALWEG_GPU_MEMBER)
  TALWEG_GPU_LATER_DRIVER_FUNCTIONS(TALWEG_GPU_MEMBER)
#undef TALWEG_GPU_MEMBER

  int version = 0;  // 12040: CUDA 12.4 is the latest that this driver knows.
};

// Opens the driver's library and initialises it. It stays open as long as the process.
// UNIMPLEMENTED says what is missing, with the remedy.
absl::StatusOr<std::shared_ptr<const DriverApi>> OpenDriver(const std::string& library);

// Returns the status of a call: OK for kCuSuccess, else an error. `what` names the call and its
// object.
absl::Status DriverStatus(const DriverApi& driver, CuResult result, const std::string& what);

// Returns an attribute, or 0 if the driver does not know it.
int Attribute(const DriverApi& driver, CuDevice device, int attribute);
// Returns OK if NICs may read and write the GPU's memory, and the GPU can flush their writes.
// UNIMPLEMENTED says what is missing.
absl::Status NicsReach(const DriverApi& driver, CuDevice device, const std::string& gpu);

// dlopen and dlsym. Return null on failure.
void* OpenLibrary(const std::string& library, std::string* error);
void* FindSymbol(void* library, const char* symbol);

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_DRIVER_API_H_
