// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_buffers.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "libs/status/status.h"

namespace talweg::agent {

absl::Status GpuBuffers::MayExport(LocalRank rank) const {
  if (!Knows(rank) || IsHere(rank)) return absl::OkStatus();
  return absl::UnavailableError(
      "memory of the process that was this local rank before is still being released");
}

absl::StatusOr<GpuBuffers::Exported> GpuBuffers::Export(LocalRank local_rank,
                                                        const gpu::GpuUuid& uuid,
                                                        uint64_t buffer_id,
                                                        const gpu::MemoryHandle& handle) {
  const auto known = ranks_.find(local_rank);
  const bool is_new = known == ranks_.end();
  const Incarnation life = is_new ? Incarnation{next_life_++} : known->second.life;
  TALWEG_ASSIGN_OR_RETURN(const gpu::DeviceSpan span,
                          node_.At(uuid).imports->Map({life, buffer_id}, handle));
  Rank& rank = ranks_[local_rank];
  rank.life = life;
  rank.buffers.push_back(
      Buffer{.gpu = uuid, .buffer_id = buffer_id, .handle = handle, .span = span});
  return Exported{static_cast<uint32_t>(rank.buffers.size() - 1), span.bytes};
}

const GpuBuffers::Buffer* GpuBuffers::Find(LocalRank rank, uint32_t number) const {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end() || at->second.left) return nullptr;
  const std::vector<std::optional<Buffer>>& buffers = at->second.buffers;
  const bool usable = number < buffers.size() && buffers[number] && !buffers[number]->leaving;
  return usable ? &*buffers[number] : nullptr;
}

absl::StatusOr<const GpuBuffers::Buffer*> GpuBuffers::Get(LocalRank rank, uint32_t number) const {
  const Buffer* const buffer = Find(rank, number);
  if (buffer != nullptr) return buffer;
  return absl::InvalidArgumentError(absl::StrCat("there is no buffer ", number));
}

void GpuBuffers::Unexport(LocalRank rank, uint32_t request, uint32_t number) {
  std::optional<Buffer>& buffer = ranks_.at(rank).buffers[number];
  buffer->leaving = true;
  buffer->leave_request = request;
}

std::vector<GpuBuffers::Leaving> GpuBuffers::GivenBack() const {
  std::vector<Leaving> leaving;
  for (const auto& [local_rank, rank] : ranks_) {
    if (rank.left || rank.tasks > 0) continue;
    for (uint32_t number = 0; number < rank.buffers.size(); ++number) {
      const std::optional<Buffer>& buffer = rank.buffers[number];
      if (!buffer || !buffer->leaving || losses_.Has(buffer->gpu)) continue;
      leaving.push_back({local_rank, number, buffer->leave_request, buffer->gpu});
    }
  }
  return leaving;
}

void GpuBuffers::Release(const Leaving& buffer) {
  Rank& rank = ranks_.at(buffer.rank);
  std::optional<Buffer>& released = rank.buffers[buffer.number];
  node_.At(buffer.gpu).imports->Release({rank.life, released->buffer_id}).IgnoreError();
  released.reset();
}

void GpuBuffers::OnRankLeft(LocalRank rank) { ranks_.at(rank).left = true; }

std::vector<LocalRank> GpuBuffers::Finished() const {
  std::vector<LocalRank> finished;
  for (const auto& [local_rank, rank] : ranks_) {
    if (rank.left && rank.tasks == 0) finished.push_back(local_rank);
  }
  return finished;
}

void GpuBuffers::Release(LocalRank rank) {
  for (const gpu::GpuUuid& uuid : GpusOf(rank)) {
    NodeGpu* const gpu = node_.Find(uuid);  // Null: lost.
    if (gpu != nullptr) gpu->imports->ReleaseOwner(ranks_.at(rank).life).IgnoreError();
  }
  ranks_.erase(rank);
}

absl::Status GpuBuffers::MapAgain(const gpu::GpuUuid& uuid) {
  const NodeGpu& gpu = node_.At(uuid);
  for (auto& [local_rank, rank] : ranks_) {
    for (std::optional<Buffer>& buffer : rank.buffers) {
      if (!buffer || buffer->gpu != uuid) continue;
      const auto span = gpu.imports->Map({rank.life, buffer->buffer_id}, buffer->handle);
      if (!span.ok()) {
        return status::Annotate(span.status(),
                                absl::StrCat("memory of local rank ", local_rank.value()));
      }
      buffer->span = *span;
    }
  }
  return absl::OkStatus();
}

bool GpuBuffers::IsHere(LocalRank rank) const {
  const auto at = ranks_.find(rank);
  return at != ranks_.end() && !at->second.left;
}

GpuSet GpuBuffers::GpusOf(LocalRank rank) const {
  std::set<gpu::GpuUuid> uuids;
  for (const std::optional<Buffer>& buffer : ranks_.at(rank).buffers) {
    if (buffer) uuids.insert(buffer->gpu);
  }
  return {uuids.begin(), uuids.end()};
}

bool GpuBuffers::Uses(const Rank& rank, const gpu::GpuUuid& uuid) {
  return std::any_of(rank.buffers.begin(), rank.buffers.end(),
                     [&](const auto& buffer) { return buffer && buffer->gpu == uuid; });
}

bool GpuBuffers::Use(const gpu::GpuUuid& uuid) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& entry) { return Uses(entry.second, uuid); });
}

std::vector<LocalRank> GpuBuffers::RanksOn(const gpu::GpuUuid& uuid) const {
  std::vector<LocalRank> ranks;
  for (const auto& [local_rank, rank] : ranks_) {
    if (!rank.left && Uses(rank, uuid)) ranks.push_back(local_rank);
  }
  return ranks;
}

void GpuBuffers::AddGpus(std::set<gpu::GpuUuid>& uuids) const {
  for (const auto& [local_rank, rank] : ranks_) {
    for (const std::optional<Buffer>& buffer : rank.buffers) {
      if (buffer) uuids.insert(buffer->gpu);
    }
  }
}

GpuBuffers::Spread GpuBuffers::PresentSpread() const {
  std::set<gpu::GpuUuid> uuids;
  uint32_t with_memory = 0;
  for (const auto& [local_rank, rank] : ranks_) {
    bool any = false;
    for (const std::optional<Buffer>& buffer : rank.buffers) {
      if (!buffer || rank.left) continue;
      uuids.insert(buffer->gpu);
      any = true;
    }
    with_memory += any;
  }
  return {{uuids.begin(), uuids.end()}, with_memory};
}

}  // namespace talweg::agent
