// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_lane.h"

#include <algorithm>

#include "libs/status/status.h"

namespace talweg::agent {

std::vector<Lane::Shard> Lane::ShardsOf(const GpuSet& group) const {
  const uint64_t each = ShardElements(group) * DTypeSize(task->dtype);
  std::vector<Shard> shards;
  for (size_t i = 0; i < group.size(); ++i) {
    const uint64_t begin = std::min(i * each, range.length);
    const uint64_t bytes = std::min(each, range.length - begin);
    if (bytes > 0) shards.push_back({group[i], begin, bytes});
  }
  return shards;
}

absl::Status LaneStreams::Record(Lane& lane, int64_t now_ns) {
  lane.wakes = false;
  lane.posted_ns = now_ns;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    if (losses_.Has(uuid)) continue;
    const LanePart& part = PartOf(lane, uuid);
    TALWEG_RETURN_IF_ERROR(DeviceOf(uuid).Record(part.done, part.stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LaneStreams::IsDone(const Lane& lane) {
  bool done = true;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    if (losses_.Has(uuid)) continue;
    TALWEG_ASSIGN_OR_RETURN(const bool part_done, DeviceOf(uuid).Query(PartOf(lane, uuid).done));
    done = done && part_done;
  }
  return done;
}

bool LaneStreams::WakeWhenDone(Lane& lane) {
  lane.wakes =
      lane.wakes || std::all_of(lane.gpus.begin(), lane.gpus.end(), [&](const gpu::GpuUuid& uuid) {
        return losses_.Has(uuid) || DeviceOf(uuid).WakeWhenDone(PartOf(lane, uuid).done).ok();
      });
  return lane.wakes;
}

std::span<std::byte> LaneStreams::StagedInput(const Lane& lane, size_t input) {
  const std::vector<GpuInput>& inputs = lane.task->inputs;
  const gpu::GpuUuid& uuid = inputs[input].gpu;
  const auto before =
      std::count_if(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(input),
                    [&](const GpuInput& other) { return other.on_device && other.gpu == uuid; });
  return PartOf(lane, uuid)
      .host.subspan(static_cast<size_t>(before) * lane.range.length, lane.range.length);
}

absl::Status LaneStreams::CopyUpToRanks(const Lane& lane, const gpu::GpuUuid& uuid,
                                        std::span<const std::byte> source) {
  const gpu::StreamId stream = PartOf(lane, uuid).stream;
  gpu::DeviceSpan first;
  for (const GpuInput& target : lane.task->inputs) {
    if (target.gpu != uuid) continue;
    const gpu::DeviceSpan piece = target.span.Part(lane.range.offset, lane.range.length);
    TALWEG_RETURN_IF_ERROR(first.bytes == 0 ? DeviceOf(uuid).CopyToDevice(stream, piece, source)
                                            : DeviceOf(uuid).CopyOnDevice(stream, piece, first));
    if (first.bytes == 0) first = piece;
  }
  return absl::OkStatus();
}

absl::Status LaneStreams::CopyToRanks(Lane& lane, const gpu::GpuUuid& uuid,
                                      gpu::DeviceSpan source) {
  for (const GpuInput& target : lane.task->inputs) {
    if (target.gpu != uuid) continue;
    TALWEG_RETURN_IF_ERROR(DeviceOf(uuid).CopyOnDevice(
        PartOf(lane, uuid).stream, target.span.Part(lane.range.offset, lane.range.length), source));
    lane.writes_ranks = true;
  }
  return absl::OkStatus();
}

}  // namespace talweg::agent
