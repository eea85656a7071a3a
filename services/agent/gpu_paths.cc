// SPDX-License-Identifier: Apache-2.0
// Which piece goes next, and which way.
#include <algorithm>
#include <numeric>

#include "libs/base/check.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {

GpuSet GpuStage::GpusOf(const Job& job) {
  std::set<gpu::GpuUuid> uuids;
  for (const Input& input : job.inputs) {
    if (input.on_device) uuids.insert(input.gpu);
  }
  if (job.direct != nullptr) uuids.insert(job.direct->gpu);
  return {uuids.begin(), uuids.end()};
}

// A piece may not start while an older piece may still write to the same bytes: one of a round that
// was given up, or of an epoch that is over.
bool GpuStage::MayStart(const Job& job, const Range& range) const {
  return std::none_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return lane.step != Step::kFree && lane.job.get() != &job &&
           lane.job->slice.tensor == job.slice.tensor &&
           range.offset < lane.range.offset + lane.range.length &&
           lane.range.offset < range.offset + range.length;
  });
}

bool GpuStage::IsReady(const Job& job) const {
  return std::all_of(job.inputs.begin(), job.inputs.end(), [&](const Input& input) {
    if (!input.on_device) return true;
    const Part* part = OpenPart(input.rank, job.slice.tensor, job.slice.round);
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
  lane.gpus = GpusOf(*lane.job);
  for (const gpu::GpuUuid& uuid : lane.gpus) GrowStaging(uuid);
  lane.groups = GroupsOf(*lane.job, lane.gpus);
  lane.path = PathOf(lane);
  lane.writes_ranks = false;
  lane.goes_up = false;
}

// In the order of the first ranks on them.
std::vector<GpuSet> GpuStage::GroupsOf(const Job& job, const GpuSet& gpus) {
  std::vector<GpuSet> groups = node_.GroupsOf(gpus);
  const auto first_rank = [&](const GpuSet& group) {
    return std::find_if(job.inputs.begin(), job.inputs.end(), [&](const Input& input) {
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
  const Job& job = *lane.job;
  const GpuSet& gpus = lane.gpus;
  const bool all_on_device = std::all_of(job.inputs.begin(), job.inputs.end(),
                                         [](const Input& input) { return input.on_device; });
  if (job.direct != nullptr) {
    // A GPU from which no rank has pushed, such as perhaps the home, has nothing to bring into a
    // reduction.
    const bool all_have_inputs = std::all_of(gpus.begin(), gpus.end(), [&](const auto& uuid) {
      return std::any_of(job.inputs.begin(), job.inputs.end(),
                         [&](const Input& input) { return input.gpu == uuid; });
    });
    if (lane.range.host_only || job.mirrors || !all_on_device || lane.groups.size() > 1 ||
        (!job.delivers && !all_have_inputs)) {
      return Path::kHost;
    }
    if (gpus.size() == 1 && (job.delivers || job.inputs.size() == 1)) return Path::kStay;
  }
  const auto has_staging = [&](const gpu::GpuUuid& uuid) {
    const NodeGpu& gpu = node_.At(uuid);
    return std::all_of(gpu.lanes.begin(), gpu.lanes.end(),
                       [](const LanePart& part) { return part.in.bytes > 0; });
  };
  const bool may_stage =
      !lane.range.host_only && std::all_of(gpus.begin(), gpus.end(), has_staging);
  if (job.delivers) {
    const bool gathers = gpus.size() > 1 && may_stage && MayUse(lane.groups);
    if (gathers) return Path::kCollective;
    return job.direct != nullptr ? Path::kHost : Path::kDirect;
  }
  if (lane.range.host_only || !all_on_device || job.op == Op::kCopy) return Path::kHost;
  if (!may_stage && !SumsInPlace(job, gpus)) return Path::kHost;
  const bool has_kernels = std::all_of(gpus.begin(), gpus.end(), [&](const gpu::GpuUuid& uuid) {
    return node_.At(uuid).has_kernels;
  });
  if (gpus.size() == 1) {
    // A rank alone has its result already.
    if (job.inputs.size() == 1) return SumsInPlace(job, gpus) ? Path::kKernel : Path::kHost;
    const bool fits = job.inputs.size() <= gpu::kReduceInputsMax;
    return has_kernels && fits ? Path::kKernel : Path::kHost;
  }
  const Op op = job.op == Op::kAverage ? Op::kSum : job.op;
  const bool divides = job.op == Op::kAverage && (job.is_final || job.is_narrow());
  const bool needs_kernels = divides || job.inputs.size() > gpus.size();
  if (!gpu::Communicator::Combines(job.dtype, op) || (needs_kernels && !has_kernels)) {
    return Path::kHost;
  }
  return MayUse(lane.groups) ? Path::kCollective : Path::kHost;
}

bool GpuStage::SumsInPlace(const Job& job, const GpuSet& gpus) {
  return job.is_final && job.direct == nullptr && gpus.size() == 1;
}

uint64_t GpuStage::PieceBytes(const Lane& lane) {
  if (lane.path == Path::kKernel && SumsInPlace(*lane.job, lane.gpus)) {
    return options_.piece_bytes_in_place;
  }
  uint64_t bytes = options_.piece_bytes;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    const LanePart& part = PartOf(lane, uuid);
    uint64_t room = part.host.size();
    if (lane.path == Path::kHost) {
      const std::vector<Input>& inputs = lane.job->inputs;
      auto shares = std::count_if(inputs.begin(), inputs.end(), [&](const Input& input) {
        return input.on_device && input.gpu == uuid;
      });
      // One more for their sum, or for the result.
      if (lane.job->direct != nullptr && lane.job->direct->gpu == uuid) ++shares;
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
    std::shared_ptr<Job> job;
    for (size_t i = 0; i < jobs_.size() && job == nullptr;) {
      const std::shared_ptr<Job> next = jobs_[i];
      if (!next->delivers && !events_.ReduceWanted(next->ticket)) {
        next->abandoned = true;
        next->ranges.clear();
        jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
        if (next->pieces == 0) JobDone(next);
      } else if (IsReady(*next) && MayStart(*next, next->ranges.front())) {
        job = next;
      } else {
        ++i;
      }
    }
    if (job == nullptr) break;
    Range& range = job->ranges.front();
    lane.job = job;
    for (Input& input : job->inputs) {
      const Part* part = OpenPart(input.rank, job->slice.tensor, job->slice.round);
      if (part != nullptr) input.span = part->span;  // It may be mapped anew.
    }
    lane.range = range;
    ChoosePath(lane);
    const uint64_t room = PieceBytes(lane);
    TALWEG_CHECK(room > 0);
    lane.range.length = std::min(range.length, room);
    range.offset += lane.range.length;
    range.length -= lane.range.length;
    if (range.length == 0) job->ranges.pop_front();
    if (job->ranges.empty()) std::erase(jobs_, job);
    ++job->pieces;
    ++started;
    lane.through_staging =
        job->is_final || lane.adds_groups() || job->direct != nullptr || !IsPinned(job->slice);
    const absl::Status posted = Post(lane);
    if (!posted.ok()) OnPieceFailed(lane, posted);
  }
  return started;
}

}  // namespace talweg::agent
