// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_home_pieces.h"

#include <algorithm>

#include "libs/status/status.h"

namespace talweg::agent {

absl::Status GpuHomePieces::PostStay(Lane& lane) {
  const gpu::GpuUuid& home = HomeOf(lane);
  const gpu::StreamId stream = streams_.PartOf(lane, home).stream;
  const gpu::DeviceSpan here = Bytes(lane);
  for (const GpuInput& input : lane.task->inputs) {
    const gpu::DeviceSpan rank = input.span.Part(lane.range.offset, lane.range.length);
    TALWEG_RETURN_IF_ERROR(streams_.DeviceOf(home).CopyOnDevice(
        stream, lane.task->delivers ? rank : here, lane.task->delivers ? here : rank));
  }
  return absl::OkStatus();
}

std::span<std::byte> GpuHomePieces::HostSum(const Lane& lane) {
  const gpu::GpuUuid& home = HomeOf(lane);
  const auto at_home =
      std::count_if(lane.task->inputs.begin(), lane.task->inputs.end(),
                    [&](const GpuInput& input) { return input.on_device && input.gpu == home; });
  return streams_.PartOf(lane, home)
      .host.subspan(static_cast<size_t>(at_home) * lane.range.length, lane.range.length);
}

absl::Status GpuHomePieces::PostSumUp(Lane& lane) {
  const gpu::GpuUuid& home = HomeOf(lane);
  lane.goes_up = true;
  return streams_.DeviceOf(home).CopyToDevice(streams_.PartOf(lane, home).stream, Bytes(lane),
                                              HostSum(lane));
}

absl::Status GpuHomePieces::PostMirror(Lane& lane) {
  const gpu::GpuUuid& home = HomeOf(lane);
  const LanePart& part = streams_.PartOf(lane, home);
  return streams_.DeviceOf(home).CopyToHost(part.stream, part.host.first(lane.range.length),
                                            Bytes(lane));
}

std::span<const std::byte> GpuHomePieces::Mirrored(const Lane& lane) {
  return streams_.PartOf(lane, HomeOf(lane)).host.first(lane.range.length);
}

absl::Status GpuHomePieces::PostMirrorUp(Lane& lane) {
  lane.goes_up = true;
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    TALWEG_RETURN_IF_ERROR(streams_.CopyUpToRanks(lane, uuid, Mirrored(lane)));
  }
  return absl::OkStatus();
}

absl::Status GpuHomePieces::PostFromHome(Lane& lane) {
  const gpu::GpuUuid& home = HomeOf(lane);
  const LanePart& part = streams_.PartOf(lane, home);
  return streams_.DeviceOf(home).CopyOnDevice(part.stream, part.in.Part(0, lane.range.length),
                                              Bytes(lane));
}

absl::Status GpuHomePieces::PostCollective(Lane& lane, const GpuSet& group,
                                           const std::vector<gpu::CollectivePart>& parts) {
  const GpuTask& task = *lane.task;
  const auto at = std::find(group.begin(), group.end(), HomeOf(lane));
  const auto home = static_cast<size_t>(at - group.begin());
  gpu::Communicator& communicator = collectives_.At(group);
  if (task.delivers) return communicator.Broadcast(task.dtype, lane.elements(), home, parts);
  const Op op = task.op == Op::kAverage ? Op::kSum : task.op;
  return communicator.Reduce(task.dtype, op, lane.elements(), home, parts);
}

absl::Status GpuHomePieces::PostToHome(Lane& lane) {
  const gpu::GpuUuid& home = HomeOf(lane);
  const LanePart& part = streams_.PartOf(lane, home);
  return streams_.DeviceOf(home).CopyOnDevice(part.stream, Bytes(lane),
                                              part.out.Part(0, lane.range.length));
}

}  // namespace talweg::agent
