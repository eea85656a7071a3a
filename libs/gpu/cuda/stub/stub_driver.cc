// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions, under their own names.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "libs/base/dtype.h"
#include "libs/gpu/cuda/driver_api.h"
#include "libs/gpu/cuda/stub/stub_machine.h"
#include "libs/gpu/kernels/reduce_plan.h"

namespace talweg::gpu::cuda::stub {
namespace {

constexpr CuResult kCuAlreadyMapped = 208;

Machine& Get() { return Machine::Get(); }
bool InContext() { return Get().current_gpu >= 0; }
int GpuOf(CuContext context) { return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 40; }
Stream* Of(CuStream stream) { return reinterpret_cast<Stream*>(stream); }
std::shared_ptr<EventState>& Of(CuEvent event) {
  return *reinterpret_cast<std::shared_ptr<EventState>*>(event);
}

bool IsStream(CuStream stream) {
  for (const auto& each : Get().streams) {
    if (each.get() == Of(stream)) return !each->closed;
  }
  return false;
}
bool IsEvent(CuEvent event) {
  for (const auto& each : Get().events) {
    if (each.get() == reinterpret_cast<std::shared_ptr<EventState>*>(event)) return true;
  }
  return false;
}

CuResult PostRun(CuStream stream, std::function<void()> run) {
  if (!InContext()) return kCuInvalidContext;
  if (!IsStream(stream)) return kCuInvalidHandle;
  Of(stream)->works.push_back({.ready = nullptr, .run = std::move(run), .joint = nullptr});
  return kCuSuccess;
}

CuEvent NewEvent(std::shared_ptr<EventState> state) {
  Get().events.push_back(std::make_unique<std::shared_ptr<EventState>>(std::move(state)));
  return reinterpret_cast<CuEvent>(Get().events.back().get());
}

// A handle holds a word for its kind, and then what it names.
constexpr uint64_t kMemoryTag = 0x6d656d6f72790001;
constexpr uint64_t kEventTag = 0x6576656e74730001;

CuIpcHandle MakeHandle(uint64_t tag, uint64_t value, uint64_t serial) {
  CuIpcHandle handle = {};
  std::memcpy(handle.reserved, &tag, 8);
  std::memcpy(handle.reserved + 8, &value, 8);
  std::memcpy(handle.reserved + 16, &serial, 8);
  return handle;
}
bool ReadHandle(const CuIpcHandle& handle, uint64_t tag, uint64_t* value) {
  uint64_t read = 0;
  std::memcpy(&read, handle.reserved, 8);
  std::memcpy(value, handle.reserved + 8, 8);
  return read == tag;
}

struct Kernel {
  std::string name;
  kernels::ReducePlan plan;
};

// Returns any kernel by its name.
Kernel* FindKernel(const char* name) {
  static auto* const all = [] {
    auto* const made = new std::map<std::string, Kernel>;
    for (const DType dtype : kAllDTypes) {
      for (uint32_t combine = 0; combine < kernels::kCombineCount; ++combine) {
        kernels::ReducePlan plan;
        plan.bytes = 1;
        plan.dtype = dtype;
        plan.combine = static_cast<kernels::Combine>(combine);
        const std::string kernel = kernels::KernelName(plan.dtype, plan.combine);
        (*made)[kernel] = {kernel, plan};
      }
    }
    return made;
  }();
  const auto at = all->find(name);
  return at == all->end() ? nullptr : &at->second;
}

}  // namespace
}  // namespace talweg::gpu::cuda::stub

using namespace talweg::gpu::cuda;        // NOLINT(google-build-using-namespace)
using namespace talweg::gpu::cuda::stub;  // NOLINT(google-build-using-namespace)

