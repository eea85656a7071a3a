// SPDX-License-Identifier: Apache-2.0
// What the stage does about pieces, collectives and GPUs that fail.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "libs/status/status.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {

// ----- Pieces and collectives. -----

void GpuStage::Redo(Lane& lane) {
  lane.step = Step::kDraining;
  Record(lane).IgnoreError();  // A failure here shows when the event is asked.
}

void GpuStage::GiveBack(Lane& lane) {
  const std::shared_ptr<Task> task = std::exchange(lane.task, nullptr);
  lane.step = Step::kFree;
  --task->pieces;
  if (task->abandoned) {
    if (task->pieces == 0 && task->ranges.empty()) TaskDone(task);
    return;
  }
  if (task->ranges.empty()) tasks_.push_front(task);
  lane.range.host_only = true;
  task->ranges.push_front(lane.range);
}

// Some ranks have lost their contribution, and others have no result.
std::string GpuStage::OverContributions(const Lane& lane, const absl::Status& why) const {
  return absl::StrCat(Describe(lane), ": ", status::StatusText(why),
                      "; its results were being written over the contributions");
}

void GpuStage::OnPieceFailed(Lane& lane, const absl::Status& status) {
  if (FoundLost(status)) {  // The lane is being drained, or is now.
    if (lane.step != Step::kDraining) Redo(lane);
    return;
  }
  if (lane.task->is_final && lane.writes_ranks) return Fail(OverContributions(lane, status));
  if (absl::IsUnavailable(status) && lane.path == Path::kCollective &&
      lane.step != Step::kCopying && lane.step != Step::kDraining) {
    return OnCollectiveFailed(GpuSet(lane.groups.front()), status);
  }
  if (absl::IsUnimplemented(status) && lane.path != Path::kHost) {
    for (const gpu::GpuUuid& uuid : lane.gpus) node_.At(uuid).has_kernels = false;
    events_.OnGpuNote(absl::StrCat("ranks that share a GPU are summed on the host: ",
                                   status::StatusText(status)));
    return Redo(lane);
  }
  if (absl::IsResourceExhausted(status) && lane.path != Path::kHost && lane.path != Path::kDirect) {
    return Redo(lane);
  }
  Fail(absl::StrCat(Describe(lane), ": ", status::StatusText(status)));
}

void GpuStage::PutAside(const Lane& lane, std::map<GpuSet, Aside>& aside) {
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    for (const gpu::GpuUuid& uuid : group) {
      if (!IsLost(uuid)) aside[group].emplace_back(uuid, node_.TakeAside(uuid, IndexOf(lane)));
    }
  }
}

absl::Status GpuStage::RenewParts(const Lane& lane) {
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    for (const gpu::GpuUuid& uuid : group) {
      if (!IsLost(uuid)) TALWEG_RETURN_IF_ERROR(node_.RenewPart(uuid, IndexOf(lane)));
    }
  }
  return absl::OkStatus();
}

void GpuStage::OnCollectiveFailed(const GpuSet& group, const absl::Status& status) {
  ++counters_.collectives_failed;
  // A failed group takes along what runs beside it in a lane, and that takes along what runs beside
  // it.
  std::set<GpuSet> failed = {group};
  std::vector<Lane*> affected;
  const auto is_affected = [&](const Lane& lane) {
    const bool uses = lane.step == Step::kAwaitCommunicator || lane.step == Step::kLaunching ||
                      lane.step == Step::kCollective;
    return uses && std::any_of(lane.groups.begin(), lane.groups.end(),
                               [&](const GpuSet& its) { return failed.contains(its); });
  };
  for (size_t known = 0; known != failed.size();) {
    known = failed.size();
    affected.clear();
    for (Lane& lane : lanes_) {
      if (!is_affected(lane)) continue;
      affected.push_back(&lane);
      failed.insert(lane.groups.begin(), lane.groups.end());
    }
  }
  std::map<GpuSet, Aside> aside;
  for (Lane* const lane : affected) {
    if (lane->step != Step::kAwaitCommunicator) PutAside(*lane, aside);
  }
  if (!affected.empty()) {
    events_.OnGpuNote(absl::StrCat(Describe(*affected[0]), ": ", status::StatusText(status),
                                   "; summed on the host until the communicator is made anew"));
  }
  for (const GpuSet& set : failed) {
    if (set.size() > 1) collectives_.Fail(set, std::move(aside[set]), now_ns_);
  }
  // After the aborts, because an allocation may have to wait for what hangs.
  for (Lane* const lane : affected) {
    if (lane->step == Step::kAwaitCommunicator) continue;
    if (const absl::Status renewed = RenewParts(*lane); !renewed.ok()) {
      return Fail(absl::StrCat(Describe(*lane),
                               ": after a collective failed: ", status::StatusText(renewed)));
    }
  }
  for (Lane* const lane : affected) Redo(*lane);
}

