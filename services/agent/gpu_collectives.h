// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_COLLECTIVES_H_
#define TALWEG_SERVICES_AGENT_GPU_COLLECTIVES_H_

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libs/gpu/device.h"
#include "services/agent/gpu_node.h"

namespace talweg::agent {

// Where failed communicators go. Aborting one may take long, or for ever (ncclCommAbort waits for
// its own threads). So an agent aborts each on a thread of its own.
class Graveyard {
 public:
  virtual ~Graveyard() = default;
  // Aborts and destroys the communicator, sooner or later. Returns a name for IsBuried.
  virtual uint64_t Bury(std::unique_ptr<gpu::Communicator> communicator) = 0;
  virtual bool IsBuried(uint64_t name) = 0;
};

// The communicators of a node: one for each set of GPUs that tensors are spread over. This class
// makes each when it is first needed, and again after a failure. Owned by the data thread.
class GpuCollectives {
 public:
  enum class Readiness : uint8_t {
    kReady,
    kBusy,         // The communicator starts, or launches for another lane. Ask again.
    kFailed,       // It failed now, or was not ready in time. Call Fail.
    kUnavailable,  // There is none for now. Take another path.
  };

  GpuCollectives(const GpuStageOptions& options, GpuNode& node, Graveyard& graveyard)
      : options_(options), node_(node), graveyard_(graveyard) {}
  // Communicators in the graveyard may outlive this object. Then so do their devices (GpuNode).
  ~GpuCollectives();

  // Returns whether the collective path may be taken, and starts a communicator if there is none.
  // Returns true while a start is under way: if the path depended on time, so would the bits.
  bool MayUse(const GpuSet& gpus, int64_t now_ns);
  // The same for all groups that have more than one GPU.
  bool MayUseAll(const std::vector<GpuSet>& groups, int64_t now_ns);
  Readiness Ask(const GpuSet& gpus, int64_t now_ns);
  gpu::Communicator& At(const GpuSet& gpus) { return *entries_.at(gpus).communicator; }
  absl::Status Error(const GpuSet& gpus) const;

  // Aborts the communicator. Its work may still run on the lane parts `aside`, so they are kept
  // until the abort is over.
  void Fail(const GpuSet& gpus, std::vector<std::pair<gpu::GpuUuid, LanePart>> aside,
            int64_t now_ns);
  // Frees the lane parts of aborts that are over. Returns how many parts these were.
  int Poll();
  // No rank uses the GPU any more. Ends the communicators of the GPU. Returns false while one is
  // still being aborted.
  bool Release(const gpu::GpuUuid& uuid);
  bool HasAside() const { return !buried_.empty(); }
  // Returns whether a communicator of the GPU is being aborted. Work that was posted to the GPU may
  // hang until the abort is over.
  bool IsEnding(const gpu::GpuUuid& uuid) const;
  // Returns once why there are no communicators.
  std::string TakeNote() { return std::exchange(note_, ""); }

 private:
  struct Entry {
    std::unique_ptr<gpu::Communicator> communicator;
    int64_t started_ns = 0;
    bool was_ready = false;
    bool unavailable = false;  // For good.
    int64_t retry_at_ns = 0;
    int64_t backoff_ns = 0;
    absl::Status error;
  };
  struct Buried {
    uint64_t name = 0;
    GpuSet gpus;
    std::vector<std::pair<gpu::GpuUuid, LanePart>> aside;
    bool recorded = false;
  };

  const GpuStageOptions options_;
  GpuNode& node_;
  Graveyard& graveyard_;
  std::map<GpuSet, Entry> entries_;
  std::vector<Buried> buried_;
  std::string note_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_COLLECTIVES_H_
