// SPDX-License-Identifier: Apache-2.0
// Which piece goes next, and which way.
#include <algorithm>
#include <numeric>

#include "libs/base/check.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {

GpuSet GpuStage::GpusOf(const Task& task) {
  std::set<gpu::GpuUuid> uuids;
  for (const Input& input : task.inputs) {
    if (input.on_device) uuids.insert(input.gpu);
  }
  if (task.direct != nullptr) uuids.insert(task.direct->gpu);
  return {uuids.begin(), uuids.end()};
}

// A piece may not start while an older piece may still write to the same bytes: one of a round that
// was given up, or of an epoch that is over.
bool GpuStage::MayStart(const Task& task, const Range& range) const {
  return std::none_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return lane.step != Step::kFree && lane.task.get() != &task &&
           lane.task->slice.tensor == task.slice.tensor &&
           range.offset < lane.range.offset + lane.range.length &&
           lane.range.offset < range.offset + range.length;
  });
}

bool GpuStage::IsReady(const Task& task) const {
  return std::all_of(task.inputs.begin(), task.inputs.end(), [&](const Input& input) {
    if (!input.on_device) return true;
    const Part* part = OpenPart(input.rank, task.slice.tensor, task.slice.round);
    return part == nullptr || (part->ready && !IsLost(input.gpu));
  });
}

void GpuStage::GrowStaging(const gpu::GpuUuid& uuid) {
  if (!MayWaitFor(uuid)) return;
  for (const Lane& lane : lanes_) {
    if (lane.step == Step::kFree) node_.GrowStaging(node_.At(uuid), IndexOf(lane));
  }
}

void GpuStage::ChoosePath(Lane& lane) {
  lane.gpus = GpusOf(*lane.task);
  for (const gpu::GpuUuid& uuid : lane.gpus) GrowStaging(uuid);
  lane.groups = GroupsOf(*lane.task, lane.gpus);
  lane.path = PathOf(lane);
  lane.writes_ranks = false;
  lane.goes_up = false;
}

// In the order of the first ranks on them.
std::vector<GpuSet> GpuStage::GroupsOf(const Task& task, const GpuSet& gpus) {
  std::vector<GpuSet> groups = node_.GroupsOf(gpus);
  const auto first_rank = [&](const GpuSet& group) {
    return std::find_if(task.inputs.begin(), task.inputs.end(), [&](const Input& input) {
      return input.on_device && std::find(group.begin(), group.end(), input.gpu) != group.end();
    });
  };
  std::sort(groups.begin(), groups.end(), [&](const GpuSet& one, const GpuSet& other) {
    return first_rank(one) < first_rank(other);
  });
  return groups;
}

bool GpuStage::MayUse(const std::vector<GpuSet>& groups) {
  return std::all_of(groups.begin(), groups.end(), [this](const GpuSet& group) {
    return group.size() == 1 || collectives_.MayUse(group, now_ns_);
  });
}

GpuStage::Path GpuStage::PathOf(const Lane& lane) {
  const Task& task = *lane.task;
  const GpuSet& gpus = lane.gpus;
  const bool all_on_device = std::all_of(task.inputs.begin(), task.inputs.end(),
                                         [](const Input& input) { return input.on_device; });
  if (task.direct != nullptr) {
    // A GPU from which no rank has pushed, such as perhaps the home, has nothing to bring into a
    // reduction.
    const bool all_have_inputs = std::all_of(gpus.begin(), gpus.end(), [&](const auto& uuid) {
      return std::any_of(task.inputs.begin(), task.inputs.end(),
                         [&](const Input& input) { return input.gpu == uuid; });
    });
    if (lane.range.host_only || task.mirrors || !all_on_device || lane.groups.size() > 1 ||
        (!task.delivers && !all_have_inputs)) {
      return Path::kHost;
    }
    if (gpus.size() == 1 && (task.delivers || task.inputs.size() == 1)) return Path::kStay;
  }
  const auto has_staging = [&](const gpu::GpuUuid& uuid) {
    const NodeGpu& gpu = node_.At(uuid);
    return std::all_of(gpu.lanes.begin(), gpu.lanes.end(),
                       [](const LanePart& part) { return part.in.bytes > 0; });
  };
  const bool may_stage =
      !lane.range.host_only && std::all_of(gpus.begin(), gpus.end(), has_staging);
  if (task.delivers) {
    const bool gathers = gpus.size() > 1 && may_stage && MayUse(lane.groups);
    if (gathers) return Path::kCollective;
    return task.direct != nullptr ? Path::kHost : Path::kDirect;
  }
  if (lane.range.host_only || !all_on_device || task.op == Op::kCopy) return Path::kHost;
  if (!may_stage && !SumsInPlace(task, gpus)) return Path::kHost;
  const bool has_kernels = std::all_of(gpus.begin(), gpus.end(), [&](const gpu::GpuUuid& uuid) {
    return node_.At(uuid).has_kernels;
  });
  if (gpus.size() == 1) {
    // A rank alone has its result already.
    if (task.inputs.size() == 1) return SumsInPlace(task, gpus) ? Path::kKernel : Path::kHost;
    const bool fits = task.inputs.size() <= gpu::kReduceInputsMax;
    return has_kernels && fits ? Path::kKernel : Path::kHost;
  }
  const Op op = task.op == Op::kAverage ? Op::kSum : task.op;
  const bool divides = task.op == Op::kAverage && (task.is_final || task.is_narrow());
  const bool needs_kernels = divides || task.inputs.size() > gpus.size();
  if (!gpu::Communicator::Combines(task.dtype, op) || (needs_kernels && !has_kernels)) {
    return Path::kHost;
  }
  return MayUse(lane.groups) ? Path::kCollective : Path::kHost;
}

