// SPDX-License-Identifier: Apache-2.0
// What lanes do. A piece goes one of four ways:
//
//   kKernel      ranks that share a GPU: one kernel, then a copy to the host
//   kCollective  among GPUs: local sums, reduce-scatter, each shard to the host; or each shard from
//                the host, all-gather; or an all-reduce when no other node takes part
//   kHost        every rank's bytes to the host, and summed there: for what the others cannot do
//   kDirect      the result from the host to every GPU
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libs/base/check.h"
#include "libs/status/status.h"
#include "services/agent/combine.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {
namespace {

bool IsNarrow(DType dtype) { return DTypeSize(dtype) == 2; }

}  // namespace

GpuSet GpuStage::GpusOf(const Job& job) {
  std::set<gpu::GpuUuid> uuids;
  for (const Input& input : job.inputs) {
    if (input.on_device) uuids.insert(input.gpu);
  }
  return {uuids.begin(), uuids.end()};
}

std::string GpuStage::Describe(const Lane& lane) const {
  std::string text = absl::StrCat("tensor '", host_.Spec(lane.job->slice.tensor).name, "' round ",
                                  lane.job->slice.round.value());
  for (const Input& input : lane.job->inputs) {
    if (!input.on_device) continue;
    absl::StrAppend(&text, ", local rank ", input.rank.value(), " on ", gpu::FormatUuid(input.gpu));
  }
  return text;
}

std::span<std::byte> GpuStage::HostBytes(const Lane& lane) const {
  pipeline::SliceBytes slice = lane.job->slice;
  slice.offset_bytes = lane.range.offset;
  slice.length_bytes = static_cast<uint32_t>(lane.range.length);
  return host_.Writable(slice);
}

std::pair<uint64_t, uint64_t> GpuStage::ShardBytes(const Lane& lane, size_t i) {
  const uint64_t shard = lane.shard_elements() * DTypeSize(lane.job->dtype);
  const uint64_t begin = std::min(i * shard, lane.range.length);
  return {begin, std::min(shard, lane.range.length - begin)};
}

// ----- Starting. -----

// Not while an older piece may still write to the same bytes: of a round that was given up, or of
// an epoch that is over.
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

GpuStage::Path GpuStage::ChoosePath(const Job& job, const GpuSet& gpus, bool host_only,
                                    int64_t now_ns) {
  const auto has_staging = [&](const gpu::GpuUuid& uuid) {
    const NodeGpu& gpu = node_.At(uuid);
    return std::all_of(gpu.lanes.begin(), gpu.lanes.end(),
                       [](const LanePart& part) { return part.in.bytes > 0; });
  };
  const bool all_staging = std::all_of(gpus.begin(), gpus.end(), has_staging);
  if (job.delivers) {
    const bool gathers =
        gpus.size() > 1 && !host_only && all_staging && collectives_.MayUse(gpus, now_ns);
    return gathers ? Path::kCollective : Path::kDirect;
  }
  const bool all_on_device = std::all_of(job.inputs.begin(), job.inputs.end(),
                                         [](const Input& input) { return input.on_device; });
  if (host_only || !all_on_device || !all_staging || job.op == Op::kBroadcast) return Path::kHost;
  const bool has_kernels = std::all_of(gpus.begin(), gpus.end(), [&](const gpu::GpuUuid& uuid) {
    return node_.At(uuid).has_kernels;
  });
  if (gpus.size() == 1) {
    const bool fits = job.inputs.size() <= gpu::kReduceInputsMax;
    return job.inputs.size() > 1 && has_kernels && fits ? Path::kKernel : Path::kHost;
  }
  const Op op = job.op == Op::kAverage ? Op::kSum : job.op;
  const bool divides = job.op == Op::kAverage && (job.is_final || IsNarrow(job.dtype));
  const bool needs_kernels = divides || job.inputs.size() > gpus.size();
  if (!gpu::Communicator::Combines(job.dtype, op) || (needs_kernels && !has_kernels)) {
    return Path::kHost;
  }
  return collectives_.MayUse(gpus, now_ns) ? Path::kCollective : Path::kHost;
}

