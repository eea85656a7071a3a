// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_front.h"

#include <cstring>
#include <thread>
#include <utility>

#include "libs/gpu/cuda/cuda_platform.h"
#include "libs/gpu/fake/shared_machine.h"
#include "libs/status/status.h"
#include "services/agent/agent_open.h"

namespace talweg::agent {

absl::StatusOr<std::unique_ptr<gpu::Platform>> OpenGpus(const config::AgentConfig& config,
                                                        std::string* why) {
  if (config.gpu == "off") {
    *why = "off, as configured";
    return nullptr;
  }
  if (EncodingRuleOf(config).encoding != Encoding::kPlain) {
    *why = "off, as what lies on a GPU cannot travel encoded (option encoding)";
    return nullptr;
  }
  if (!config.test_fake_gpus.empty()) {
    TALWEG_ASSIGN_OR_RETURN(const auto machine,
                            gpu::fake::ParseSharedMachine(config.test_fake_gpus));
    *why = "FAKE, files in " + machine.directory + " (test_fake_gpus: for tests only)";
    return gpu::fake::NewSharedPlatform(machine);
  }
  auto platform = gpu::NewCudaPlatform({});
  if (!platform.ok()) {
    *why = "none: " + status::StatusText(platform.status());
    return nullptr;
  }
  const auto gpus = (*platform)->Gpus();
  if (!gpus.ok()) {
    *why = "none: " + status::StatusText(gpus.status());
    return nullptr;
  }
  why->clear();
  for (const gpu::GpuInfo& gpu : *gpus) *why += (why->empty() ? "" : ", ") + Describe(gpu);
  return platform;
}

uint64_t ThreadGraveyard::Bury(std::unique_ptr<gpu::Communicator> communicator) {
  const auto done = std::make_shared<std::atomic<bool>>(false);
  std::thread([done, communicator = std::move(communicator)]() mutable {
    communicator.reset();
    done->store(true);
  }).detach();
  done_[next_] = done;
  return next_++;
}

bool ThreadGraveyard::IsBuried(uint64_t name) {
  const auto at = done_.find(name);
  if (at == done_.end()) return true;
  if (!at->second->load()) return false;
  done_.erase(at);
  return true;
}

absl::StatusOr<shm::Exported> GpuFront::Export(LocalRank rank, const shm::RankExport& given) {
  gpu::GpuUuid uuid;
  uuid.bytes = given.uuid;
  gpu::MemoryHandle handle;
  std::memcpy(handle.bytes.data(), given.handle.data(), handle.bytes.size());
  TALWEG_ASSIGN_OR_RETURN(const GpuStage::Exported exported,
                          stage_.Export(rank, uuid, given.buffer_id, handle));
  return shm::Exported{.buffer = exported.buffer, .bytes = exported.bytes};
}

absl::Status GpuFront::Unexport(LocalRank rank, uint32_t request, uint32_t buffer) {
  return stage_.Unexport(rank, request, buffer);
}

absl::StatusOr<shm::Placed> GpuFront::Place(LocalRank rank, pipeline::TensorIndex tensor,
                                            uint32_t buffer) {
  TALWEG_ASSIGN_OR_RETURN(const GpuStage::Placed placed, stage_.Place(rank, tensor, buffer));
  shm::Placed answer;
  std::memcpy(answer.pushed.data(), placed.pushed.bytes.data(), answer.pushed.size());
  std::memcpy(answer.taken.data(), placed.taken.bytes.data(), answer.taken.size());
  return answer;
}

absl::Status GpuFront::Push(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                            int32_t priority, const shm::DevicePlace& place) {
  return stage_.Push(rank, tensor, round, priority,
                     {.buffer = place.buffer, .offset = place.offset, .again = place.again});
}

}  // namespace talweg::agent
