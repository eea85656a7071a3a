// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_node.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "libs/runtime/numa.h"
#include "libs/status/status.h"

namespace talweg::agent {

GpuNode::~GpuNode() {
  for (auto& [uuid, gpu] : gpus_) {
    // A device's destructor waits for its work, for ever if a collective hangs. So such a device is
    // leaked.
    if (gpu.parts_aside == 0) continue;
    gpu.imports.release();  // NOLINT(bugprone-unused-return-value)
    gpu.device.release();   // NOLINT(bugprone-unused-return-value)
  }
}

NodeGpu* GpuNode::Find(const gpu::GpuUuid& uuid) {
  const auto at = gpus_.find(uuid);
  return at == gpus_.end() ? nullptr : &at->second;
}

const topology::Gpu* GpuNode::PlaceOf(const gpu::Device& device) const {
  return options_.topology.FindGpu(device.info().pci_bus_id);
}

const std::vector<GpuSet>& GpuNode::GroupsOf(const GpuSet& gpus) {
  const auto [at, is_new] = groups_.try_emplace(gpus);
  if (!is_new) return at->second;
  const auto belong = [this](const gpu::GpuUuid& one, const gpu::GpuUuid& other) {
    const topology::Gpu* const place = PlaceOf(*gpus_.at(one).device);
    const topology::Gpu* const other_place = PlaceOf(*gpus_.at(other).device);
    const bool share_a_switch = place != nullptr && other_place != nullptr &&
                                !place->root_port.empty() &&
                                place->root_port == other_place->root_port;
    return share_a_switch || platform_.Linked(one, other);
  };
  std::vector<GpuSet>& groups = at->second;
  for (const gpu::GpuUuid& uuid : gpus) {
    GpuSet joined;
    std::erase_if(groups, [&](const GpuSet& group) {
      const bool joins = std::any_of(group.begin(), group.end(),
                                     [&](const auto& other) { return belong(uuid, other); });
      if (joins) joined.insert(joined.end(), group.begin(), group.end());
      return joins;
    });
    joined.push_back(uuid);
    groups.push_back(std::move(joined));
  }
  // Each GPU lies behind a port of its own. There is no switch, so groups would gain nothing.
  if (groups.size() == gpus.size()) groups = {gpus};
  for (GpuSet& group : groups) std::sort(group.begin(), group.end());
  return groups;
}

absl::StatusOr<LanePart> GpuNode::NewPart(gpu::Device& device) const {
  const topology::Gpu* const place = PlaceOf(device);
  const runtime::PreferNumaNode near(place == nullptr ? std::nullopt : place->numa_node);
  LanePart part;
  TALWEG_ASSIGN_OR_RETURN(part.stream, device.NewStream(gpu::StreamPriority::kHigh));
  TALWEG_ASSIGN_OR_RETURN(part.done, device.NewEvent(gpu::EventScope::kProcess));
  absl::StatusOr<std::span<std::byte>> host = absl::ResourceExhaustedError("");
  for (uint64_t bytes = options_.piece_bytes; bytes >= options_.piece_bytes_min; bytes /= 2) {
    host = device.AllocateHost(bytes);
    if (host.ok() || !absl::IsResourceExhausted(host.status())) break;
  }
  if (!host.ok()) {
    device.DestroyEvent(part.done);
    device.DestroyStream(part.stream);
    return host.status();
  }
  part.host = *host;
  return part;
}

absl::StatusOr<NodeGpu*> GpuNode::Open(const gpu::GpuUuid& uuid) {
  if (NodeGpu* known = Find(uuid)) return known;
  NodeGpu gpu;
  TALWEG_ASSIGN_OR_RETURN(gpu.device, platform_.Open(uuid));
  gpu.imports = std::make_unique<gpu::ImportCache>(*gpu.device, options_.allocations_max);
  TALWEG_ASSIGN_OR_RETURN(gpu.signals, gpu.device->NewStream(gpu::StreamPriority::kHigh));
  for (size_t lane = 0; lane < options_.lanes; ++lane) {
    TALWEG_ASSIGN_OR_RETURN(LanePart part, NewPart(*gpu.device));
    gpu.lanes.push_back(part);
    GrowStaging(gpu, lane);
  }
  epoll_event readable = {.events = EPOLLIN, .data = {}};
  if (epoll_ctl(wakeups_.get(), EPOLL_CTL_ADD, gpu.device->WaitDescriptor(), &readable) != 0) {
    return status::ErrnoStatus(errno, "watching a GPU's wake-ups");
  }
  return &gpus_.emplace(uuid, std::move(gpu)).first->second;
}

void GpuNode::GrowStaging(NodeGpu& gpu, size_t lane) const {
  LanePart& part = gpu.lanes[lane];
  if (part.memory_epoch == gpu.memory_epoch || part.in.bytes == options_.piece_bytes) return;
  part.memory_epoch = gpu.memory_epoch;
  const uint64_t least = part.in.bytes == 0 ? options_.piece_bytes_min : part.in.bytes * 2;
  // Staging is of use only if every lane has it, because the path must not depend on the lane. So a
  // lane leaves enough for the lanes that have none to get as much.
  const auto memory = gpu.device->Memory();
  if (!memory.ok()) return;
  uint64_t takers = 1;
  for (size_t other = 0; other < options_.lanes; ++other) {
    if (other == lane) continue;
    if (other >= gpu.lanes.size() || gpu.lanes[other].in.bytes == 0) ++takers;
  }
  for (uint64_t bytes = options_.piece_bytes; bytes >= least; bytes /= 2) {
    if (2 * bytes * takers > memory->free_bytes) continue;
    const auto in = gpu.device->Allocate(bytes);
    if (!in.ok()) continue;
    const auto out = gpu.device->Allocate(bytes);
    if (!out.ok()) {
      gpu.device->Free(*in).IgnoreError();
      continue;
    }
    if (part.in.bytes > 0) {
      gpu.device->Free(part.in).IgnoreError();
      gpu.device->Free(part.out).IgnoreError();
    }
    part.in = *in;
    part.out = *out;
    return;
  }
}

LanePart GpuNode::TakeAside(const gpu::GpuUuid& uuid, size_t lane) {
  NodeGpu& gpu = At(uuid);
  ++gpu.parts_aside;
  return std::exchange(gpu.lanes[lane], {});
}

absl::Status GpuNode::RenewPart(const gpu::GpuUuid& uuid, size_t lane) {
  NodeGpu& gpu = At(uuid);
  TALWEG_ASSIGN_OR_RETURN(gpu.lanes[lane], NewPart(*gpu.device));
  return absl::OkStatus();
}

void GpuNode::Drop(NodeGpu& gpu, const LanePart& part) {
  gpu.device->DestroyEvent(part.done);
  gpu.device->DestroyStream(part.stream);
  gpu.device->FreeHost(part.host).IgnoreError();
  if (part.in.bytes > 0) {
    gpu.device->Free(part.in).IgnoreError();
    gpu.device->Free(part.out).IgnoreError();
  }
}

void GpuNode::Close(const gpu::GpuUuid& uuid) {
  // Closing the descriptor would not remove it: a late wake-up still holds a copy.
  epoll_ctl(wakeups_.get(), EPOLL_CTL_DEL, gpus_.at(uuid).device->WaitDescriptor(), nullptr);
  gpus_.erase(uuid);
}

void GpuNode::DrainWakeups() {
  for (const auto& [uuid, gpu] : gpus_) gpu.device->DrainWakeups();
}

}  // namespace talweg::agent