extern "C" {

CuResult cuInit(unsigned flags) {
  if (const int injected = InjectedResult("cuInit")) return injected;
  return flags == 0 ? kCuSuccess : kCuInvalidValue;
}
CuResult cuDriverGetVersion(int* version) {
  *version = 13000;
  return kCuSuccess;
}
CuResult cuGetErrorName(CuResult result, const char** name) {
  *name = result == kCuOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_STUB";
  return kCuSuccess;
}
CuResult cuGetErrorString(CuResult, const char** text) {
  *text = "the stub's error";
  return kCuSuccess;
}

CuResult cuDeviceGetCount(int* count) {
  *count = kGpuCount;
  return kCuSuccess;
}
CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kGpuCount) return kCuInvalidDevice;
  *device = ordinal + 40;  // A device is no ordinal.
  return kCuSuccess;
}
CuResult cuDeviceGetName(char* name, int length, CuDevice device) {
  std::snprintf(name, static_cast<size_t>(length), "Stub GPU %d", device - 40);
  return kCuSuccess;
}
CuResult cuDeviceGetUuid_v2(CuUuid* uuid, CuDevice device) {
  std::memset(uuid->bytes, 0x57, sizeof(uuid->bytes));
  uuid->bytes[15] = static_cast<char>(device);
  return kCuSuccess;
}
CuResult cuDeviceGetAttribute(int* value, int attribute, CuDevice) {
  switch (attribute) {
    case kCuAttributeMultiprocessorCount: *value = 3; return kCuSuccess;
    case kCuAttributeComputeMajor: *value = 9; return kCuSuccess;
    case kCuAttributeComputeMinor: *value = 0; return kCuSuccess;
    case kCuAttributeRdmaSupported: *value = Get().lets_nics ? 1 : 0; return kCuSuccess;
    case kCuAttributeDmaBufSupported: *value = Get().has_dma_buf ? 1 : 0; return kCuSuccess;
    case kCuAttributeRdmaFlushOptions: *value = Get().flush_options; return kCuSuccess;
    case kCuAttributeRdmaWritesOrdering: *value = Get().writes_ordering; return kCuSuccess;
    default: return kCuInvalidValue;
  }
}
CuResult cuDeviceGetP2PAttribute(int* value, int attribute, CuDevice one, CuDevice other) {
  if (attribute != kCuP2pNativeAtomics || one == other) return kCuInvalidValue;
  *value = Get().linked ? 1 : 0;
  return kCuSuccess;
}
CuResult cuDeviceCanAccessPeer(int* reaches, CuDevice one, CuDevice other) {
  if (one == other) return kCuInvalidDevice;
  *reaches = Get().reaches_peers ? 1 : 0;
  return kCuSuccess;
}
CuResult cuCtxEnablePeerAccess(CuContext peer, unsigned flags) {
  if (const int injected = InjectedResult("cuCtxEnablePeerAccess")) return injected;
  if (!InContext() || flags != 0) return kCuInvalidValue;
  if (GpuOf(peer) == Get().current_gpu) return kCuInvalidContext;
  if (!Get().reaches_peers) return kCuPeerAccessUnsupported;
  ++Get().peers_enabled;
  return kCuSuccess;
}
CuResult cuDeviceTotalMem_v2(size_t* bytes, CuDevice) {
  *bytes = kGpuBytes;
  return kCuSuccess;
}
CuResult cuDeviceGetPCIBusId(char* text, int length, CuDevice device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return kCuSuccess;
}

CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  if (const int injected = InjectedResult("cuDevicePrimaryCtxRetain")) return injected;
  ++Get().contexts[device - 40];
  *context = reinterpret_cast<CuContext>(static_cast<uintptr_t>(device));
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
  if (Get().contexts[device - 40] == 0) return kCuInvalidContext;
  --Get().contexts[device - 40];
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxReset_v2(CuDevice device) {
  ++Get().resets[device - 40];
  Get().DropWork(device - 40);
  return kCuSuccess;
}
CuResult cuCtxSetCurrent(CuContext context) {
  Get().current_gpu = context == nullptr ? -1 : GpuOf(context);
  return kCuSuccess;
}
CuResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kCuSuccess;
}

