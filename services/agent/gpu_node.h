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
  topology::Topology topology;  // Where GPUs lie; empty: unknown.

  size_t lanes = 4;
  // The bytes of a lane's staging buffer. If it cannot be allocated, half of that is tried, down to
  // the minimum. Without staging, sums are made on the host.
  uint64_t piece_bytes = 4 * kMiB;
  uint64_t piece_bytes_min = 256 * kKiB;
  // Pieces that are summed in place need no staging. They are so long that the calls for one cost
  // next to nothing.
  uint64_t piece_bytes_in_place = 64 * kMiB;
  size_t allocations_max = 4096;  // The most for one rank.
  // Tensors with a GpuHome. Each has at least `direct_bytes_min` bytes, since a copy of less costs
  // next to nothing. Together they take at most 1/`direct_share` of the GPU's memory.
  uint64_t direct_bytes_min = 256 * kKiB;
  uint64_t direct_share = 16;
  // After it posts work, the agent polls for so long before it sleeps, because a wake-up takes
  // longer than most work.
  int64_t watch_own_ns = 0;
  int64_t collective_deadline_ns = 30'000'000'000;
  int64_t rebuild_first_ns = 1'000'000'000;  // Doubles with each failure, to the maximum.
  int64_t rebuild_max_ns = 60'000'000'000;
  // How often the sleeping agent polls what does not wake it: communicators that start or launch;
  // errors of collectives, and aborts.
  int64_t ask_launch_every_ns = 100'000;
  int64_t ask_errors_every_ns = 10'000'000;
  // How often the agent polls for gradients, between these bounds: the longer a rank has brought
  // none, the less often.
  int64_t ask_gradients_first_ns = 100'000;
  int64_t ask_gradients_last_ns = 1'000'000;
  // How often, and for how long, the agent tries to open a lost GPU again.
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
  uint64_t memory_epoch = 0;  // NodeGpu::memory_epoch when staging was last tried for.

  // Returns where a collective among `group_size` GPUs leaves its output. With one GPU that is
  // `in`.
  gpu::DeviceSpan After(size_t group_size) const { return group_size == 1 ? in : out; }
};

// A GPU that ranks of this node use: its context, and what the agent keeps there.
struct NodeGpu {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::ImportCache> imports;
  gpu::StreamId signals;  // Only for recording `taken` events.
  std::vector<LanePart> lanes;
  uint64_t memory_epoch = 1;
  bool has_kernels = true;
  size_t parts_aside = 0;  // Lane parts that a collective holds.
};

// The open GPUs. Each is open from its first rank to its last. Owned by the data thread.
class GpuNode {
 public:
  GpuNode(const GpuStageOptions& options, gpu::Platform& platform)
      : options_(options), platform_(platform), wakeups_(epoll_create1(EPOLL_CLOEXEC)) {}
  ~GpuNode();

  // Opens the GPU on its first use, with pinned staging for every lane.
  absl::StatusOr<NodeGpu*> Open(const gpu::GpuUuid& uuid);
  NodeGpu& At(const gpu::GpuUuid& uuid) { return gpus_.at(uuid); }
  gpu::Device& DeviceOf(const gpu::GpuUuid& uuid) { return *At(uuid).device; }
  NodeGpu* Find(const gpu::GpuUuid& uuid);
  // Nothing of the GPU may be in use.
  void Close(const gpu::GpuUuid& uuid);
  const std::map<gpu::GpuUuid, NodeGpu>& gpus() const { return gpus_; }
  size_t gpu_count() const { return gpus_.size(); }
  gpu::Platform& platform() { return platform_; }

  // Returns one descriptor for all open devices, for epoll (gpu::Device::WakeWhenDone), or -1 if it
  // could not be made.
  int WaitDescriptor() const { return wakeups_.get(); }
  void DrainWakeups();

  // Returns the groups of GPUs: one collective sums within each, and the host adds the groups'
  // sums. All GPUs are one group, unless they lie behind several PCIe switches. Then the GPUs
  // behind one switch are a group, with the GPUs that have a link of their own (NVLink) to one of
  // them.
  const std::vector<GpuSet>& GroupsOf(const GpuSet& gpus);

  // Tries to allocate staging memory of the wanted size for the lane, if it has less. Waits for the
  // GPU.
  void GrowStaging(NodeGpu& gpu, size_t lane) const;
  // Takes a lane's part away, with the work that runs on it. The lane then needs another part from
  // RenewPart, which has no staging memory on the GPU yet.
  LanePart TakeAside(const gpu::GpuUuid& uuid, size_t lane);
  absl::Status RenewPart(const gpu::GpuUuid& uuid, size_t lane);
  static void Drop(NodeGpu& gpu, const LanePart& part);

 private:
  absl::StatusOr<LanePart> NewPart(gpu::Device& device) const;
  const topology::Gpu* PlaceOf(const gpu::Device& device) const;

  const GpuStageOptions options_;
  gpu::Platform& platform_;
  const Descriptor wakeups_;  // An epoll descriptor that watches the devices' descriptors.
  std::map<gpu::GpuUuid, NodeGpu> gpus_;
  std::map<GpuSet, std::vector<GpuSet>> groups_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_NODE_H_