uint64_t GpuStage::PieceBytes(const Job& job, Path path, const GpuSet& gpus, size_t lane) {
  uint64_t bytes = options_.piece_bytes;
  for (const gpu::GpuUuid& uuid : gpus) {
    const LanePart& part = node_.At(uuid).lanes[lane];
    uint64_t room = part.host.size();
    if (path == Path::kHost) {
      const auto ranks = std::count_if(job.inputs.begin(), job.inputs.end(), [&](const Input& in) {
        return in.on_device && in.gpu == uuid;
      });
      room /= static_cast<uint64_t>(ranks);
    } else if (path != Path::kDirect) {
      room = std::min(room, part.in.bytes);
    }
    bytes = std::min(bytes, room);
  }
  const uint64_t unit = 64 * (path == Path::kCollective ? gpus.size() : 1);
  return bytes / unit * unit;
}

int GpuStage::StartPieces(int64_t now_ns) {
  int started = 0;
  // What a lost context had pinned may be what any piece copies to.
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
      if (part != nullptr) input.span = part->span;  // Which may have been mapped anew.
    }
    lane.gpus = GpusOf(*job);
    for (const gpu::GpuUuid& uuid : lane.gpus) node_.GrowStaging(node_.At(uuid), index);
    lane.path = ChoosePath(*job, lane.gpus, range.host_only, now_ns);
    lane.writes_ranks = false;
    const uint64_t room = PieceBytes(*job, lane.path, lane.gpus, index);
    TALWEG_CHECK(room > 0);
    lane.range = {range.offset, std::min(range.length, room), range.host_only};
    range.offset += lane.range.length;
    range.length -= lane.range.length;
    if (range.length == 0) job->ranges.pop_front();
    if (job->ranges.empty()) std::erase(jobs_, job);
    ++job->pieces;
    ++started;
    lane.through_staging = lane.job->delivers ||
                           lane.job->slice.memory != pipeline::Memory::kSendBuffer ||
                           !pinned_.contains(lane.job->slice.tensor);
    const absl::Status posted = Post(lane);
    if (!posted.ok()) OnPieceFailed(lane, posted, now_ns);
  }
  return started;
}

// ----- Posting. -----

absl::Status GpuStage::Post(Lane& lane) {
  lane.step = Step::kCopying;
  switch (lane.path) {
    case Path::kKernel: TALWEG_RETURN_IF_ERROR(PostKernel(lane)); break;
    case Path::kHost: TALWEG_RETURN_IF_ERROR(PostToHost(lane)); break;
    case Path::kDirect: TALWEG_RETURN_IF_ERROR(PostDirect(lane)); break;
    case Path::kCollective:
      lane.step = Step::kAwaitCommunicator;
      TALWEG_RETURN_IF_ERROR(lane.job->delivers ? PostShardsUp(lane) : PostLocalSums(lane));
      break;
  }
  return Record(lane);
}

