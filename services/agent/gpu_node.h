// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_NODE_H_
#define TALWEG_SERVICES_AGENT_GPU_NODE_H_

#include <absl/status/statusor.h>
#include <sys/epoll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/descriptor.h"
#include "libs/gpu/device.h"
#include "libs/gpu/import_cache.h"
#include "libs/topology/topology.h"

namespace talweg::agent {

// Different GPUs, in the order of their shards.
using GpuSet = std::vector<gpu::GpuUuid>;

struct GpuStageOptions {
  Topology topology;  // Where GPUs lie; empty: not known.

  size_t lanes = 4;
  // A lane's staging buffers. What cannot be had is halved, down to the minimum; then sums are made
  // on the host.
  uint64_t piece_bytes = 4 * kMiB;
  uint64_t piece_bytes_min = 256 * kKiB;
  // What is summed where it lies needs none: pieces are as long as the calls for one are forgotten.
  uint64_t piece_bytes_in_place = 64 * kMiB;
  size_t allocations_max = 4096;  // Of one rank.
  // Tensors that a NIC has on the GPU: of so many bytes at least, since a copy of less costs next
  // to nothing; and all of them together of no more than this part of the GPU's memory.
  uint64_t direct_bytes_min = 256 * kKiB;
  uint64_t direct_share = 16;
  // So long what this agent posted is asked for without sleeping: to be woken takes longer than
  // most of it.
  int64_t watch_own_ns = 0;
  int64_t collective_deadline_ns = 30'000'000'000;
  int64_t rebuild_first_ns = 1'000'000'000;  // Doubled with each failure, up to the maximum.
  int64_t rebuild_max_ns = 60'000'000'000;
  // What wakes nobody is asked so often while the agent sleeps: communicators that start or launch;
  // errors of collectives, and aborts.
  int64_t ask_launch_every_ns = 100'000;
  int64_t ask_errors_every_ns = 10'000'000;
  // Gradients: the later the longer a rank has brought none, within these bounds.
  int64_t ask_gradients_first_ns = 100'000;
  int64_t ask_gradients_last_ns = 1'000'000;
  // A GPU that was lost is opened again: tried so often, for so long.
  int64_t reopen_every_ns = 500'000'000;
  int64_t reopen_deadline_ns = 30'000'000'000;
};

// One lane's part on one GPU.
struct LanePart {
  gpu::StreamId stream;
  gpu::EventId done;
  std::span<std::byte> host;  // Pinned.
  gpu::DeviceSpan in;         // Empty: no memory for it.
  gpu::DeviceSpan out;
  uint64_t memory_epoch = 0;  // Of the GPU when they were tried for.

  // Where a collective among so many GPUs leaves what was in `in`: of one, there.
  gpu::DeviceSpan After(size_t group_size) const { return group_size == 1 ? in : out; }
};

// A GPU that ranks of this node use: its context, and what the agent keeps there.
struct NodeGpu {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::ImportCache> imports;
  gpu::StreamId signals;  // For nothing but the records of `taken` events.
  std::vector<LanePart> lanes;
  uint64_t memory_epoch = 1;
  bool has_kernels = true;
  size_t parts_aside = 0;  // Lane parts that a collective holds.
};

// The GPUs that are open, each from its first rank to its last. Owned by the data thread.
class GpuNode {
 public:
  GpuNode(const GpuStageOptions& options, gpu::Platform& platform)
      : options_(options), platform_(platform), wakeups_(epoll_create1(EPOLL_CLOEXEC)) {}
  ~GpuNode();

  // Opens it if it is the first use; pinned staging of every lane is there afterwards.
  absl::StatusOr<NodeGpu*> Open(const gpu::GpuUuid& uuid);
  NodeGpu& At(const gpu::GpuUuid& uuid) { return gpus_.at(uuid); }
  NodeGpu* Find(const gpu::GpuUuid& uuid);
  // Nothing of it is in use.
  void Close(const gpu::GpuUuid& uuid);
  const std::map<gpu::GpuUuid, NodeGpu>& gpus() const { return gpus_; }
  size_t gpu_count() const { return gpus_.size(); }
  gpu::Platform& platform() { return platform_; }

  // For epoll: that of all open devices (gpu::Device::WakeWhenDone). -1: none could be made.
  int WaitDescriptor() const { return wakeups_.get(); }
  void DrainWakeups();

  // The GPUs among which sums are made by one collective each; the host adds up what the groups
  // have. One group, unless PCIe switches lie between: then those behind one switch, with what is
  // linked to them beside PCIe.
  const std::vector<GpuSet>& GroupsOf(const GpuSet& gpus);

  // Tries for as much staging memory on the GPU as is wanted, if a lane has less. Waits for the
  // GPU.
  void GrowStaging(NodeGpu& gpu, size_t lane) const;
  // Takes away a lane's part, with whatever runs on it; the lane needs another (RenewPart), which
  // has no staging memory yet.
  LanePart TakeAside(const gpu::GpuUuid& uuid, size_t lane);
  absl::Status RenewPart(const gpu::GpuUuid& uuid, size_t lane);
  static void Drop(NodeGpu& gpu, const LanePart& part);

 private:
  absl::StatusOr<LanePart> NewPart(gpu::Device& device) const;
  const TopologyGpu* PlaceOf(const gpu::Device& device) const;

  const GpuStageOptions options_;
  gpu::Platform& platform_;
  const Descriptor wakeups_;  // An epoll of the devices' descriptors.
  std::map<gpu::GpuUuid, NodeGpu> gpus_;
  std::map<GpuSet, std::vector<GpuSet>> groups_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_NODE_H_
