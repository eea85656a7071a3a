// SPDX-License-Identifier: Apache-2.0
// What lanes do. A piece goes one of five ways:
//
//   kKernel      ranks that share a GPU: one kernel, then a copy to the host; in place, and no
//                copy, when no other node takes part
//   kCollective  among GPUs: local sums, reduce-scatter, each shard to the host; or each shard from
//                the host, all-gather; or an all-reduce when no other node takes part
//   kHost        every rank's bytes to the host, and summed there: for what the others cannot do
//   kDirect      the result from the host to every GPU
//   kStay        on the GPU: to where a NIC reads it, or the result from where it was written
//
// A tensor that a NIC has lies on one GPU, its home. Among GPUs its sum is reduced to the home, and
// the result broadcast from there. On the host path it comes down from the home, or goes up to it.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libs/base/check.h"
#include "libs/status/status.h"
#include "services/agent/combine.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {

std::string GpuStage::Describe(const Lane& lane) const {
  std::string text = absl::StrCat("tensor '", host_.Spec(lane.task->slice.tensor).name, "' round ",
                                  lane.task->slice.round.value());
  for (const Input& input : lane.task->inputs) {
    if (!input.on_device) continue;
    absl::StrAppend(&text, ", local rank ", input.rank.value(), " on ", gpu::FormatUuid(input.gpu));
  }
  return text;
}

std::span<std::byte> GpuStage::HostBytes(const Lane& lane) const {
  pipeline::SliceBytes slice = lane.task->slice;
  slice.offset_bytes = lane.range.offset;
  slice.length_bytes = static_cast<uint32_t>(lane.range.length);
  return host_.Writable(slice);
}

std::vector<GpuStage::Shard> GpuStage::ShardsOf(const Lane& lane, const GpuSet& group) {
  const uint64_t each = lane.ShardElements(group) * DTypeSize(lane.task->dtype);
  std::vector<Shard> shards;
  for (size_t i = 0; i < group.size(); ++i) {
    const uint64_t begin = std::min(i * each, lane.range.length);
    const uint64_t bytes = std::min(each, lane.range.length - begin);
    if (bytes > 0) shards.push_back({group[i], begin, bytes});
  }
  return shards;
}

// ----- Posting. -----

absl::Status GpuStage::Post(Lane& lane) {
  lane.step = Step::kCopying;
  switch (lane.path) {
    case Path::kKernel: TALWEG_RETURN_IF_ERROR(PostKernel(lane)); break;
    case Path::kHost:
      TALWEG_RETURN_IF_ERROR(lane.task->delivers ? PostMirror(lane) : PostToHost(lane));
      break;
    case Path::kStay: TALWEG_RETURN_IF_ERROR(PostStay(lane)); break;
    case Path::kDirect: TALWEG_RETURN_IF_ERROR(PostDirect(lane)); break;
    case Path::kCollective:
      lane.step = Step::kAwaitCommunicator;
      if (!lane.task->delivers) {
        TALWEG_RETURN_IF_ERROR(PostLocalSums(lane));
      } else {
        TALWEG_RETURN_IF_ERROR(lane.task->direct != nullptr ? PostFromHome(lane)
                                                            : PostShardsUp(lane));
      }
      break;
  }
  return Record(lane);
}

absl::Status GpuStage::Record(Lane& lane) {
  lane.wakes = false;
  lane.posted_ns = now_ns_;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    if (IsLost(uuid)) continue;
    const LanePart& part = PartOf(lane, uuid);
    TALWEG_RETURN_IF_ERROR(DeviceOf(uuid).Record(part.done, part.stream));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostKernel(Lane& lane) {
  const Task& task = *lane.task;
  const gpu::GpuUuid& uuid = lane.gpus[0];
  LanePart& part = PartOf(lane, uuid);
  std::vector<uint64_t> inputs;
  for (const Input& input : task.inputs) inputs.push_back(input.span.address + lane.range.offset);
  const reduce::ReduceSpec hop = RankHop(task.dtype, task.op, task.is_final, task.inputs.size());
  const gpu::ReduceSpec spec{.dtype = task.dtype, .op = hop.op, .divisor = hop.divisor};
  if (task.direct != nullptr) {
    return DeviceOf(uuid).Reduce(part.stream, spec, inputs, DirectBytes(lane).address,
                                 lane.elements());
  }
  if (task.is_final) {  // No other node has a share: write over the contributions.
    TALWEG_RETURN_IF_ERROR(
        DeviceOf(uuid).ReduceTo(part.stream, spec, inputs, inputs, lane.elements()));
    lane.writes_ranks = inputs.size() > 1;
    return absl::OkStatus();
  }
  TALWEG_RETURN_IF_ERROR(
      DeviceOf(uuid).Reduce(part.stream, spec, inputs, part.in.address, lane.elements()));
  const gpu::DeviceSpan sum = part.in.Part(0, lane.range.length);
  const std::span<std::byte> target =
      lane.through_staging ? part.host.first(lane.range.length) : HostBytes(lane);
  return DeviceOf(uuid).CopyToHost(part.stream, target, sum);
}

// On the host path each rank's bytes have their own part of their GPU's staging buffer.
std::span<std::byte> GpuStage::Staged(const Lane& lane, size_t input) {
  const std::vector<Input>& inputs = lane.task->inputs;
  const gpu::GpuUuid& uuid = inputs[input].gpu;
  const auto before =
      std::count_if(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(input),
                    [&](const Input& other) { return other.on_device && other.gpu == uuid; });
  return PartOf(lane, uuid)
      .host.subspan(static_cast<size_t>(before) * lane.range.length, lane.range.length);
}

// Nothing changes a single rank's bytes, so they go where they are wanted.
absl::Status GpuStage::PostToHost(Lane& lane) {
  const Task& task = *lane.task;
  if (task.inputs.size() > 1 || !task.inputs[0].on_device) lane.through_staging = true;
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    const Input& input = task.inputs[i];
    if (!input.on_device) continue;
    TALWEG_RETURN_IF_ERROR(DeviceOf(input.gpu).CopyToHost(
        PartOf(lane, input.gpu).stream, lane.through_staging ? Staged(lane, i) : HostBytes(lane),
        input.span.Part(lane.range.offset, lane.range.length)));
  }
  return absl::OkStatus();
}