// ----- GPUs that are lost, and opened again. -----
//
// A context is lost by a fault of the GPU, or of a neighbour under MPS. It takes the agent's
// streams, events, mappings and pinned memory with it. It takes nothing of the ranks', which have
// contexts of their own. So the stage gives up what was begun, opens the GPU again, maps the ranks'
// memory anew, and does again what is not over. Only the events were the agent's, and the ranks
// have to ask for them: they push once more what is open. Until then nothing touches that memory.

bool GpuStage::AnyLost(const GpuSet& gpus) const {
  return std::any_of(gpus.begin(), gpus.end(),
                     [this](const gpu::GpuUuid& uuid) { return IsLost(uuid); });
}

bool GpuStage::Uses(const Rank& rank, const gpu::GpuUuid& uuid) const {
  return std::any_of(rank.buffers.begin(), rank.buffers.end(),
                     [&](const auto& buffer) { return buffer && buffer->gpu == uuid; });
}

bool GpuStage::FoundLost(const absl::Status& status) {
  if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) return false;
  std::vector<std::pair<gpu::GpuUuid, absl::Status>> found;
  bool any = absl::IsAborted(status) && !lost_.empty();
  for (const auto& [uuid, gpu] : node_.gpus()) {
    if (IsLost(uuid)) continue;
    const absl::Status why = gpu.device->Memory().status();
    if (absl::IsAborted(why)) found.emplace_back(uuid, why);
  }
  for (const auto& [uuid, why] : found) OnGpuLost(uuid, why);
  return any || !found.empty();
}

void GpuStage::OnGpuLost(const gpu::GpuUuid& uuid, const absl::Status& why) {
  lost_[uuid] = {.why = why, .since_ns = now_ns_};
  const auto is_direct = [&](const auto& entry) { return entry.second.gpu == uuid; };
  if (std::any_of(direct_.begin(), direct_.end(), is_direct)) {
    // What a NIC has there is gone: results that others may ask for, and sums on their way.
    return Fail(absl::StrCat(status::StatusText(why),
                             "; the network reads and writes its memory, which is lost with it: "
                             "with --gpu_direct=off the job would go on"));
  }
  events_.OnGpuNote(absl::StrCat(status::StatusText(why), "; it is opened again"));
  for (auto& [local_rank, rank] : ranks_) {
    for (auto& [tensor, part] : rank.parts) {
      if (part.gpu == uuid) part.placed = part.ready = false;
    }
    std::erase_if(rank.waiting, [&rank](const Waiting& waiting) {
      return !rank.parts.at(waiting.tensor).placed;
    });
  }
  for (const std::shared_ptr<Delivery>& delivery : deliveries_) {
    if (delivery->round.status == pipeline::Status::kOk) delivery->recorded = false;
  }
  const auto is_affected = [this](const Lane& lane) {
    return lane.step != Step::kFree && lane.step != Step::kDraining && AnyLost(lane.gpus);
  };
  for (const Lane& lane : lanes_) {
    if (!is_affected(lane) || !lane.task->is_final || !lane.writes_ranks) continue;
    return Fail(OverContributions(lane, why));
  }
  for (Lane& lane : lanes_) {
    if (!is_affected(lane)) continue;
    if (lane.step == Step::kCopying) {
      Redo(lane);
    } else {
      OnCollectiveFailed(GpuSet(lane.groups.front()), why);
    }
  }
}

