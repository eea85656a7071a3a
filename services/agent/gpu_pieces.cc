// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_pieces.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "libs/base/check.h"
#include "libs/status/status.h"
#include "services/agent/combine.h"

namespace talweg::agent {

absl::Status GpuPieces::Post(Lane& lane) {
  const GpuTask& task = *lane.task;
  switch (lane.path) {
    case LanePath::kKernel: return PostKernel(lane);
    case LanePath::kHost: return task.delivers ? homes_.PostMirror(lane) : PostToHost(lane);
    case LanePath::kStay: return homes_.PostStay(lane);
    case LanePath::kDirect: return PostDirect(lane);
    case LanePath::kCollective: break;
  }
  if (!task.delivers) return PostLocalSums(lane);
  return task.home != nullptr ? homes_.PostFromHome(lane) : PostShardsUp(lane);
}

absl::Status GpuPieces::PostKernel(Lane& lane) {
  const GpuTask& task = *lane.task;
  const gpu::GpuUuid& uuid = lane.gpus[0];
  LanePart& part = streams_.PartOf(lane, uuid);
  std::vector<uint64_t> inputs;
  for (const GpuInput& input : task.inputs)
    inputs.push_back(input.span.address + lane.range.offset);
  const reduce::ReduceSpec hop = RankHop(task.dtype, task.op, task.is_final, task.inputs.size());
  const gpu::ReduceSpec spec{.dtype = task.dtype, .op = hop.op, .divisor = hop.divisor};
  if (task.home != nullptr) {
    return streams_.DeviceOf(uuid).Reduce(part.stream, spec, inputs,
                                          GpuHomePieces::Bytes(lane).address, lane.elements());
  }
  if (task.is_final) {  // No other node takes part: write over the contributions.
    TALWEG_RETURN_IF_ERROR(
        streams_.DeviceOf(uuid).ReduceTo(part.stream, spec, inputs, inputs, lane.elements()));
    lane.writes_ranks = inputs.size() > 1;
    return absl::OkStatus();
  }
  TALWEG_RETURN_IF_ERROR(
      streams_.DeviceOf(uuid).Reduce(part.stream, spec, inputs, part.in.address, lane.elements()));
  const gpu::DeviceSpan sum = part.in.Part(0, lane.range.length);
  const std::span<std::byte> target =
      lane.through_staging ? part.host.first(lane.range.length) : HostBytes(lane);
  return streams_.DeviceOf(uuid).CopyToHost(part.stream, target, sum);
}

// A single rank's bytes need no sum, so they are copied straight to the target.
absl::Status GpuPieces::PostToHost(Lane& lane) {
  const GpuTask& task = *lane.task;
  if (task.inputs.size() > 1 || !task.inputs[0].on_device) lane.through_staging = true;
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    const GpuInput& input = task.inputs[i];
    if (!input.on_device) continue;
    TALWEG_RETURN_IF_ERROR(streams_.DeviceOf(input.gpu).CopyToHost(
        streams_.PartOf(lane, input.gpu).stream,
        lane.through_staging ? streams_.StagedInput(lane, i) : HostBytes(lane),
        input.span.Part(lane.range.offset, lane.range.length)));
  }
  return absl::OkStatus();
}

std::span<const std::byte> GpuPieces::Stage(const Lane& lane, const LanePart& part,
                                            std::span<const std::byte> source) {
  if (!lane.through_staging) return source;
  std::memcpy(part.host.data(), source.data(), source.size());
  counters_.bytes_staged += source.size();
  return part.host.first(source.size());
}

absl::Status GpuPieces::PostDirect(Lane& lane) {
  const std::span<std::byte> source = HostBytes(lane);
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    TALWEG_RETURN_IF_ERROR(
        streams_.CopyUpToRanks(lane, uuid, Stage(lane, streams_.PartOf(lane, uuid), source)));
  }
  return absl::OkStatus();
}

absl::Status GpuPieces::PostLocalSums(Lane& lane) {
  const GpuTask& task = *lane.task;
  // f16 and bf16 inputs are averaged on each GPU first, so that no sum among GPUs overflows if the
  // average fits.
  const bool divides = task.op == Op::kAverage && task.is_narrow();
  const gpu::ReduceSpec spec{.dtype = task.dtype,
                             .op = task.op == Op::kAverage && !divides ? Op::kSum : task.op,
                             .divisor = divides ? static_cast<uint32_t>(task.inputs.size()) : 1};
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    LanePart& part = streams_.PartOf(lane, uuid);
    std::vector<uint64_t> inputs;
    for (const GpuInput& input : task.inputs) {
      if (input.gpu == uuid) inputs.push_back(input.span.address + lane.range.offset);
    }
    TALWEG_RETURN_IF_ERROR(
        inputs.size() == 1 && !divides
            ? streams_.DeviceOf(uuid).CopyOnDevice(part.stream, part.in.Part(0, lane.range.length),
                                                   {inputs[0], lane.range.length})
            : streams_.DeviceOf(uuid).Reduce(part.stream, spec, inputs, part.in.address,
                                             lane.elements()));
  }
  return absl::OkStatus();
}

