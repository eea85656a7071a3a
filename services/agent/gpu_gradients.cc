// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_gradients.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "libs/base/counted.h"
#include "libs/status/status.h"

namespace talweg::agent {
namespace {

// How many of a rank's gradients are asked for at a time, beside the oldest.
constexpr size_t kOthersAsked = 4;

}  // namespace

// ----- What ranks say. -----

absl::Status GpuGradients::Place(LocalRank local_rank, pipeline::TensorIndex tensor,
                                 const gpu::GpuUuid& uuid) {
  Rank& rank = ranks_[local_rank];
  const auto known = rank.parts.find(tensor);
  if (known != rank.parts.end() && known->second.gpu != uuid) {
    if (known->second.open) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", host_.Spec(tensor).name, "' has an open round on another GPU"));
    }
    DestroyEvents(known->second);
    rank.parts.erase(known);
  }
  Part& part = rank.parts.try_emplace(tensor, Part{.gpu = uuid}).first->second;
  const absl::Status made = MakeEvents(part);
  if (!made.ok() && !part.open) rank.parts.erase(tensor);
  return made;
}

absl::StatusOr<GpuGradients::Placed> GpuGradients::ExportEvents(LocalRank rank,
                                                                pipeline::TensorIndex tensor) {
  const Part& part = ranks_.at(rank).parts.at(tensor);
  gpu::Device& device = node_.DeviceOf(part.gpu);
  Placed placed;
  TALWEG_ASSIGN_OR_RETURN(placed.pushed, device.ExportEvent(part.pushed));
  TALWEG_ASSIGN_OR_RETURN(placed.taken, device.ExportEvent(part.taken));
  return placed;
}

absl::Status GpuGradients::MakeEvents(Part& part) {
  if (part.placed) return absl::OkStatus();
  gpu::Device& device = node_.DeviceOf(part.gpu);
  TALWEG_ASSIGN_OR_RETURN(part.pushed, device.NewEvent(gpu::EventScope::kShared));
  const auto taken = device.NewEvent(gpu::EventScope::kShared);
  if (!taken.ok()) {
    device.DestroyEvent(part.pushed);
    return taken.status();
  }
  part.taken = *taken;
  part.placed = true;
  return absl::OkStatus();
}

void GpuGradients::DestroyEvents(const Part& part) {
  if (!part.placed) return;
  node_.DeviceOf(part.gpu).DestroyEvent(part.pushed);
  node_.DeviceOf(part.gpu).DestroyEvent(part.taken);
}

absl::Status GpuGradients::CheckPush(LocalRank local_rank, pipeline::TensorIndex tensor,
                                     Round round, const Source& source) const {
  if (!buffers_.IsHere(local_rank)) {
    return absl::InvalidArgumentError("a push from a GPU by a rank that has exported nothing");
  }
  const pipeline::TensorSpec& spec = host_.Spec(tensor);
  const Part* const part = FindPresent(local_rank, tensor);
  if (part == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a push from a GPU of tensor '", spec.name, "', which was not placed there"));
  }
  const GpuBuffers::Buffer* const buffer = buffers_.Find(local_rank, source.buffer);
  if (buffer == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a push of tensor '", spec.name,
                                                   "' from buffer ", source.buffer,
                                                   ", which it has not exported"));
  }
  if (buffer->gpu != part->gpu || source.offset % DTypeSize(spec.collective.dtype) != 0 ||
      source.offset > buffer->span.bytes || spec.bytes() > buffer->span.bytes - source.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a push of tensor '", spec.name, "' (", Counted(spec.bytes(), "byte"),
                     ") from offset ", source.offset, " of buffer ", source.buffer, ", which has ",
                     Counted(buffer->span.bytes, "byte"), ", on the tensor's GPU or another"));
  }
  if (part->open && !(source.again && part->round == round)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a push of tensor '", spec.name, "' while its round is open"));
  }
  return absl::OkStatus();
}

