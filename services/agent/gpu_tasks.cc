// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_tasks.h"

#include <algorithm>
#include <set>
#include <utility>

#include "libs/base/bytes.h"

namespace talweg::agent {

bool GpuTask::all_on_device() const {
  return std::all_of(inputs.begin(), inputs.end(),
                     [](const GpuInput& input) { return input.on_device; });
}

GpuSet GpuTask::gpus() const {
  std::set<gpu::GpuUuid> uuids;
  for (const GpuInput& input : inputs) {
    if (input.on_device) uuids.insert(input.gpu);
  }
  if (home != nullptr) uuids.insert(home->gpu);
  return {uuids.begin(), uuids.end()};
}

pipeline::SliceBytes GpuTask::Bytes(const GpuRange& range) const {
  pipeline::SliceBytes bytes = slice;
  bytes.offset_bytes = range.offset;
  bytes.length_bytes = static_cast<uint32_t>(range.length);
  return bytes;
}

// ----- What is to be done. -----

void GpuTasks::Add(std::shared_ptr<GpuTask> task) {
  for (const GpuInput& input : task->inputs) {
    if (input.on_device) buffers_.Hold(input.rank);
  }
  waiting_.push_back(std::move(task));
  has_news_ = true;
}

GpuInput GpuTasks::InputOf(LocalRank rank, pipeline::TensorIndex tensor, Round round) const {
  const GpuGradients::Part* const part = gradients_.FindOpen(rank, tensor, round);
  if (part == nullptr) return {.rank = rank};
  return {.rank = rank, .on_device = true, .gpu = part->gpu, .span = part->span};
}

void GpuTasks::AddReduce(const pipeline::ReduceSlice& reduce, const GpuHome* home) {
  const pipeline::TensorSpec& spec = host_.Spec(reduce.target.tensor);
  auto task = std::make_shared<GpuTask>();
  task->ticket = reduce.ticket;
  task->slice = reduce.target;
  task->is_final = reduce.is_final;
  task->dtype = spec.collective.dtype;
  task->op = spec.collective.op;
  for (const LocalRank rank : reduce.inputs) {
    task->inputs.push_back(InputOf(rank, reduce.target.tensor, reduce.target.round));
  }
  task->home = home;
  task->ranges.push_back({reduce.target.offset_bytes, reduce.target.length_bytes});
  if (task->is_final) host_results_[reduce.target.tensor];
  Add(std::move(task));
}

void GpuTasks::AddDelivery(const std::shared_ptr<GpuDelivery>& delivery,
                           const std::vector<GpuInput>& targets,
                           const std::vector<GpuRange>& ranges, const GpuHome* home, bool mirrors) {
  const pipeline::CompleteRound& round = delivery->round;
  const pipeline::TensorSpec& spec = host_.Spec(round.tensor);
  constexpr uint64_t kJobBytesMax = kGiB;
  for (const GpuRange& range : ranges) {
    for (uint64_t done = 0; done < range.length; done += kJobBytesMax) {
      auto task = std::make_shared<GpuTask>();
      task->delivers = true;
      task->mirrors = mirrors;
      task->home = home;
      task->slice = {
          .tensor = round.tensor,
          .round = round.round,
          .memory = pipeline::Memory::kResult,
          .offset_bytes = range.offset + done,
          .length_bytes = static_cast<uint32_t>(std::min(kJobBytesMax, range.length - done))};
      task->dtype = spec.collective.dtype;
      task->op = spec.collective.op;
      task->inputs = targets;
      task->ranges.push_back({task->slice.offset_bytes, task->slice.length_bytes});
      task->delivery = delivery;
      ++delivery->tasks;
      Add(std::move(task));
    }
  }
}

std::vector<GpuInput> GpuTasks::TargetsOf(const GpuDelivery& delivery) const {
  std::vector<GpuInput> targets;
  for (const LocalRank rank : delivery.ranks) {
    if (!buffers_.IsHere(rank)) continue;
    targets.push_back(InputOf(rank, delivery.round.tensor, delivery.round.round));
  }
  return targets;
}

std::vector<GpuRange> GpuTasks::AllOf(pipeline::TensorIndex tensor) const {
  return {{0, host_.Spec(tensor).bytes()}};
}

// ----- What lanes do of it. -----

bool GpuTasks::IsReady(const GpuTask& task) const {
  return std::all_of(task.inputs.begin(), task.inputs.end(), [&](const GpuInput& input) {
    if (!input.on_device) return true;
    const GpuGradients::Part* const part =
        gradients_.FindOpen(input.rank, task.slice.tensor, task.slice.round);
    return part == nullptr || (part->ready && !losses_.Has(input.gpu));
  });
}

void GpuTasks::FindMemory(GpuTask& task) const {
  for (GpuInput& input : task.inputs) {
    const GpuGradients::Part* const part =
        gradients_.FindOpen(input.rank, task.slice.tensor, task.slice.round);
    if (part != nullptr) input.span = part->span;
  }
}

GpuRange GpuTasks::Cut(const std::shared_ptr<GpuTask>& task, uint64_t bytes_max) {
  GpuRange& left = task->ranges.front();
  GpuRange piece = left;
  piece.length = std::min(left.length, bytes_max);
  left.offset += piece.length;
  left.length -= piece.length;
  if (left.length == 0) task->ranges.pop_front();
  if (task->ranges.empty()) std::erase(waiting_, task);
  ++task->pieces;
  return piece;
}

void GpuTasks::OnPieceDone(const std::shared_ptr<GpuTask>& task) {
  if (--task->pieces == 0 && task->ranges.empty()) OnDone(task);
}

void GpuTasks::GiveBack(const std::shared_ptr<GpuTask>& task, GpuRange range) {
  if (task->abandoned) return OnPieceDone(task);
  --task->pieces;
  if (task->ranges.empty()) waiting_.push_front(task);
  range.host_only = true;
  task->ranges.push_front(range);
}

void GpuTasks::Drop(size_t i) {
  const std::shared_ptr<GpuTask> task = waiting_[i];
  task->abandoned = true;
  task->ranges.clear();
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  if (task->pieces == 0) OnDone(task);
}

void GpuTasks::OnDone(const std::shared_ptr<GpuTask>& task) {
  for (const GpuInput& input : task->inputs) {
    if (input.on_device) buffers_.LetGo(input.rank);
  }
  if (task->delivery != nullptr && --task->delivery->tasks == 0 && task->delivery->mirrors &&
      !task->abandoned) {
    OnMirrored(task->delivery);
  }
  if (!task->delivers && !task->abandoned) {
    events_.OnReduced(task->ticket, task->slice.length_bytes);
  }
}

void GpuTasks::OnMirrored(const std::shared_ptr<GpuDelivery>& delivery) {
  delivery->mirrors = false;
  const std::vector<GpuInput> targets = std::exchange(delivery->mirrored_for, {});
  if (targets.empty()) {
    delivery->recorded = true;
    return;
  }
  AddDelivery(delivery, targets, AllOf(delivery->round.tensor), nullptr, false);
}

// ----- Results. -----

std::vector<GpuRange> GpuTasks::RangesFromHost(pipeline::TensorIndex tensor) const {
  const auto on_host = host_results_.find(tensor);
  if (on_host != host_results_.end()) return on_host->second;
  if (host_.Spec(tensor).bytes() == 0) return {};
  return AllOf(tensor);
}

void GpuTasks::Abandon() {
  for (const std::shared_ptr<GpuTask>& task : std::exchange(waiting_, {})) {
    task->ranges.clear();
    task->abandoned = true;
    if (task->pieces == 0) OnDone(task);
  }
  ForgetResults();
}

}  // namespace talweg::agent
