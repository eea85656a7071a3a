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
  // The bytes of a lane's staging buffer. A buffer that cannot be had is halved, down to the
  // minimum. After that sums are made on the host.
  uint64_t piece_bytes = 4 * kMiB;
  uint64_t piece_bytes_min = 256 * kKiB;
  // What is summed where it lies needs no staging. Pieces are so long that the calls for one cost
  // next to nothing.
  uint64_t piece_bytes_in_place = 64 * kMiB;
  size_t allocations_max = 4096;  // For one rank.
  // Tensors that a NIC has on the GPU. Each has so many bytes at least, since a copy of less costs
  // next to nothing. All of them together have at most this part of the GPU's memory.
  uint64_t direct_bytes_min = 256 * kKiB;
  uint64_t direct_share = 16;
  // For so long the agent asks for what it posted without sleeping, because a wake-up takes longer
  // than most of it.
  int64_t watch_own_ns = 0;
  int64_t collective_deadline_ns = 30'000'000'000;
  int64_t rebuild_first_ns = 1'000'000'000;  // Doubles with each failure, to the maximum.
  int64_t rebuild_max_ns = 60'000'000'000;
  // How often the sleeping agent asks for what wakes nobody: communicators that start or launch;
  // errors of collectives, and aborts.
  int64_t ask_launch_every_ns = 100'000;
  int64_t ask_errors_every_ns = 10'000'000;
  // How often it asks for gradients: more seldom the longer a rank has brought none, within these
  // bounds.
  int64_t ask_gradients_first_ns = 100'000;
  int64_t ask_gradients_last_ns = 1'000'000;
  // How often, and for how long, a lost GPU is tried to be opened again.
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
  uint64_t memory_epoch = 0;  // The GPU's, when they were tried for.

  // Where a collective among so many GPUs leaves what was in `in`. With one GPU that is `in`
  // itself.
  gpu::DeviceSpan After(size_t group_size) const { return group_size == 1 ? in : out; }
};

// A GPU that ranks of this node use: its context, and what the agent keeps there.
struct NodeGpu {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::ImportCache> imports;
  gpu::StreamId signals;  // For the records of `taken` events only.
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

  // Opens the GPU on its first use. Afterwards the pinned staging of every lane is there.
  absl::StatusOr<NodeGpu*> Open(const gpu::GpuUuid& uuid);
  NodeGpu& At(const gpu::GpuUuid& uuid) { return gpus_.at(uuid); }
  gpu::Device& DeviceOf(const gpu::GpuUuid& uuid) { return *At(uuid).device; }
  NodeGpu* Find(const gpu::GpuUuid& uuid);
  // Nothing of the GPU is in use.
  void Close(const gpu::GpuUuid& uuid);
  const std::map<gpu::GpuUuid, NodeGpu>& gpus() const { return gpus_; }
  size_t gpu_count() const { return gpus_.size(); }
  gpu::Platform& platform() { return platform_; }

  // For epoll: one descriptor for all open devices (gpu::Device::WakeWhenDone). -1: none could be
  // made.
  int WaitDescriptor() const { return wakeups_.get(); }
  void DrainWakeups();

  // The groups of GPUs that make sums by one collective each; the host adds up the groups' sums.
  // There is one group, unless PCIe switches lie between the GPUs. Then the GPUs behind one switch
  // are a group, with those that are linked to them beside PCIe.
  const std::vector<GpuSet>& GroupsOf(const GpuSet& gpus);

  // Tries for as much staging memory on the GPU as is wanted, if a lane has less. Waits for the
  // GPU.
  void GrowStaging(NodeGpu& gpu, size_t lane) const;
  // Takes away a lane's part, with whatever runs on it. The lane needs another part (RenewPart),
  // which has no staging memory yet.
  LanePart TakeAside(const gpu::GpuUuid& uuid, size_t lane);
  absl::Status RenewPart(const gpu::GpuUuid& uuid, size_t lane);
  static void Drop(NodeGpu& gpu, const LanePart& part);

 private:
  absl::StatusOr<LanePart> NewPart(gpu::Device& device) const;
  const topology::Gpu* PlaceOf(const gpu::Device& device) const;

  const GpuStageOptions options_;
  gpu::Platform& platform_;
  const Descriptor wakeups_;  // An epoll of the devices' descriptors.
  std::map<gpu::GpuUuid, NodeGpu> gpus_;
  std::map<GpuSet, std::vector<GpuSet>> groups_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_NODE_H_
