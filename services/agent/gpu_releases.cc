// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_releases.h"

#include <algorithm>
#include <set>
#include <vector>

namespace talweg::agent {

int GpuReleases::Poll() {
  const int answered = ReleaseBuffers();
  return answered + ReleaseRanks();
}

int GpuReleases::ReleaseBuffers() {
  int answered = 0;
  for (const GpuBuffers::Leaving& buffer : buffers_.GivenBack()) {
    if (!lanes_.MayWaitFor(buffer.gpu)) continue;
    buffers_.Release(buffer);
    events_.OnUnexported(buffer.rank, buffer.request);
    ++answered;
  }
  return answered;
}

int GpuReleases::ReleaseRanks() {
  int gone = 0;
  for (const LocalRank rank : buffers_.Finished()) {
    const GpuSet gpus = buffers_.GpusOf(rank);
    const bool may_release = std::all_of(gpus.begin(), gpus.end(), [this](const auto& uuid) {
      return losses_.Has(uuid) || lanes_.MayWaitFor(uuid);
    });
    if (gradients_.AnyOpen(rank) || !may_release) continue;
    gradients_.Forget(rank);
    buffers_.Release(rank);
    ++gone;
  }
  if (gone > 0 || look_for_unused_) CloseUnusedGpus();
  return gone;
}

void GpuReleases::CloseUnusedGpus() {
  look_for_unused_ = false;
  std::set<gpu::GpuUuid> used;
  gradients_.AddGpus(used);
  buffers_.AddGpus(used);
  lanes_.AddGpus(used);
  homes_.AddGpus(used);
  std::vector<gpu::GpuUuid> unused;
  for (const auto& [uuid, gpu] : node_.gpus()) {
    if (!used.contains(uuid) && !losses_.Has(uuid)) unused.push_back(uuid);
  }
  for (const gpu::GpuUuid& uuid : unused) {
    if (!collectives_.Release(uuid)) {
      look_for_unused_ = true;  // In a later pass.
      continue;
    }
    pins_.UnpinOn(uuid);
    node_.Close(uuid);
  }
}

}  // namespace talweg::agent