absl::Status GpuGradients::Push(LocalRank local_rank, pipeline::TensorIndex tensor, Round round,
                                int32_t priority, const Source& source) {
  TALWEG_RETURN_IF_ERROR(CheckPush(local_rank, tensor, round, source));
  Rank& rank = ranks_.at(local_rank);
  Part& part = rank.parts.at(tensor);
  if (source.again) {
    // The push is needed only if the round is open and its event was lost. The rank pushes again
    // for all GPUs, not only for the lost one.
    const bool is_waiting =
        std::any_of(rank.waiting.begin(), rank.waiting.end(),
                    [&](const Waiting& waiting) { return waiting.tensor == tensor; });
    if (!part.open || part.ready || is_waiting) return absl::OkStatus();
  } else {
    part.told = false;
  }
  part.open = true;
  part.ready = false;
  part.round = round;
  part.buffer = source.buffer;
  part.offset = source.offset;
  part.span =
      buffers_.At(local_rank, source.buffer)->span.Part(source.offset, host_.Spec(tensor).bytes());
  // If the events are lost, the rank places the tensor and pushes it again.
  if (part.placed) {
    if (rank.waiting.empty()) rank.brought_ns.reset();
    rank.waiting.push_back({tensor, round, priority});
  }
  return absl::OkStatus();
}

absl::Status GpuGradients::MayUnexport(LocalRank local_rank, uint32_t buffer) const {
  const auto rank = ranks_.find(local_rank);
  if (rank == ranks_.end()) return absl::OkStatus();
  for (const auto& [tensor, part] : rank->second.parts) {
    if (!part.open || part.buffer != buffer) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", host_.Spec(tensor).name, "' was pushed from buffer ", buffer,
                     ", and its round ", part.round.value(), " is open: wait for it first"));
  }
  return absl::OkStatus();
}

void GpuGradients::OnRankLeft(LocalRank local_rank) {
  const auto rank = ranks_.find(local_rank);
  if (rank == ranks_.end()) return;
  for (auto& [tensor, part] : rank->second.parts) {
    part.open = part.open && part.told;
    part.ready = part.open && !losses_.Has(part.gpu);
  }
  rank->second.waiting.clear();
}

void GpuGradients::Forget(LocalRank local_rank) {
  const auto rank = ranks_.find(local_rank);
  if (rank == ranks_.end()) return;
  for (const auto& [tensor, part] : rank->second.parts) DestroyEvents(part);
  ranks_.erase(rank);
}

// ----- The duty cycle. -----

std::optional<LocalRank> GpuGradients::NextToAsk(LocalRank from) const {
  for (auto at = ranks_.lower_bound(from); at != ranks_.end(); ++at) {
    if (!at->second.waiting.empty() || !at->second.brought_ns) return at->first;
  }
  return std::nullopt;
}