bool GpuStage::SumsInPlace(const Task& task, const GpuSet& gpus) {
  return task.is_final && task.direct == nullptr && gpus.size() == 1;
}

uint64_t GpuStage::PieceBytes(const Lane& lane) {
  if (lane.path == Path::kKernel && SumsInPlace(*lane.task, lane.gpus)) {
    return options_.piece_bytes_in_place;
  }
  uint64_t bytes = options_.piece_bytes;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    const LanePart& part = PartOf(lane, uuid);
    uint64_t room = part.host.size();
    if (lane.path == Path::kHost) {
      const std::vector<Input>& inputs = lane.task->inputs;
      auto shares = std::count_if(inputs.begin(), inputs.end(), [&](const Input& input) {
        return input.on_device && input.gpu == uuid;
      });
      // One more for their sum, or for the result.
      if (lane.task->direct != nullptr && lane.task->direct->gpu == uuid) ++shares;
      room /= static_cast<uint64_t>(shares);
    } else if (lane.path == Path::kStay) {
      room = options_.piece_bytes;
    } else if (lane.path != Path::kDirect) {
      room = std::min(room, part.in.bytes);
    }
    bytes = std::min(bytes, room);
  }
  uint64_t unit = 64;
  if (lane.path != Path::kCollective) return bytes / unit * unit;
  for (const GpuSet& group : lane.groups) unit = std::lcm(unit, 64 * group.size());
  return bytes / unit * unit;
}

int GpuStage::StartPieces() {
  int started = 0;
  // Any piece may copy to what a lost context had pinned.
  for (const auto& [uuid, lost] : lost_) {
    if (!lost.closed) return 0;
  }
  for (size_t index = 0; index < lanes_.size() && !failed_; ++index) {
    Lane& lane = lanes_[index];
    if (lane.step != Step::kFree) continue;
    std::shared_ptr<Task> task;
    for (size_t i = 0; i < tasks_.size() && task == nullptr;) {
      const std::shared_ptr<Task> next = tasks_[i];
      if (!next->delivers && !events_.ReduceWanted(next->ticket)) {
        next->abandoned = true;
        next->ranges.clear();
        tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(i));
        if (next->pieces == 0) TaskDone(next);
      } else if (IsReady(*next) && MayStart(*next, next->ranges.front())) {
        task = next;
      } else {
        ++i;
      }
    }
    if (task == nullptr) break;
    Range& range = task->ranges.front();
    lane.task = task;
    for (Input& input : task->inputs) {
      const Part* part = OpenPart(input.rank, task->slice.tensor, task->slice.round);
      if (part != nullptr) input.span = part->span;  // It may be mapped anew.
    }
    lane.range = range;
    ChoosePath(lane);
    const uint64_t room = PieceBytes(lane);
    TALWEG_CHECK(room > 0);
    lane.range.length = std::min(range.length, room);
    range.offset += lane.range.length;
    range.length -= lane.range.length;
    if (range.length == 0) task->ranges.pop_front();
    if (task->ranges.empty()) std::erase(tasks_, task);
    ++task->pieces;
    ++started;
    lane.through_staging =
        task->is_final || lane.adds_groups() || task->direct != nullptr || !IsPinned(task->slice);
    const absl::Status posted = Post(lane);
    if (!posted.ok()) OnPieceFailed(lane, posted);
  }
  return started;
}

}  // namespace talweg::agent