CuResult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  if (!InContext()) return kCuInvalidContext;
  *total = kGpuBytes;
  *free_bytes = kGpuBytes - Get().used_bytes[Get().current_gpu];
  return kCuSuccess;
}
CuResult cuMemAlloc_v2(CuDevicePointer* address, size_t bytes) {
  if (!InContext()) return kCuInvalidContext;
  uint64_t& used = Get().used_bytes[Get().current_gpu];
  if (bytes > kGpuBytes - used) return kCuOutOfMemory;
  void* const made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  used += bytes;
  *address = reinterpret_cast<uint64_t>(made);
  Get().memory[*address] = {.gpu = Get().current_gpu, .bytes = bytes};
  return kCuSuccess;
}
CuResult cuMemFree_v2(CuDevicePointer address) {
  if (!InContext()) return kCuInvalidContext;
  const auto at = Get().memory.find(address);
  if (at == Get().memory.end() || at->second.freed_by_owner) return kCuInvalidValue;
  Get().RunAll();  // The driver waits in this call too.
  at->second.freed_by_owner = true;
  Get().FreeIfUnused(address);
  return kCuSuccess;
}
CuResult cuMemGetAddressRange_v2(CuDevicePointer* base, size_t* bytes, CuDevicePointer address) {
  const auto at = Get().memory.find(address);
  if (at == Get().memory.end()) return kCuInvalidValue;
  *base = address - Get().block_before;
  *bytes = at->second.bytes + Get().block_before;
  return kCuSuccess;
}

CuResult cuMemHostAlloc(void** host, size_t bytes, unsigned flags) {
  if (!InContext() || flags != kCuHostPortable) return kCuInvalidValue;
  *host = std::malloc(bytes);
  Get().pinned[reinterpret_cast<uint64_t>(*host)] = bytes;
  return kCuSuccess;
}
CuResult cuMemFreeHost(void* host) {
  if (Get().pinned.erase(reinterpret_cast<uint64_t>(host)) == 0) return kCuInvalidValue;
  Get().RunAll();
  std::free(host);
  return kCuSuccess;
}
CuResult cuMemHostRegister_v2(void* host, size_t bytes, unsigned flags) {
  if (const int injected = InjectedResult("cuMemHostRegister_v2")) return injected;
  if (!InContext() || flags != kCuHostPortable) return kCuInvalidValue;
  Get().pinned[reinterpret_cast<uint64_t>(host)] = bytes;
  return kCuSuccess;
}
CuResult cuMemHostUnregister(void* host) {
  Get().RunAll();
  return Get().pinned.erase(reinterpret_cast<uint64_t>(host)) == 0 ? kCuInvalidValue : kCuSuccess;
}

CuResult cuIpcGetMemHandle(CuIpcHandle* handle, CuDevicePointer address) {
  static auto* const serials = new std::map<uint64_t, uint64_t>;
  static uint64_t next = 1;
  const auto at = Get().memory.find(address);
  if (at == Get().memory.end()) return kCuInvalidValue;
  // Each allocation needs a handle of its own, even at an address that another one had. Only this
  // test uses it, so each call takes the next serial number.
  (*serials)[address] = next++;
  *handle = MakeHandle(kMemoryTag, address, (*serials)[address]);
  return kCuSuccess;
}
CuResult cuIpcOpenMemHandle_v2(CuDevicePointer* address, CuIpcHandle handle, unsigned flags) {
  if (const int injected = InjectedResult("cuIpcOpenMemHandle_v2")) return injected;
  if (!InContext() || flags != kCuIpcLazyPeerAccess) return kCuInvalidValue;
  uint64_t value = 0;
  if (!ReadHandle(handle, kMemoryTag, &value)) return kCuInvalidValue;
  const auto at = Get().memory.find(value);
  if (at == Get().memory.end() || at->second.freed_by_owner) return kCuInvalidValue;
  if (at->second.gpu != Get().current_gpu) return kCuAlreadyMapped;
  ++at->second.mappings;
  *address = value;
  return kCuSuccess;
}
CuResult cuIpcCloseMemHandle(CuDevicePointer address) {
  const auto at = Get().memory.find(address);
  if (at == Get().memory.end() || at->second.mappings == 0) return kCuInvalidValue;
  Get().RunAll();
  --at->second.mappings;
  Get().FreeIfUnused(address);
  return kCuSuccess;
}
CuResult cuIpcGetEventHandle(CuIpcHandle* handle, CuEvent event) {
  if (!IsEvent(event)) return kCuInvalidHandle;
  *handle = MakeHandle(kEventTag, reinterpret_cast<uint64_t>(event), 0);
  return kCuSuccess;
}
CuResult cuIpcOpenEventHandle(CuEvent* event, CuIpcHandle handle) {
  uint64_t value = 0;
  if (!InContext() || !ReadHandle(handle, kEventTag, &value)) return kCuInvalidValue;
  const CuEvent original = reinterpret_cast<CuEvent>(value);
  if (!IsEvent(original)) return kCuInvalidHandle;
  *event = NewEvent(Of(original));
  return kCuSuccess;
}

CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int priority) {
  if (!InContext() || flags != kCuStreamNonBlocking) return kCuInvalidValue;
  if (priority > 0 || priority < -5) return kCuInvalidValue;
  Get().streams.push_back(std::make_unique<Stream>());
  Get().streams.back()->gpu = Get().current_gpu;
  Get().streams.back()->priority = priority;
  *stream = reinterpret_cast<CuStream>(Get().streams.back().get());
  return kCuSuccess;
}
CuResult cuStreamDestroy_v2(CuStream stream) {
  if (!IsStream(stream)) return kCuInvalidHandle;
  Of(stream)->closed = true;  // The stream's work goes on.
  return kCuSuccess;
}
CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned flags) {
  if (!InContext() || flags != 0) return kCuInvalidValue;
  if (!IsStream(stream) || !IsEvent(event)) return kCuInvalidHandle;
  const std::shared_ptr<bool> record = Of(event)->latest;
  if (record == nullptr) return kCuSuccess;
  Of(stream)->works.push_back({.ready = [record] { return *record; }, .run = {}, .joint = {}});
  return kCuSuccess;
}
CuResult cuEventCreate(CuEvent* event, unsigned flags) {
  if (!InContext() || (flags & kCuEventDisableTiming) == 0) return kCuInvalidValue;
  *event = NewEvent(std::make_shared<EventState>());
  return kCuSuccess;
}
CuResult cuEventDestroy_v2(CuEvent event) {
  if (!IsEvent(event)) return kCuInvalidHandle;
  std::erase_if(Get().events, [event](const auto& each) {
    return each.get() == reinterpret_cast<std::shared_ptr<EventState>*>(event);
  });
  return kCuSuccess;
}
CuResult cuEventRecord(CuEvent event, CuStream stream) {
  if (!IsEvent(event)) return kCuInvalidHandle;
  const auto record = std::make_shared<bool>(false);
  const CuResult posted = PostRun(stream, [record] { *record = true; });
  if (posted == kCuSuccess) Of(event)->latest = record;
  return posted;
}
CuResult cuEventQuery(CuEvent event) {
  if (const int injected = InjectedResult("cuEventQuery")) return injected;
  if (!InContext()) return kCuInvalidContext;
  if (!IsEvent(event)) return kCuInvalidHandle;
  const std::shared_ptr<bool> record = Of(event)->latest;
  const bool done = record == nullptr || *record;
  Get().Step();
  return done ? kCuSuccess : kCuNotReady;
}