int GpuStage::TendLost() {
  int work = 0;
  std::vector<gpu::GpuUuid> back;
  for (auto& [uuid, lost] : lost_) {
    absl::Status status = lost.why;
    if (!lost.closed && CloseLost(uuid)) {
      lost.closed = true;
      ++work;
    }
    const bool is_used = std::any_of(ranks_.begin(), ranks_.end(),
                                     [&](const auto& entry) { return Uses(entry.second, uuid); });
    if (lost.closed && (!is_used || now_ns_ >= lost.retry_at_ns)) {
      ++work;
      status = is_used ? Reopen(uuid) : absl::OkStatus();
      if (status.ok()) back.push_back(uuid);
      if (absl::IsAborted(status)) lost.closed = node_.Find(uuid) == nullptr;  // Lost again.
      if (absl::IsFailedPrecondition(status)) {
        Fail(absl::StrCat(status::StatusText(lost.why), "; ", status::StatusText(status)));
        return work;
      }
      lost.retry_at_ns = now_ns_ + options_.reopen_every_ns;
    }
    if (!status.ok() && now_ns_ >= lost.since_ns + options_.reopen_deadline_ns) {
      Fail(absl::StrCat(status::StatusText(lost.why), "; not opened again within ",
                        options_.reopen_deadline_ns / 1'000'000'000,
                        " s: ", status::StatusText(status)));
      return work;
    }
  }
  for (const gpu::GpuUuid& uuid : back) {
    lost_.erase(uuid);
    close_gpus_ = true;  // If nobody uses it any more.
    NodeGpu* const gpu = node_.Find(uuid);
    if (gpu == nullptr) continue;
    ++counters_.gpus_reopened;
    events_.OnGpuNote(absl::StrCat(gpu::Describe(gpu->device->info()), " is open again"));
    for (auto& [local_rank, rank] : ranks_) {
      for (const auto& [tensor, part] : rank.parts) {
        if (part.gpu == uuid) Pin(tensor, uuid);
      }
      if (!rank.left && Uses(rank, uuid)) events_.OnEventsLost(local_rank);
    }
  }
  return work;
}

bool GpuStage::CloseLost(const gpu::GpuUuid& uuid) {
  const bool any_lane = std::any_of(lanes_.begin(), lanes_.end(),
                                    [](const Lane& lane) { return lane.step != Step::kFree; });
  if (any_lane || !collectives_.Release(uuid)) return false;
  std::erase_if(pinned_, [&](const auto& entry) { return entry.second.gpu == uuid; });
  node_.Close(uuid);
  return true;
}

absl::Status GpuStage::Reopen(const gpu::GpuUuid& uuid) {
  TALWEG_ASSIGN_OR_RETURN(NodeGpu* const gpu, node_.Open(uuid));
  for (auto& [local_rank, rank] : ranks_) {
    if (!Uses(rank, uuid)) continue;
    TALWEG_RETURN_IF_ERROR(status::Annotate(
        Remap(*gpu, uuid, rank), absl::StrCat("memory of local rank ", local_rank.value())));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::Remap(NodeGpu& gpu, const gpu::GpuUuid& uuid, Rank& rank) {
  for (std::optional<Buffer>& buffer : rank.buffers) {
    if (!buffer || buffer->gpu != uuid) continue;
    TALWEG_ASSIGN_OR_RETURN(buffer->span,
                            gpu.imports->Map({rank.life, buffer->buffer_id}, buffer->handle));
  }
  for (auto& [tensor, part] : rank.parts) {
    if (part.gpu != uuid || !part.open) continue;
    part.span = rank.buffers[part.buffer]->span.Part(part.offset, host_.Spec(tensor).bytes());
    part.ready = rank.left;  // It pushes no more: its gradient was there when the core was told.
  }
  return absl::OkStatus();
}

}  // namespace talweg::agent
