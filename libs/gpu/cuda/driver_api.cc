// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/driver_api.h"

#include <absl/strings/str_cat.h>
#include <dlfcn.h>

#include <string_view>

namespace talweg::gpu::cuda {
namespace {

absl::StatusCode CodeOf(CuResult result) {
  switch (result) {
    case kCuOutOfMemory: return absl::StatusCode::kResourceExhausted;
    case kCuInvalidValue:
    case kCuInvalidHandle:
    case kCuHostMemoryAlreadyRegistered: return absl::StatusCode::kInvalidArgument;
    case kCuNoDevice:
    case kCuInvalidDevice:
    case kCuNotFound: return absl::StatusCode::kNotFound;
    case kCuStubLibrary:
    case kCuDeviceUnavailable:
    case kCuInvalidImage:
    case kCuNoBinaryForGpu:
    case kCuInvalidPtx:
    case kCuJitCompilerNotFound:
    case kCuUnsupportedPtxVersion:
    case kCuJitCompilationDisabled:
    case kCuNotSupported:
    case kCuSystemNotReady:
    case kCuSystemDriverMismatch: return absl::StatusCode::kUnimplemented;
    // The context has ended. From then on every call returns this.
    case kCuDeinitialized:
    case kCuInvalidContext:
    case kCuEccUncorrectable:
    case kCuNvlinkUncorrectable:
    case kCuContained:
    case kCuIllegalAddress:
    case kCuLaunchTimeout:
    case kCuContextIsDestroyed:
    case kCuAssert:
    case kCuHardwareStackError:
    case kCuIllegalInstruction:
    case kCuMisalignedAddress:
    case kCuInvalidAddressSpace:
    case kCuInvalidPc:
    case kCuLaunchFailed:
    case kCuMpsRpcFailure:
    case kCuMpsClientTerminated:
    case kCuUnknown: return absl::StatusCode::kAborted;
    default: return absl::StatusCode::kInternal;
  }
}

std::string_view RemedyOf(CuResult result) {
  switch (result) {
    case kCuNoDevice:
      return "; no GPU is visible: look at nvidia-smi -L, CUDA_VISIBLE_DEVICES, and in a container "
             "NVIDIA_VISIBLE_DEVICES";
    case kCuStubLibrary:
      return "; this is the toolkit's stub of libcuda.so.1: take its directory out of "
             "LD_LIBRARY_PATH";
    case kCuDeviceUnavailable:
      return "; in exclusive mode a GPU takes one process, which the trainer is: nvidia-smi -c "
             "DEFAULT, or MPS";
    case kCuSystemNotReady: return "; start nvidia-fabricmanager";
    case kCuSystemDriverMismatch:
      return "; the driver's library does not fit its kernel module: reboot after an update, and "
             "in "
             "a container take the host's library";
    case kCuInvalidImage:
    case kCuNoBinaryForGpu:
    case kCuInvalidPtx:
    case kCuUnsupportedPtxVersion:
      return "; the kernels were built by a CUDA Toolkit newer than this driver: update the "
             "driver, "
             "or build with an older toolkit (CUDA_HOME)";
    case kCuOutOfMemory: return "; nvidia-smi says who has the GPU's memory";
    default: return "";
  }
}

}  // namespace

void* OpenLibrary(const std::string& library, std::string* error) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) *error = dlerror();
  return opened;
}

void* FindSymbol(void* library, const char* symbol) { return dlsym(library, symbol); }

absl::StatusOr<std::shared_ptr<const DriverApi>> OpenDriver(const std::string& library) {
  std::string error;
  void* const opened = OpenLibrary(library, &error);
  if (opened == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "no NVIDIA driver: ", error,
        "; with a GPU, install NVIDIA's driver (Debian: nvidia-driver), or run the container with "
        "--gpus=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
  }
  auto driver = std::make_shared<DriverApi>();
#define TALWEG_GPU_LOAD(member, symbol, ...)                                                       \
  driver->member = reinterpret_cast<decltype(driver->member)>(FindSymbol(opened, symbol));         \
  if (driver->member == nullptr) {                                                                 \
    return absl::UnimplementedError(                                                               \
        absl::StrCat(library, " has no ", symbol, ": a driver for CUDA 11.4 or later is needed")); \
  }
  TALWEG_GPU_DRIVER_FUNCTIONS(TALWEG_GPU_LOAD)
#undef TALWEG_GPU_LOAD
#define TALWEG_GPU_TRY_LOAD(member, symbol, ...) \
  driver->member = reinterpret_cast<decltype(driver->member)>(FindSymbol(opened, symbol));
  TALWEG_GPU_LATER_DRIVER_FUNCTIONS(TALWEG_GPU_TRY_LOAD)
#undef TALWEG_GPU_TRY_LOAD
  if (const CuResult result = driver->Init(0); result != kCuSuccess) {
    // For any of these reasons this process cannot use GPUs.
    const absl::Status status = DriverStatus(*driver, result, "cuInit");
    return absl::IsNotFound(status) ? status
                                    : absl::UnimplementedError(absl::StrCat(
                                          "the NVIDIA driver does not start: ", status.message()));
  }
  if (const CuResult result = driver->DriverGetVersion(&driver->version); result != kCuSuccess) {
    return DriverStatus(*driver, result, "cuDriverGetVersion");
  }
  return driver;
}

int Attribute(const DriverApi& driver, CuDevice device, int attribute) {
  int value = 0;
  return driver.DeviceGetAttribute(&value, attribute, device) == kCuSuccess ? value : 0;
}

absl::Status NicsReach(const DriverApi& driver, CuDevice device, const std::string& gpu) {
  if (Attribute(driver, device, kCuAttributeRdmaSupported) == 0 &&
      Attribute(driver, device, kCuAttributeDmaBufSupported) == 0) {
    return absl::UnimplementedError(
        absl::StrCat(gpu,
                     " lets no NIC reach its memory (no GPUDirect RDMA, no dma-buf); "
                     "gradients go through host memory"));
  }
  if (Attribute(driver, device, kCuAttributeRdmaWritesOrdering) < kCuRdmaOrderingOwner &&
      (Attribute(driver, device, kCuAttributeRdmaFlushOptions) & kCuRdmaFlushByHost) == 0) {
    return absl::UnimplementedError(
        absl::StrCat(gpu,
                     " neither orders what NICs write to it nor lets it be flushed; "
                     "gradients go through host memory"));
  }
  return absl::OkStatus();
}

absl::Status DriverStatus(const DriverApi& driver, CuResult result, const std::string& what) {
  if (result == kCuSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.GetErrorName(result, &name) != kCuSuccess) name = nullptr;
  if (driver.GetErrorString(result, &text) != kCuSuccess) text = nullptr;
  const std::string_view remedy = RemedyOf(result);
  return absl::Status(CodeOf(result),
                      absl::StrCat(what, ": ", name == nullptr ? "CUDA error" : name, " (", result,
                                   text == nullptr ? "" : ", ", text == nullptr ? "" : text, ")",
                                   absl::string_view(remedy.data(), remedy.size())));
}

}  // namespace talweg::gpu::cuda
