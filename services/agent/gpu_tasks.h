// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_TASKS_H_
#define TALWEG_SERVICES_AGENT_GPU_TASKS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "libs/base/ids.h"
#include "libs/gpu/device.h"
#include "libs/pipeline/effects.h"
#include "services/agent/gpu_buffers.h"
#include "services/agent/gpu_gradients.h"
#include "services/agent/gpu_homes.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_surroundings.h"

namespace talweg::agent {

// Bytes of a tensor.
struct GpuRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool host_only = false;  // A collective for it has failed.
};

// What a rank brings into a sum, or where it gets a result.
struct GpuInput {
  LocalRank rank;
  bool on_device = false;
  gpu::GpuUuid gpu;
  gpu::DeviceSpan span;  // The whole tensor.
};

// The end of a round: the result goes into the ranks' tensors, then the ranks are told.
struct GpuDelivery {
  pipeline::CompleteRound round;
  std::vector<LocalRank> ranks;
  size_t tasks = 0;
  bool mirrors = false;  // It goes to the host first, and from there to these.
  std::vector<GpuInput> mirrored_for;
  bool recorded = false;
  int64_t recorded_ns = 0;
  bool wakes = false;  // When the `taken` are done.
};

// A slice to reduce, or a part of a result to bring. Lanes do it by pieces.
struct GpuTask {
  bool delivers = false;
  bool mirrors = false;           // A delivery from the GPU to the host.
  const GpuHome* home = nullptr;  // A NIC's memory: the target, or a delivery's source.
  uint64_t ticket = 0;
  pipeline::SliceBytes slice;
  bool is_final = false;
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;
  std::vector<GpuInput> inputs;  // A delivery's: the ranks that get it.
  std::deque<GpuRange> ranges;   // Not given to lanes.
  uint32_t pieces = 0;           // On lanes.
  bool abandoned = false;
  std::shared_ptr<GpuDelivery> delivery;

  bool is_narrow() const { return IsNarrowFloat(dtype); }
  bool all_on_device() const;
  // The GPUs that take part.
  GpuSet gpus() const;
  // The slice's part in `range`.
  pipeline::SliceBytes Bytes(const GpuRange& range) const;
};

// What is to be done on GPUs, in the order in which it came, and what of it lanes have not begun.
// Owned by the data thread.
class GpuTasks {
 public:
  // All outlive it.
  GpuTasks(const HostTensors& host, GpuEvents& events, const GpuLosses& losses, GpuBuffers& buffers,
           const GpuGradients& gradients)
      : host_(host), events_(events), losses_(losses), buffers_(buffers), gradients_(gradients) {}

  // ----- What is to be done. -----

  void AddReduce(const pipeline::ReduceSlice& reduce, const GpuHome* home);
  // `home`: where the result lies, if it does not lie on the host. `mirrors`: it goes to the host,
  // and then to those that `delivery` names.
  void AddDelivery(const std::shared_ptr<GpuDelivery>& delivery,
                   const std::vector<GpuInput>& targets, const std::vector<GpuRange>& ranges,
                   const GpuHome* home, bool mirrors);
  // The delivery's ranks that are here.
  std::vector<GpuInput> TargetsOf(const GpuDelivery& delivery) const;
  // The whole tensor.
  std::vector<GpuRange> AllOf(pipeline::TensorIndex tensor) const;
  // Whether anything was added since ClearNews.
  bool has_news() const { return has_news_; }
  void ClearNews() { has_news_ = false; }

  // ----- What lanes do of it. -----

  const std::deque<std::shared_ptr<GpuTask>>& waiting() const { return waiting_; }
  // Whether the core wants it still.
  bool IsWanted(const GpuTask& task) const {
    return task.delivers || (!task.abandoned && events_.ReduceWanted(task.ticket));
  }
  // Whether all of its memory on GPUs is there.
  bool IsReady(const GpuTask& task) const;
  // Memory may be mapped anew between its pieces.
  void FindMemory(GpuTask& task) const;
  // The task's next piece, of so many bytes at most, which is a lane's from now on.
  GpuRange Cut(const std::shared_ptr<GpuTask>& task, uint64_t bytes_max);
  // The piece is done.
  void OnPieceDone(const std::shared_ptr<GpuTask>& task);
  // It is not, and is the host's to do.
  void GiveBack(const std::shared_ptr<GpuTask>& task, GpuRange range);
  // Nobody wants the `i`-th that waits any more.
  void Drop(size_t i);

  // ----- Results of rounds that this agent alone finishes. -----

  // These bytes lie on the host so far, and nowhere else.
  void OnResultOnHost(pipeline::TensorIndex tensor, const GpuRange& range) {
    host_results_[tensor].push_back(range);
  }
  // The bytes that are to be brought from the host to the ranks.
  std::vector<GpuRange> RangesFromHost(pipeline::TensorIndex tensor) const;
  void ForgetResult(pipeline::TensorIndex tensor) { host_results_.erase(tensor); }

  void Abandon();
  void ForgetResults() { host_results_.clear(); }

 private:
  GpuInput InputOf(LocalRank rank, pipeline::TensorIndex tensor, Round round) const;
  void Add(std::shared_ptr<GpuTask> task);
  void OnDone(const std::shared_ptr<GpuTask>& task);
  // Its result is on the host: goes on to the ranks that wait for it.
  void OnMirrored(const std::shared_ptr<GpuDelivery>& delivery);

  const HostTensors& host_;
  GpuEvents& events_;
  const GpuLosses& losses_;
  GpuBuffers& buffers_;
  const GpuGradients& gradients_;
  std::deque<std::shared_ptr<GpuTask>> waiting_;  // Those that have ranges for lanes.
  std::map<pipeline::TensorIndex, std::vector<GpuRange>> host_results_;
  bool has_news_ = false;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_TASKS_H_