// Asks for the oldest first. A stream works in order, so what comes after it is rarely done before.
absl::Status GpuGradients::Ask(LocalRank local_rank, int64_t now_ns, Asked& asked) {
  Rank& rank = ranks_.at(local_rank);
  if (!rank.brought_ns) rank.brought_ns = now_ns;
  while (!rank.waiting.empty()) {
    TALWEG_ASSIGN_OR_RETURN(const bool done, AskOne(local_rank, rank, 0, now_ns, asked));
    if (!done) break;
  }
  // A rank has several streams. A late stream may wait for a result whose gradient another stream
  // brings.
  for (size_t i = 0; i < kOthersAsked && rank.waiting.size() > 1; ++i) {
    rank.asked = rank.asked % (rank.waiting.size() - 1) + 1;
    TALWEG_RETURN_IF_ERROR(AskOne(local_rank, rank, rank.asked, now_ns, asked).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GpuGradients::AskOne(LocalRank local_rank, Rank& rank, size_t i,
                                          int64_t now_ns, Asked& asked) {
  const Waiting waiting = rank.waiting[i];
  Part& part = rank.parts.at(waiting.tensor);
  const auto done = node_.DeviceOf(part.gpu).Query(part.pushed);
  if (!done.ok()) {
    asked.what = absl::StrCat("local rank ", local_rank.value(), ", tensor '",
                              host_.Spec(waiting.tensor).name, "'");
  }
  if (!done.ok() || !*done) return done;
  part.ready = true;
  rank.brought_ns = now_ns;
  ++asked.done;
  if (!std::exchange(part.told, true)) {
    asked.pushes.push_back({local_rank, waiting.tensor, waiting.round, waiting.priority});
  }
  rank.waiting.erase(rank.waiting.begin() + static_cast<ptrdiff_t>(i));
  return true;
}

std::optional<int64_t> GpuGradients::AskAfterNs(int64_t now_ns) const {
  std::optional<int64_t> after_ns;
  for (const auto& [local_rank, rank] : ranks_) {
    if (rank.waiting.empty() || !rank.brought_ns) continue;
    // Asking again after 1/16 of the wait delays a gradient little, and costs little CPU.
    const int64_t ns = std::clamp((now_ns - *rank.brought_ns) / 16, options_.ask_gradients_first_ns,
                                  options_.ask_gradients_last_ns);
    after_ns = std::min(after_ns.value_or(ns), ns);
  }
  return after_ns;
}

void GpuGradients::Close(LocalRank rank, pipeline::TensorIndex tensor) {
  const auto at = ranks_.find(rank);
  if (at != ranks_.end()) at->second.parts.at(tensor).open = false;
}

void GpuGradients::OnGpuLost(const gpu::GpuUuid& uuid) {
  for (auto& [local_rank, entry] : ranks_) {
    Rank& rank = entry;
    for (auto& [tensor, part] : rank.parts) {
      if (part.gpu == uuid) part.placed = part.ready = false;
    }
    std::erase_if(rank.waiting, [&rank](const Waiting& waiting) {
      return !rank.parts.at(waiting.tensor).placed;
    });
  }
}

void GpuGradients::OnMappedAgain(const gpu::GpuUuid& uuid) {
  for (auto& [local_rank, rank] : ranks_) {
    for (auto& [tensor, part] : rank.parts) {
      if (part.gpu != uuid || !part.open) continue;
      part.span =
          buffers_.At(local_rank, part.buffer)->span.Part(part.offset, host_.Spec(tensor).bytes());
      // A rank that has left does not push again. Its gradient was complete when the core was told.
      part.ready = !buffers_.IsHere(local_rank);
    }
  }
}

void GpuGradients::Abandon() {
  for (auto& [local_rank, rank] : ranks_) {
    rank.waiting.clear();
    for (auto& [tensor, part] : rank.parts) part.open = false;
  }
}

// ----- To look at. -----

const GpuGradients::Part* GpuGradients::FindOpen(LocalRank rank, pipeline::TensorIndex tensor,
                                                 Round round) const {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end()) return nullptr;
  const auto part = at->second.parts.find(tensor);
  const bool is_open =
      part != at->second.parts.end() && part->second.open && part->second.round == round;
  return is_open ? &part->second : nullptr;
}

bool GpuGradients::HasAny(pipeline::TensorIndex tensor, Round round) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    return FindOpen(entry.first, tensor, round) != nullptr;
  });
}

std::vector<LocalRank> GpuGradients::OpenRanks(pipeline::TensorIndex tensor, Round round) const {
  std::vector<LocalRank> ranks;
  for (const auto& [local_rank, rank] : ranks_) {
    if (FindOpen(local_rank, tensor, round) != nullptr) ranks.push_back(local_rank);
  }
  return ranks;
}

const GpuGradients::Part* GpuGradients::FindPresent(LocalRank rank,
                                                    pipeline::TensorIndex tensor) const {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end() || !buffers_.IsHere(rank)) return nullptr;
  const auto part = at->second.parts.find(tensor);
  return part == at->second.parts.end() ? nullptr : &part->second;
}

bool GpuGradients::AnyOpen(LocalRank rank) const {
  const auto at = ranks_.find(rank);
  return at != ranks_.end() && std::any_of(at->second.parts.begin(), at->second.parts.end(),
                                           [](const auto& part) { return part.second.open; });
}

std::set<pipeline::TensorIndex> GpuGradients::TensorsOn(const gpu::GpuUuid& uuid) const {
  std::set<pipeline::TensorIndex> tensors;
  for (const auto& [local_rank, rank] : ranks_) {
    for (const auto& [tensor, part] : rank.parts) {
      if (part.gpu == uuid) tensors.insert(tensor);
    }
  }
  return tensors;
}

void GpuGradients::AddGpus(std::set<gpu::GpuUuid>& uuids) const {
  for (const auto& [local_rank, rank] : ranks_) {
    for (const auto& [tensor, part] : rank.parts) uuids.insert(part.gpu);
  }
}

}  // namespace talweg::agent