// Bytes that a GPU can copy from: the given ones where they lie, or a copy of them.
std::span<const std::byte> GpuStage::Stage(const Lane& lane, const LanePart& part,
                                           std::span<const std::byte> source) {
  if (!lane.through_staging) return source;
  std::memcpy(part.host.data(), source.data(), source.size());
  counters_.bytes_staged += source.size();
  return part.host.first(source.size());
}

absl::Status GpuStage::PostDirect(Lane& lane) {
  const std::span<std::byte> source = HostBytes(lane);
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    TALWEG_RETURN_IF_ERROR(CopyUpToRanks(lane, uuid, Stage(lane, PartOf(lane, uuid), source)));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::CopyUpToRanks(Lane& lane, const gpu::GpuUuid& uuid,
                                     std::span<const std::byte> source) {
  const gpu::StreamId stream = PartOf(lane, uuid).stream;
  gpu::DeviceSpan first;
  for (const Input& target : lane.task->inputs) {
    if (target.gpu != uuid) continue;
    const gpu::DeviceSpan piece = target.span.Part(lane.range.offset, lane.range.length);
    TALWEG_RETURN_IF_ERROR(first.bytes == 0 ? DeviceOf(uuid).CopyToDevice(stream, piece, source)
                                            : DeviceOf(uuid).CopyOnDevice(stream, piece, first));
    if (first.bytes == 0) first = piece;
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostLocalSums(Lane& lane) {
  const Task& task = *lane.task;
  // f16 and bf16 become means, so that no sum among GPUs overflows where the average fits.
  const bool divides = task.op == Op::kAverage && task.is_narrow();
  const gpu::ReduceSpec spec{.dtype = task.dtype,
                             .op = task.op == Op::kAverage && !divides ? Op::kSum : task.op,
                             .divisor = divides ? static_cast<uint32_t>(task.inputs.size()) : 1};
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    LanePart& part = PartOf(lane, uuid);
    std::vector<uint64_t> inputs;
    for (const Input& input : task.inputs) {
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
  for (const GpuSet& group : lane.groups) {
    for (const Shard& shard : ShardsOf(lane, group)) {
      LanePart& part = PartOf(lane, shard.gpu);
      TALWEG_RETURN_IF_ERROR(DeviceOf(shard.gpu).CopyToDevice(
          part.stream, part.in.Part(0, shard.bytes),
          Stage(lane, part, source.subspan(shard.offset, shard.bytes))));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostCollective(Lane& lane) {
  const Task& task = *lane.task;
  const Op op = task.op == Op::kAverage ? Op::kSum : task.op;
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    std::vector<gpu::CollectivePart> parts;
    for (const gpu::GpuUuid& uuid : group) {
      const LanePart& part = PartOf(lane, uuid);
      parts.push_back({part.stream, part.in.address, part.out.address});
    }
    gpu::Communicator& communicator = collectives_.At(group);
    if (task.direct != nullptr) {
      TALWEG_RETURN_IF_ERROR(PostCollectiveOfHome(lane, group, parts));
    } else if (task.delivers) {
      TALWEG_RETURN_IF_ERROR(communicator.AllGather(task.dtype, lane.ShardElements(group), parts));
    } else if (task.is_final && !lane.adds_groups()) {
      TALWEG_RETURN_IF_ERROR(communicator.AllReduce(task.dtype, op, lane.elements(), parts));
    } else {
      TALWEG_RETURN_IF_ERROR(
          communicator.ReduceScatter(task.dtype, op, lane.ShardElements(group), parts));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuStage::CopyToRanks(Lane& lane, const gpu::GpuUuid& uuid, gpu::DeviceSpan source) {
  for (const Input& target : lane.task->inputs) {
    if (target.gpu != uuid) continue;
    TALWEG_RETURN_IF_ERROR(DeviceOf(uuid).CopyOnDevice(
        PartOf(lane, uuid).stream, target.span.Part(lane.range.offset, lane.range.length), source));
    lane.writes_ranks = true;
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostAfterCollective(Lane& lane) {
  const Task& task = *lane.task;
  if (task.direct != nullptr && !task.delivers) return PostToHome(lane);
  if (lane.adds_groups() || (!task.delivers && !task.is_final)) return PostShardsDown(lane);
  const bool divides = !task.delivers && task.op == Op::kAverage && !task.is_narrow();
  for (const GpuSet& group : lane.groups) {
    for (const gpu::GpuUuid& uuid : group) {
      LanePart& part = PartOf(lane, uuid);
      if (divides) {
        const gpu::ReduceSpec spec{.dtype = task.dtype,
                                   .op = Op::kAverage,
                                   .divisor = static_cast<uint32_t>(task.inputs.size())};
        const uint64_t inputs[] = {part.out.address};
        TALWEG_RETURN_IF_ERROR(
            DeviceOf(uuid).Reduce(part.stream, spec, inputs, part.out.address, lane.elements()));
      }
      TALWEG_RETURN_IF_ERROR(
          CopyToRanks(lane, uuid, part.After(group.size()).Part(0, lane.range.length)));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuStage::PostShardsDown(Lane& lane) {
  for (const GpuSet& group : lane.groups) {
    for (const Shard& shard : ShardsOf(lane, group)) {
      LanePart& part = PartOf(lane, shard.gpu);
      const std::span<std::byte> target = lane.through_staging
                                              ? part.host.first(shard.bytes)
                                              : HostBytes(lane).subspan(shard.offset, shard.bytes);
      TALWEG_RETURN_IF_ERROR(DeviceOf(shard.gpu).CopyToHost(
          part.stream, target, part.After(group.size()).Part(0, shard.bytes)));
    }
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

int GpuStage::StepLane(Lane& lane) {
  using Readiness = GpuCollectives::Readiness;
  if (lane.step == Step::kFree || failed_) return 0;
  if (lane.step == Step::kCopying || lane.step == Step::kDraining) {
    const auto done = IsDone(lane);
    if (!done.ok()) return OnPieceFailed(lane, done.status()), 1;
    if (!*done) return 0;
    lane.step == Step::kCopying ? OnCopied(lane) : GiveBack(lane);
    return 1;
  }
  // Asked while collectives run, too, because that is how their errors are noticed.
  const Readiness readiness = AskGroups(lane);
  if (readiness == Readiness::kUnavailable) return Redo(lane), 1;
  if (readiness == Readiness::kFailed) return 1;  // Taken care of.
  const bool overdue = lane.step != Step::kAwaitCommunicator && now_ns_ >= lane.deadline_ns;
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
        // The lane's work is done before a collective is posted. So what is put aside with a
        // collective that hangs uses no rank's memory.
        const bool before = lane.step == Step::kAwaitCommunicator;
        status = before ? PostCollective(lane) : PostAfterCollective(lane);
        if (status.ok() && !before) status = Record(lane);
        lane.step = before ? Step::kLaunching : Step::kCopying;
        lane.deadline_ns = now_ns_ + options_.collective_deadline_ns;
        if (status.ok()) return 1;
      }
    }
    if (!status.ok()) return OnPieceFailed(lane, status), 1;
  }
  if (!overdue) return 0;
  OnCollectiveFailed(
      lane.groups.front(),
      absl::UnavailableError(absl::StrCat("a collective has not ended within ",
                                          options_.collective_deadline_ns / 1'000'000'000, " s")));
  return 1;
}

GpuCollectives::Readiness GpuStage::AskGroups(const Lane& lane) {
  using Readiness = GpuCollectives::Readiness;
  Readiness all = Readiness::kReady;
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    const Readiness one = collectives_.Ask(group, now_ns_);
    if (one == Readiness::kReady) continue;
    if (one == Readiness::kFailed) {
      const absl::Status error = collectives_.Error(group);
      if (!FoundLost(error)) OnCollectiveFailed(GpuSet(group), error);
      return one;
    }
    if (all != Readiness::kUnavailable) all = one;
  }
  return all;
}

void GpuStage::CombineOnHost(Lane& lane) {
  const Task& task = *lane.task;
  pipeline::SliceBytes slice = task.slice;
  slice.offset_bytes = lane.range.offset;
  slice.length_bytes = static_cast<uint32_t>(lane.range.length);
  std::vector<const std::byte*> inputs;
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    const Input& input = task.inputs[i];
    inputs.push_back(input.on_device ? Staged(lane, i).data()
                                     : host_.Contribution(slice, input.rank).data());
    TALWEG_CHECK(inputs.back() != nullptr);  // It pushed, so it has a buffer.
  }
  CombineRanks(task.dtype, task.op, task.is_final, inputs,
               task.direct != nullptr ? HostSum(lane) : HostBytes(lane));
}

// Adds the groups' sums, which lie in shards of their own sizes.
void GpuStage::AddGroups(Lane& lane) {
  const Task& task = *lane.task;
  const std::span<std::byte> target = HostBytes(lane);
  std::vector<std::vector<Shard>> shards;
  for (const GpuSet& group : lane.groups) shards.push_back(ShardsOf(lane, group));
  const bool divides = task.is_final && task.op == Op::kAverage && !task.is_narrow();
  const Op op = task.op == Op::kAverage && !divides ? Op::kSum : task.op;
  const reduce::ReduceSpec hop = RankHop(task.dtype, op, divides, task.inputs.size());
  std::vector<size_t> at(shards.size());  // For each group, the shard with the bytes.
  for (uint64_t offset = 0; offset < target.size();) {
    uint64_t end = target.size();
    std::vector<const std::byte*> inputs;
    for (size_t group = 0; group < shards.size(); ++group) {
      const Shard* shard = &shards[group][at[group]];
      if (offset == shard->offset + shard->bytes) shard = &shards[group][++at[group]];
      inputs.push_back(PartOf(lane, shard->gpu).host.data() + (offset - shard->offset));
      end = std::min(end, shard->offset + shard->bytes);
    }
    reduce::Reduce(hop, inputs, target.data() + offset, (end - offset) / DTypeSize(task.dtype));
    offset = end;
  }
}

void GpuStage::OnCopied(Lane& lane) {
  const Task& task = *lane.task;
  counters_.pieces_direct += task.direct != nullptr && lane.path != Path::kHost;
  if (task.mirrors) {
    std::memcpy(HostBytes(lane).data(), PartOf(lane, task.direct->gpu).host.data(),
                lane.range.length);
    counters_.bytes_staged += lane.range.length;
    return PieceDone(lane);
  }
  if (task.delivers) {
    if (lane.path == Path::kHost && !lane.goes_up) {
      const absl::Status posted = PostMirrorUp(lane);
      if (!posted.ok()) OnPieceFailed(lane, posted);
      return;
    }
    ++counters_.pieces_delivered;
    return PieceDone(lane);
  }
  if (task.direct != nullptr && (lane.path != Path::kHost || lane.goes_up)) {
    counters_.pieces_by_kernel += lane.path == Path::kKernel;
    counters_.pieces_by_collective += lane.path == Path::kCollective;
    return PieceDone(lane);
  }
  if (lane.path == Path::kHost) {
    ++counters_.pieces_by_host;
    // Does not write what nobody wants any more: its bytes may be another round's by now.
    if (lane.through_staging && !task.abandoned && events_.ReduceWanted(task.ticket)) {
      CombineOnHost(lane);
      if (task.direct != nullptr) {
        const absl::Status posted = PostSumUp(lane);
        if (!posted.ok()) OnPieceFailed(lane, posted);
        return;
      }
    }
    if (task.is_final) host_results_[task.slice.tensor].push_back(lane.range);
  } else {
    ++(lane.path == Path::kKernel ? counters_.pieces_by_kernel : counters_.pieces_by_collective);
    const bool is_wanted = !task.abandoned && events_.ReduceWanted(task.ticket);
    if (lane.adds_groups()) {
      ++counters_.pieces_by_groups;
      if (is_wanted) AddGroups(lane);
      if (task.is_final) host_results_[task.slice.tensor].push_back(lane.range);
    } else if (!task.is_final && lane.through_staging && is_wanted) {
      const std::span<std::byte> target = HostBytes(lane);
      for (const Shard& shard : ShardsOf(lane, lane.gpus)) {
        std::memcpy(target.data() + shard.offset, PartOf(lane, shard.gpu).host.data(), shard.bytes);
        counters_.bytes_staged += shard.bytes;
      }
    }
  }
  PieceDone(lane);
}

void GpuStage::PieceDone(Lane& lane) {
  const std::shared_ptr<Task> task = std::exchange(lane.task, nullptr);
  lane.step = Step::kFree;
  if (--task->pieces == 0 && task->ranges.empty()) TaskDone(task);
}

}  // namespace talweg::agent
