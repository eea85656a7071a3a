// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_paths.h"

#include <algorithm>
#include <numeric>

namespace talweg::agent {

std::vector<GpuSet> GpuPaths::GroupsOf(const GpuTask& task, const GpuSet& gpus) {
  std::vector<GpuSet> groups = node_.GroupsOf(gpus);
  const auto first_rank = [&](const GpuSet& group) {
    return std::find_if(task.inputs.begin(), task.inputs.end(), [&](const GpuInput& input) {
      return input.on_device && std::find(group.begin(), group.end(), input.gpu) != group.end();
    });
  };
  std::sort(groups.begin(), groups.end(), [&](const GpuSet& one, const GpuSet& other) {
    return first_rank(one) < first_rank(other);
  });
  return groups;
}

bool GpuPaths::SumsInPlace(const GpuTask& task, const GpuSet& gpus) {
  return task.is_final && task.home == nullptr && gpus.size() == 1;
}

bool GpuPaths::LeavesHome(const Lane& lane) {
  const GpuTask& task = *lane.task;
  // A GPU from which no rank has pushed has no input for a reduction. The home may be such a GPU.
  const bool all_have_inputs =
      std::all_of(lane.gpus.begin(), lane.gpus.end(), [&](const auto& uuid) {
        return std::any_of(task.inputs.begin(), task.inputs.end(),
                           [&](const GpuInput& input) { return input.gpu == uuid; });
      });
  return lane.range.host_only || task.mirrors || !task.all_on_device() || lane.groups.size() > 1 ||
         (!task.delivers && !all_have_inputs);
}

bool GpuPaths::HasStaging(const gpu::GpuUuid& uuid) const {
  const NodeGpu& gpu = node_.At(uuid);
  return std::all_of(gpu.lanes.begin(), gpu.lanes.end(),
                     [](const LanePart& part) { return part.in.bytes > 0; });
}

LanePath GpuPaths::PathOf(const Lane& lane, int64_t now_ns) {
  const GpuTask& task = *lane.task;
  const GpuSet& gpus = lane.gpus;
  if (task.home != nullptr) {
    if (LeavesHome(lane)) return LanePath::kHost;
    if (gpus.size() == 1 && (task.delivers || task.inputs.size() == 1)) return LanePath::kStay;
  }
  const bool may_stage =
      !lane.range.host_only &&
      std::all_of(gpus.begin(), gpus.end(), [this](const auto& uuid) { return HasStaging(uuid); });
  if (task.delivers) {
    const bool gathers =
        gpus.size() > 1 && may_stage && collectives_.MayUseAll(lane.groups, now_ns);
    if (gathers) return LanePath::kCollective;
    return task.home != nullptr ? LanePath::kHost : LanePath::kDirect;
  }
  if (lane.range.host_only || !task.all_on_device() || task.op == Op::kCopy) {
    return LanePath::kHost;
  }
  if (!may_stage && !SumsInPlace(task, gpus)) return LanePath::kHost;
  const bool has_kernels = std::all_of(gpus.begin(), gpus.end(), [&](const gpu::GpuUuid& uuid) {
    return node_.At(uuid).has_kernels;
  });
  if (gpus.size() == 1) {
    // A node's only rank has its result already if no other node takes part.
    if (task.inputs.size() == 1) {
      return SumsInPlace(task, gpus) ? LanePath::kKernel : LanePath::kHost;
    }
    const bool fits = task.inputs.size() <= gpu::kReduceInputsMax;
    return has_kernels && fits ? LanePath::kKernel : LanePath::kHost;
  }
  const Op op = task.op == Op::kAverage ? Op::kSum : task.op;
  const bool divides = task.op == Op::kAverage && (task.is_final || task.is_narrow());
  const bool needs_kernels = divides || task.inputs.size() > gpus.size();
  if (!gpu::Communicator::Combines(task.dtype, op) || (needs_kernels && !has_kernels)) {
    return LanePath::kHost;
  }
  return collectives_.MayUseAll(lane.groups, now_ns) ? LanePath::kCollective : LanePath::kHost;
}

uint64_t GpuPaths::RoomOn(const Lane& lane, const gpu::GpuUuid& uuid) const {
  const LanePart& part = node_.At(uuid).lanes[lane.index];
  switch (lane.path) {
    case LanePath::kHost: {
      const std::vector<GpuInput>& inputs = lane.task->inputs;
      auto shares = std::count_if(inputs.begin(), inputs.end(), [&](const GpuInput& input) {
        return input.on_device && input.gpu == uuid;
      });
      // One more for the inputs' sum, or for the result.
      if (lane.task->home != nullptr && lane.task->home->gpu == uuid) ++shares;
      return part.host.size() / static_cast<uint64_t>(shares);
    }
    case LanePath::kStay: return options_.piece_bytes;
    case LanePath::kDirect: return part.host.size();
    case LanePath::kKernel:
    case LanePath::kCollective: break;
  }
  return std::min<uint64_t>(part.host.size(), part.in.bytes);
}

uint64_t GpuPaths::BytesMax(const Lane& lane) const {
  if (lane.path == LanePath::kKernel && SumsInPlace(*lane.task, lane.gpus)) {
    return options_.piece_bytes_in_place;
  }
  uint64_t bytes = options_.piece_bytes;
  for (const gpu::GpuUuid& uuid : lane.gpus) bytes = std::min(bytes, RoomOn(lane, uuid));
  uint64_t unit = 64;
  if (lane.path != LanePath::kCollective) return bytes / unit * unit;
  for (const GpuSet& group : lane.groups) unit = std::lcm(unit, 64 * group.size());
  return bytes / unit * unit;
}

}  // namespace talweg::agent
