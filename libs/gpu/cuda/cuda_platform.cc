// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/cuda_platform.h"

#include <absl/strings/str_cat.h>

#include <cstring>
#include <set>
#include <utility>

#include "libs/gpu/cuda/cuda_communicator.h"
#include "libs/gpu/cuda/cuda_device.h"
#include "libs/gpu/cuda/driver_api.h"
#include "libs/gpu/cuda/nccl_api.h"
#include "libs/status/status.h"

namespace talweg::gpu {
namespace {

using cuda::CuDevice;
using cuda::DriverApi;
using cuda::DriverStatus;

struct Found {
  CuDevice device = 0;
  GpuInfo info;
};

absl::StatusOr<Found> Describe(const DriverApi& driver, int ordinal) {
  const auto check = [&](cuda::CuResult result, const char* what) {
    return DriverStatus(driver, result, absl::StrCat(what, " of GPU ", ordinal));
  };
  Found found;
  TALWEG_RETURN_IF_ERROR(check(driver.DeviceGet(&found.device, ordinal), "cuDeviceGet"));
  cuda::CuUuid uuid;
  TALWEG_RETURN_IF_ERROR(check(driver.DeviceGetUuid(&uuid, found.device), "cuDeviceGetUuid"));
  std::memcpy(found.info.uuid.bytes.data(), uuid.bytes, sizeof(uuid.bytes));
  char text[128] = {};
  TALWEG_RETURN_IF_ERROR(
      check(driver.DeviceGetName(text, sizeof(text) - 1, found.device), "cuDeviceGetName"));
  found.info.name = text;
  std::memset(text, 0, sizeof(text));
  TALWEG_RETURN_IF_ERROR(
      check(driver.DeviceGetPciBusId(text, sizeof(text) - 1, found.device), "cuDeviceGetPCIBusId"));
  found.info.pci_bus_id = text;
  TALWEG_RETURN_IF_ERROR(
      check(driver.DeviceGetAttribute(&found.info.compute_major, cuda::kCuAttributeComputeMajor,
                                      found.device),
            "cuDeviceGetAttribute"));
  TALWEG_RETURN_IF_ERROR(
      check(driver.DeviceGetAttribute(&found.info.compute_minor, cuda::kCuAttributeComputeMinor,
                                      found.device),
            "cuDeviceGetAttribute"));
  size_t bytes = 0;
  TALWEG_RETURN_IF_ERROR(check(driver.DeviceTotalMem(&bytes, found.device), "cuDeviceTotalMem"));
  found.info.memory_bytes = bytes;
  return found;
}

absl::StatusOr<std::vector<Found>> FindGpus(const DriverApi& driver) {
  int count = 0;
  TALWEG_RETURN_IF_ERROR(DriverStatus(driver, driver.DeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) return DriverStatus(driver, cuda::kCuNoDevice, "cuDeviceGetCount");
  std::vector<Found> all;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    TALWEG_ASSIGN_OR_RETURN(Found found, Describe(driver, ordinal));
    all.push_back(std::move(found));
  }
  return all;
}

class CudaPlatform final : public Platform {
 public:
  CudaPlatform(std::shared_ptr<const DriverApi> driver, std::vector<Found> gpus,
               CudaOptions options)
      : driver_(std::move(driver)), gpus_(std::move(gpus)), options_(std::move(options)) {}

  absl::StatusOr<std::vector<GpuInfo>> Gpus() override { return Infos(); }

  absl::StatusOr<std::unique_ptr<Device>> Open(const GpuUuid& uuid) override {
    for (const Found& found : gpus_) {
      if (found.info.uuid != uuid) continue;
      TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaDevice> device,
                              cuda::CudaDevice::Open(driver_, pinned_, options_.kernel_image,
                                                     found.device, found.info));
      return device;
    }
    return NoSuchGpu(uuid, Infos());
  }

  // Atomics between GPUs go over NVLink, not over PCIe.
  bool Linked(const GpuUuid& one, const GpuUuid& other) override {
    const auto find = [this](const GpuUuid& uuid) {
      return std::find_if(gpus_.begin(), gpus_.end(),
                          [&](const Found& found) { return found.info.uuid == uuid; });
    };
    const auto from = find(one);
    const auto to = find(other);
    int value = 0;
    return from != gpus_.end() && to != gpus_.end() &&
           driver_->DeviceGetP2PAttribute(&value, cuda::kCuP2pNativeAtomics, from->device,
                                          to->device) == cuda::kCuSuccess &&
           value != 0;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> NewCommunicator(
      std::span<Device* const> devices) override {
    std::vector<cuda::CudaDevice*> ours;
    std::set<GpuUuid> uuids;
    for (Device* const device : devices) {
      ours.push_back(dynamic_cast<cuda::CudaDevice*>(device));
      if (ours.back() == nullptr || !uuids.insert(device->info().uuid).second) {
        return absl::InvalidArgumentError("a communicator is among different GPUs, each once");
      }
    }
    if (ours.empty()) return absl::InvalidArgumentError("a communicator of no GPUs");
    if (nccl_ == nullptr) {
      TALWEG_ASSIGN_OR_RETURN(nccl_, cuda::OpenNccl(options_.nccl_libraries));
    }
    TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaCommunicator> communicator,
                            cuda::CudaCommunicator::Start(nccl_, std::move(ours)));
    return communicator;
  }

 private:
  std::vector<GpuInfo> Infos() const {
    std::vector<GpuInfo> infos;
    infos.reserve(gpus_.size());
    for (const Found& found : gpus_) infos.push_back(found.info);
    return infos;
  }

  const std::shared_ptr<const DriverApi> driver_;
  const std::vector<Found> gpus_;
  const CudaOptions options_;
  const std::shared_ptr<cuda::PinnedRegions> pinned_ = std::make_shared<cuda::PinnedRegions>();
  std::shared_ptr<const cuda::NcclApi> nccl_;  // The first communicator opens it.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Platform>> NewCudaPlatform(const CudaOptions& options) {
  TALWEG_ASSIGN_OR_RETURN(std::shared_ptr<const DriverApi> driver,
                          cuda::OpenDriver(options.driver_library));
  TALWEG_ASSIGN_OR_RETURN(std::vector<Found> gpus, FindGpus(*driver));
  return std::make_unique<CudaPlatform>(std::move(driver), std::move(gpus), options);
}

CudaFacts ReadCudaFacts(const CudaOptions& options) {
  CudaFacts facts;
  facts.has_kernels = !options.kernel_image.empty();
  const auto driver = cuda::OpenDriver(options.driver_library);
  facts.driver = driver.status();
  if (driver.ok()) {
    facts.driver_version = (*driver)->version;
    const auto gpus = FindGpus(**driver);
    facts.driver = gpus.status();
    if (gpus.ok()) {
      for (const Found& found : *gpus) {
        facts.gpus.push_back(found.info);
        facts.nics_reach_gpus.Update(
            cuda::NicsReach(**driver, found.device, talweg::gpu::Describe(found.info)));
      }
    }
  }
  const auto nccl = cuda::OpenNccl(options.nccl_libraries);
  facts.nccl = nccl.status();
  if (nccl.ok()) {
    facts.nccl_version = cuda::NcclVersionText((*nccl)->version);
    facts.nccl_library = (*nccl)->library;
  }
  return facts;
}

}  // namespace talweg::gpu