absl::Status GpuPieces::PostShardsUp(Lane& lane) {
  const std::span<std::byte> source = HostBytes(lane);
  for (const GpuSet& group : lane.groups) {
    for (const Lane::Shard& shard : lane.ShardsOf(group)) {
      LanePart& part = streams_.PartOf(lane, shard.gpu);
      TALWEG_RETURN_IF_ERROR(streams_.DeviceOf(shard.gpu).CopyToDevice(
          part.stream, part.in.Part(0, shard.bytes),
          Stage(lane, part, source.subspan(shard.offset, shard.bytes))));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuPieces::PostCollective(Lane& lane) {
  const GpuTask& task = *lane.task;
  const Op op = task.op == Op::kAverage ? Op::kSum : task.op;
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    std::vector<gpu::CollectivePart> parts;
    for (const gpu::GpuUuid& uuid : group) {
      const LanePart& part = streams_.PartOf(lane, uuid);
      parts.push_back({part.stream, part.in.address, part.out.address});
    }
    gpu::Communicator& communicator = collectives_.At(group);
    if (task.home != nullptr) {
      TALWEG_RETURN_IF_ERROR(homes_.PostCollective(lane, group, parts));
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

absl::Status GpuPieces::PostAfterCollective(Lane& lane) {
  const GpuTask& task = *lane.task;
  if (task.home != nullptr && !task.delivers) return homes_.PostToHome(lane);
  if (lane.adds_groups() || (!task.delivers && !task.is_final)) return PostShardsDown(lane);
  const bool divides = !task.delivers && task.op == Op::kAverage && !task.is_narrow();
  for (const GpuSet& group : lane.groups) {
    for (const gpu::GpuUuid& uuid : group) {
      LanePart& part = streams_.PartOf(lane, uuid);
      if (divides) {
        const gpu::ReduceSpec spec{.dtype = task.dtype,
                                   .op = Op::kAverage,
                                   .divisor = static_cast<uint32_t>(task.inputs.size())};
        const uint64_t inputs[] = {part.out.address};
        TALWEG_RETURN_IF_ERROR(streams_.DeviceOf(uuid).Reduce(part.stream, spec, inputs,
                                                              part.out.address, lane.elements()));
      }
      TALWEG_RETURN_IF_ERROR(
          streams_.CopyToRanks(lane, uuid, part.After(group.size()).Part(0, lane.range.length)));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuPieces::PostShardsDown(Lane& lane) {
  for (const GpuSet& group : lane.groups) {
    for (const Lane::Shard& shard : lane.ShardsOf(group)) {
      LanePart& part = streams_.PartOf(lane, shard.gpu);
      const std::span<std::byte> target = lane.through_staging
                                              ? part.host.first(shard.bytes)
                                              : HostBytes(lane).subspan(shard.offset, shard.bytes);
      TALWEG_RETURN_IF_ERROR(streams_.DeviceOf(shard.gpu).CopyToHost(
          part.stream, target, part.After(group.size()).Part(0, shard.bytes)));
    }
  }
  return absl::OkStatus();
}

// ----- When what was posted is done. -----

void GpuPieces::CombineOnHost(Lane& lane) {
  const GpuTask& task = *lane.task;
  std::vector<const std::byte*> inputs;
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    const GpuInput& input = task.inputs[i];
    inputs.push_back(input.on_device ? streams_.StagedInput(lane, i).data()
                                     : host_.Contribution(lane.bytes(), input.rank).data());
    TALWEG_CHECK(inputs.back() != nullptr);  // It pushed, so it has a buffer.
  }
  CombineRanks(task.dtype, task.op, task.is_final, inputs.size(), inputs,
               task.home != nullptr ? homes_.HostSum(lane) : HostBytes(lane));
}

void GpuPieces::AddGroups(Lane& lane) {
  const GpuTask& task = *lane.task;
  const std::span<std::byte> target = HostBytes(lane);
  std::vector<std::vector<Lane::Shard>> shards;
  for (const GpuSet& group : lane.groups) shards.push_back(lane.ShardsOf(group));
  const bool divides = task.is_final && task.op == Op::kAverage && !task.is_narrow();
  const Op op = task.op == Op::kAverage && !divides ? Op::kSum : task.op;
  const reduce::ReduceSpec hop = RankHop(task.dtype, op, divides, task.inputs.size());
  std::vector<size_t> at(shards.size());  // For each group, the shard with the bytes.
  for (uint64_t offset = 0; offset < target.size();) {
    uint64_t end = target.size();
    std::vector<const std::byte*> inputs;
    for (size_t group = 0; group < shards.size(); ++group) {
      const Lane::Shard* shard = &shards[group][at[group]];
      if (offset == shard->offset + shard->bytes) shard = &shards[group][++at[group]];
      inputs.push_back(streams_.PartOf(lane, shard->gpu).host.data() + (offset - shard->offset));
      end = std::min(end, shard->offset + shard->bytes);
    }
    reduce::Reduce(hop, inputs, target.data() + offset, (end - offset) / DTypeSize(task.dtype));
    offset = end;
  }
}

void GpuPieces::CopyShards(Lane& lane) {
  const std::span<std::byte> target = HostBytes(lane);
  for (const Lane::Shard& shard : lane.ShardsOf(lane.gpus)) {
    std::memcpy(target.data() + shard.offset, streams_.PartOf(lane, shard.gpu).host.data(),
                shard.bytes);
    counters_.bytes_staged += shard.bytes;
  }
}

void GpuPieces::CopyMirrored(Lane& lane) {
  std::memcpy(HostBytes(lane).data(), homes_.Mirrored(lane).data(), lane.range.length);
  counters_.bytes_staged += lane.range.length;
}

}  // namespace talweg::agent