absl::Status GpuStage::Record(Lane& lane) {
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    if (IsLost(uuid)) continue;
    const LanePart& part = PartOf(lane, uuid);
    TALWEG_RETURN_IF_ERROR(DeviceOf(uuid).Record(part.done, part.stream));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostKernel(Lane& lane) {
  const Job& job = *lane.job;
  const gpu::GpuUuid& uuid = lane.gpus[0];
  LanePart& part = PartOf(lane, uuid);
  std::vector<uint64_t> inputs;
  for (const Input& input : job.inputs) inputs.push_back(input.span.address + lane.range.offset);
  const reduce::ReduceSpec hop = RankHop(job.dtype, job.op, job.is_final, job.inputs.size());
  const gpu::ReduceSpec spec{.dtype = job.dtype, .op = hop.op, .divisor = hop.divisor};
  TALWEG_RETURN_IF_ERROR(
      DeviceOf(uuid).Reduce(part.stream, spec, inputs, part.in.address, lane.elements()));
  const gpu::DeviceSpan sum = part.in.Part(0, lane.range.length);
  if (job.is_final) return CopyToRanks(lane, uuid, sum);
  const std::span<std::byte> target =
      lane.through_staging ? part.host.first(lane.range.length) : HostBytes(lane);
  return DeviceOf(uuid).CopyToHost(part.stream, target, sum);
}

// On the host path each rank's bytes have their own part of the staging buffer of its GPU.
std::span<std::byte> GpuStage::Staged(const Lane& lane, size_t input) {
  const std::vector<Input>& inputs = lane.job->inputs;
  const gpu::GpuUuid& uuid = inputs[input].gpu;
  const auto before =
      std::count_if(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(input),
                    [&](const Input& other) { return other.on_device && other.gpu == uuid; });
  return PartOf(lane, uuid)
      .host.subspan(static_cast<size_t>(before) * lane.range.length, lane.range.length);
}

// A single rank's bytes, which nothing changes, go where they are wanted.
absl::Status GpuStage::PostToHost(Lane& lane) {
  const Job& job = *lane.job;
  if (job.inputs.size() > 1 || !job.inputs[0].on_device) lane.through_staging = true;
  for (size_t i = 0; i < job.inputs.size(); ++i) {
    const Input& input = job.inputs[i];
    if (!input.on_device) continue;
    TALWEG_RETURN_IF_ERROR(DeviceOf(input.gpu).CopyToHost(
        PartOf(lane, input.gpu).stream, lane.through_staging ? Staged(lane, i) : HostBytes(lane),
        input.span.Part(lane.range.offset, lane.range.length)));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostDirect(Lane& lane) {
  const std::span<std::byte> source = HostBytes(lane);
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    LanePart& part = PartOf(lane, uuid);
    const std::span<std::byte> staged = part.host.first(lane.range.length);
    std::memcpy(staged.data(), source.data(), source.size());
    gpu::DeviceSpan first;
    for (const Input& target : lane.job->inputs) {
      if (target.gpu != uuid) continue;
      const gpu::DeviceSpan piece = target.span.Part(lane.range.offset, lane.range.length);
      TALWEG_RETURN_IF_ERROR(first.bytes == 0
                                 ? DeviceOf(uuid).CopyToDevice(part.stream, piece, staged)
                                 : DeviceOf(uuid).CopyOnDevice(part.stream, piece, first));
      if (first.bytes == 0) first = piece;
    }
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostLocalSums(Lane& lane) {
  const Job& job = *lane.job;
  // Means of f16 and bf16, so that no sum among GPUs overflows where the average fits.
  const bool divides = job.op == Op::kAverage && IsNarrow(job.dtype);
  const gpu::ReduceSpec spec{.dtype = job.dtype,
                             .op = job.op == Op::kAverage && !divides ? Op::kSum : job.op,
                             .divisor = divides ? static_cast<uint32_t>(job.inputs.size()) : 1};
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    LanePart& part = PartOf(lane, uuid);
    std::vector<uint64_t> inputs;
    for (const Input& input : job.inputs) {
      if (input.gpu == uuid) inputs.push_back(input.span.address + lane.range.offset);
    }
    TALWEG_RETURN_IF_ERROR(
        inputs.size() == 1 && !divides
            ? DeviceOf(uuid).CopyOnDevice(part.stream, part.in.Part(0, lane.range.length),
                                          {inputs[0], lane.range.length})
            : DeviceOf(uuid).Reduce(part.stream, spec, inputs, part.in.address, lane.elements()));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostShardsUp(Lane& lane) {
  const std::span<std::byte> source = HostBytes(lane);
  for (size_t i = 0; i < lane.gpus.size(); ++i) {
    const auto [offset, bytes] = ShardBytes(lane, i);
    if (bytes == 0) continue;
    LanePart& part = PartOf(lane, lane.gpus[i]);
    std::memcpy(part.host.data(), source.data() + offset, bytes);
    TALWEG_RETURN_IF_ERROR(
        DeviceOf(lane.gpus[i])
            .CopyToDevice(part.stream, part.in.Part(0, bytes), part.host.first(bytes)));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostCollective(Lane& lane) {
  const Job& job = *lane.job;
  std::vector<gpu::CollectivePart> parts;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    const LanePart& part = PartOf(lane, uuid);
    parts.push_back({part.stream, part.in.address, part.out.address});
  }
  const Op op = job.op == Op::kAverage ? Op::kSum : job.op;
  gpu::Communicator& communicator = collectives_.At(lane.gpus);
  if (job.delivers) return communicator.AllGather(job.dtype, lane.shard_elements(), parts);
  if (job.is_final) return communicator.AllReduce(job.dtype, op, lane.elements(), parts);
  return communicator.ReduceScatter(job.dtype, op, lane.shard_elements(), parts);
}

absl::Status GpuStage::CopyToRanks(Lane& lane, const gpu::GpuUuid& uuid, gpu::DeviceSpan source) {
  for (const Input& target : lane.job->inputs) {
    if (target.gpu != uuid) continue;
    TALWEG_RETURN_IF_ERROR(DeviceOf(uuid).CopyOnDevice(
        PartOf(lane, uuid).stream, target.span.Part(lane.range.offset, lane.range.length), source));
    lane.writes_ranks = true;
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostAfterCollective(Lane& lane) {
  const Job& job = *lane.job;
  if (!job.delivers && !job.is_final) return PostShardsDown(lane);
  const bool divides = !job.delivers && job.op == Op::kAverage && !IsNarrow(job.dtype);
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    LanePart& part = PartOf(lane, uuid);
    if (divides) {
      const gpu::ReduceSpec spec{.dtype = job.dtype,
                                 .op = Op::kAverage,
                                 .divisor = static_cast<uint32_t>(job.inputs.size())};
      const uint64_t inputs[] = {part.out.address};
      TALWEG_RETURN_IF_ERROR(
          DeviceOf(uuid).Reduce(part.stream, spec, inputs, part.out.address, lane.elements()));
    }
    TALWEG_RETURN_IF_ERROR(CopyToRanks(lane, uuid, part.out.Part(0, lane.range.length)));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostShardsDown(Lane& lane) {
  for (size_t i = 0; i < lane.gpus.size(); ++i) {
    const auto [offset, bytes] = ShardBytes(lane, i);
    if (bytes == 0) continue;
    LanePart& part = PartOf(lane, lane.gpus[i]);
    const std::span<std::byte> target =
        lane.through_staging ? part.host.first(bytes) : HostBytes(lane).subspan(offset, bytes);
    TALWEG_RETURN_IF_ERROR(
        DeviceOf(lane.gpus[i]).CopyToHost(part.stream, target, part.out.Part(0, bytes)));
  }
  return absl::OkStatus();
}

// ----- Going on. -----

absl::StatusOr<bool> GpuStage::IsDone(const Lane& lane) {
  bool done = true;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    if (IsLost(uuid)) continue;
    TALWEG_ASSIGN_OR_RETURN(const bool part_done, DeviceOf(uuid).Query(PartOf(lane, uuid).done));
    done = done && part_done;
  }
  return done;
}

int GpuStage::StepLane(Lane& lane, int64_t now_ns) {
  using Readiness = GpuCollectives::Readiness;
  if (lane.step == Step::kFree || failed_) return 0;
  if (lane.step == Step::kCopying || lane.step == Step::kDraining) {
    const auto done = IsDone(lane);
    if (!done.ok()) return OnPieceFailed(lane, done.status(), now_ns), 1;
    if (!*done) return 0;
    lane.step == Step::kCopying ? OnCopied(lane) : GiveBack(lane);
    return 1;
  }
  // Asked also while collectives run: that is how their errors are noticed.
  const Readiness readiness = collectives_.Ask(lane.gpus, now_ns);
  if (readiness == Readiness::kUnavailable) return Redo(lane), 1;
  if (readiness == Readiness::kFailed) {
    const absl::Status error = collectives_.Error(lane.gpus);
    if (!FoundLost(error)) OnCollectiveFailed(lane.gpus, error, now_ns);
    return 1;
  }
  const bool overdue = lane.step != Step::kAwaitCommunicator && now_ns >= lane.deadline_ns;
  if (readiness == Readiness::kReady) {
    absl::Status status;
    if (lane.step == Step::kLaunching) {
      status = Record(lane);
      lane.step = Step::kCollective;
      if (status.ok()) return 1;
    } else {
      const auto done = IsDone(lane);
      status = done.status();
      if (status.ok() && *done) {
        // Before a collective: what is put aside with it, if it hangs, has no rank's memory in use.
        const bool before = lane.step == Step::kAwaitCommunicator;
        status = before ? PostCollective(lane) : PostAfterCollective(lane);
        if (status.ok() && !before) status = Record(lane);
        lane.step = before ? Step::kLaunching : Step::kCopying;
        lane.deadline_ns = now_ns + options_.collective_deadline_ns;
        if (status.ok()) return 1;
      }
    }
    if (!status.ok()) return OnPieceFailed(lane, status, now_ns), 1;
  }
  if (!overdue) return 0;
  OnCollectiveFailed(
      lane.gpus,
      absl::UnavailableError(absl::StrCat("a collective has not ended within ",
                                          options_.collective_deadline_ns / 1'000'000'000, " s")),
      now_ns);
  return 1;
}

void GpuStage::CombineOnHost(Lane& lane) {
  const Job& job = *lane.job;
  pipeline::SliceBytes slice = job.slice;
  slice.offset_bytes = lane.range.offset;
  slice.length_bytes = static_cast<uint32_t>(lane.range.length);
  std::vector<const std::byte*> inputs;
  for (size_t i = 0; i < job.inputs.size(); ++i) {
    const Input& input = job.inputs[i];
    inputs.push_back(input.on_device ? Staged(lane, i).data()
                                     : host_.Contribution(slice, input.rank).data());
    TALWEG_CHECK(inputs.back() != nullptr);  // It pushed, so it has a buffer.
  }
  CombineRanks(job.dtype, job.op, job.is_final, inputs, HostBytes(lane));
}

void GpuStage::OnCopied(Lane& lane) {
  const Job& job = *lane.job;
  if (job.delivers) {
    ++counters_.pieces_delivered;
    return PieceDone(lane);
  }
  if (lane.path == Path::kHost) {
    ++counters_.pieces_by_host;
    // What nobody wants any more is not written: its bytes may be another round's by now.
    if (lane.through_staging && !job.abandoned && events_.ReduceWanted(job.ticket)) {
      CombineOnHost(lane);
    }
    if (job.is_final) host_results_[job.slice.tensor].push_back(lane.range);
  } else {
    ++(lane.path == Path::kKernel ? counters_.pieces_by_kernel : counters_.pieces_by_collective);
    if (!job.is_final && lane.through_staging && !job.abandoned &&
        events_.ReduceWanted(job.ticket)) {
      const std::span<std::byte> target = HostBytes(lane);
      for (size_t i = 0; i < lane.gpus.size(); ++i) {
        const auto [offset, bytes] = ShardBytes(lane, i);
        std::memcpy(target.data() + offset, PartOf(lane, lane.gpus[i]).host.data(), bytes);
      }
    }
  }
  PieceDone(lane);
}

void GpuStage::PieceDone(Lane& lane) {
  const std::shared_ptr<Job> job = std::exchange(lane.job, nullptr);
  lane.step = Step::kFree;
  if (--job->pieces == 0 && job->ranges.empty()) JobDone(job);
}

}  // namespace talweg::agent