CuResult cuMemcpyDtoHAsync_v2(void* target, CuDevicePointer source, size_t bytes, CuStream stream) {
  if (!Get().IsDeviceMemory(source, bytes)) return kCuIllegalAddress;
  if (!Get().IsPinned(reinterpret_cast<uint64_t>(target), bytes)) return kCuInvalidValue;
  return PostRun(stream,
                 [=] { std::memcpy(target, reinterpret_cast<const void*>(source), bytes); });
}
CuResult cuMemcpyHtoDAsync_v2(CuDevicePointer target, const void* source, size_t bytes,
                              CuStream stream) {
  if (!Get().IsDeviceMemory(target, bytes)) return kCuIllegalAddress;
  if (!Get().IsPinned(reinterpret_cast<uint64_t>(source), bytes)) return kCuInvalidValue;
  return PostRun(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), source, bytes); });
}
CuResult cuMemcpyDtoH_v2(void* target, CuDevicePointer source, size_t bytes) {
  if (!Get().IsDeviceMemory(source, bytes)) return kCuIllegalAddress;
  std::memcpy(target, reinterpret_cast<const void*>(source), bytes);
  return kCuSuccess;
}
CuResult cuMemcpyHtoD_v2(CuDevicePointer target, const void* source, size_t bytes) {
  if (!Get().IsDeviceMemory(target, bytes)) return kCuIllegalAddress;
  std::memcpy(reinterpret_cast<void*>(target), source, bytes);
  return kCuSuccess;
}
CuResult cuPointerSetAttribute(const void* value, int attribute, CuDevicePointer address) {
  const auto at = Get().memory.find(address);
  if (attribute != kCuPointerSyncMemops || at == Get().memory.end()) return kCuInvalidValue;
  at->second.sync_memops = *static_cast<const unsigned*>(value) != 0;
  return kCuSuccess;
}
CuResult cuFlushGPUDirectRDMAWrites(int target, int scope) {
  if (!InContext()) return kCuInvalidContext;
  if (target != kCuRdmaFlushCurrentContext || scope != kCuRdmaFlushToOwner) return kCuInvalidValue;
  ++Get().flushes;
  return kCuSuccess;
}
CuResult cuMemGetHandleForAddressRange(void* handle, CuDevicePointer address, size_t bytes,
                                       int type, unsigned long long flags) {
  if (type != kCuRangeHandleDmaBuf || flags != 0) return kCuInvalidValue;
  if (!Get().IsDeviceMemory(address, bytes)) return kCuInvalidValue;
  const int fd = memfd_create("dma-buf", MFD_CLOEXEC);
  std::memcpy(handle, &fd, sizeof fd);
  return fd < 0 ? kCuOperatingSystem : kCuSuccess;
}
CuResult cuMemcpyDtoDAsync_v2(CuDevicePointer target, CuDevicePointer source, size_t bytes,
                              CuStream stream) {
  if (!Get().IsDeviceMemory(target, bytes) || !Get().IsDeviceMemory(source, bytes)) {
    return kCuIllegalAddress;
  }
  return PostRun(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
  });
}
CuResult cuMemcpyPeerAsync(CuDevicePointer target, CuContext target_context, CuDevicePointer source,
                           CuContext source_context, size_t bytes, CuStream stream) {
  if (!Get().IsMemoryOf(GpuOf(target_context), target, bytes) ||
      !Get().IsMemoryOf(GpuOf(source_context), source, bytes)) {
    return kCuIllegalAddress;
  }
  return PostRun(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
  });
}
CuResult cuLaunchHostFunc(CuStream stream, CuHostFunction function, void* argument) {
  return PostRun(stream, [=] { function(argument); });
}

CuResult cuModuleLoadData(CuModule* module, const void* image) {
  if (const int injected = InjectedResult("cuModuleLoadData")) return injected;
  if (!InContext() || image == nullptr) return kCuInvalidValue;
  *module = reinterpret_cast<CuModule>(uintptr_t{77});
  return kCuSuccess;
}
CuResult cuModuleUnload(CuModule) { return kCuSuccess; }
CuResult cuModuleGetFunction(CuFunction* function, CuModule, const char* name) {
  ++Get().functions_loaded;
  *function = reinterpret_cast<CuFunction>(FindKernel(name));
  return *function == nullptr ? kCuNotFound : kCuSuccess;
}
CuResult cuLaunchKernel(CuFunction function, unsigned blocks, unsigned y, unsigned z,
                        unsigned threads, unsigned thread_y, unsigned thread_z, unsigned shared,
                        CuStream stream, void** parameters, void** extra) {
  namespace kernels = talweg::gpu::kernels;
  if (y != 1 || z != 1 || thread_y != 1 || thread_z != 1 || shared != 0 || extra != nullptr ||
      threads != kernels::kBlockThreads || blocks == 0) {
    return kCuInvalidValue;
  }
  kernels::ReducePlan plan = reinterpret_cast<talweg::gpu::cuda::stub::Kernel*>(function)->plan;
  // The launch copies the parameters.
  std::memcpy(&plan.arguments, parameters[0], sizeof(plan.arguments));
  const uint64_t bytes = plan.arguments.element_count * talweg::DTypeSize(plan.dtype);
  const auto reaches = [&](const uint64_t* addresses, uint32_t count) {
    return std::all_of(addresses, addresses + count,
                       [&](uint64_t address) { return Get().IsDeviceMemory(address, bytes); });
  };
  if (!reaches(plan.arguments.inputs, plan.arguments.input_count) ||
      !reaches(plan.arguments.outputs, plan.arguments.output_count)) {
    return kCuIllegalAddress;
  }
  return PostRun(stream,
                 [plan, blocks, threads] { kernels::RunOnHost(plan, uint64_t{blocks} * threads); });
}

}  // extern "C"
