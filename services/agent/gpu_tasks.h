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

// A range of a tensor's bytes.
struct GpuRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool host_only = false;  // The host must do it: a lane has failed to.
};

// A rank's input to a sum, or where the rank gets a result.
struct GpuInput {
  LocalRank rank;
  bool on_device = false;
  gpu::GpuUuid gpu;
  gpu::DeviceSpan span;  // The whole tensor.
};

// The end of a round: the result is copied into the ranks' tensors, then the ranks are told.
struct GpuDelivery {
  pipeline::CompleteRound round;
  std::vector<LocalRank> ranks;
  size_t tasks = 0;
  bool mirrors = false;  // The result goes to the host first, and from there to `mirrored_for`.
  std::vector<GpuInput> mirrored_for;
  bool recorded = false;
  int64_t recorded_ns = 0;
  bool wakes = false;  // The GPUs wake this thread when the `taken` events are done.
};

// A slice to reduce, or a part of a result to deliver. Lanes do it in pieces.
struct GpuTask {
  bool delivers = false;
  bool mirrors = false;           // A delivery from the GPU to the host.
  const GpuHome* home = nullptr;  // The sum's target, or a delivery's source. Null: the host.
  uint64_t ticket = 0;
  pipeline::SliceBytes slice;
  bool is_final = false;
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;
  std::vector<GpuInput> inputs;  // A delivery: the ranks that get the result.
  std::deque<GpuRange> ranges;   // Not yet given to lanes.
  uint32_t pieces = 0;           // Those that lanes have.
  bool abandoned = false;
  std::shared_ptr<GpuDelivery> delivery;

  bool is_narrow() const { return IsNarrowFloat(dtype); }
  bool all_on_device() const;
  // Returns the GPUs that take part.
  GpuSet gpus() const;
  // Returns the slice's part in `range`.
  pipeline::SliceBytes Bytes(const GpuRange& range) const;
};

// The tasks of the GPUs, in the order in which they came, as far as lanes have not begun them.
// Owned by the data thread.
class GpuTasks {
 public:
  // All outlive this object.
  GpuTasks(const HostTensors& host, GpuEvents& events, const GpuLosses& losses, GpuBuffers& buffers,
           const GpuGradients& gradients)
      : host_(host), events_(events), losses_(losses), buffers_(buffers), gradients_(gradients) {}

  // ----- What is to be done. -----

  void AddReduce(const pipeline::ReduceSlice& reduce, const GpuHome* home);
  // `home`: where the result lies; null: on the host. `mirrors`: it goes from the home to the host,
  // and then to `delivery->mirrored_for`.
  void AddDelivery(const std::shared_ptr<GpuDelivery>& delivery,
                   const std::vector<GpuInput>& targets, const std::vector<GpuRange>& ranges,
                   const GpuHome* home, bool mirrors);
  // Returns the delivery's ranks that have not left.
  std::vector<GpuInput> TargetsOf(const GpuDelivery& delivery) const;
  // Returns one range: the whole tensor.
  std::vector<GpuRange> AllOf(pipeline::TensorIndex tensor) const;
  // Returns whether a task was added since ClearNews.
  bool has_news() const { return has_news_; }
  void ClearNews() { has_news_ = false; }

  // ----- What lanes take. -----

  const std::deque<std::shared_ptr<GpuTask>>& waiting() const { return waiting_; }
  // Returns whether the task's output is still wanted.
  bool IsWanted(const GpuTask& task) const {
    return task.delivers || (!task.abandoned && events_.ReduceWanted(task.ticket));
  }
  // Returns whether all of the task's memory on GPUs may be used: no GPU of it is lost, and
  // gradients that were lost have been pushed again.
  bool IsReady(const GpuTask& task) const;
  // Looks up the addresses of the task's memory, which may be mapped again between its pieces.
  void FindMemory(GpuTask& task) const;
  // Cuts off the task's next piece, of at most `bytes_max` bytes, for a lane.
  GpuRange Cut(const std::shared_ptr<GpuTask>& task, uint64_t bytes_max);
  // The piece is done.
  void OnPieceDone(const std::shared_ptr<GpuTask>& task);
  // The piece is not done. The host has to do it.
  void GiveBack(const std::shared_ptr<GpuTask>& task, GpuRange range);
  // Drops the `i`-th waiting task, whose output is not wanted any more.
  void Drop(size_t i);

  // ----- Results of rounds that this agent alone finishes. -----

  // These bytes of the result lie on the host only, and no rank has them yet.
  void OnResultOnHost(pipeline::TensorIndex tensor, const GpuRange& range) {
    host_results_[tensor].push_back(range);
  }
  // Returns the ranges that a delivery has to copy from the host to the ranks.
  std::vector<GpuRange> RangesFromHost(pipeline::TensorIndex tensor) const;
  void ForgetResult(pipeline::TensorIndex tensor) { host_results_.erase(tensor); }

  void Abandon();
  void ForgetResults() { host_results_.clear(); }

 private:
  GpuInput InputOf(LocalRank rank, pipeline::TensorIndex tensor, Round round) const;
  void Add(std::shared_ptr<GpuTask> task);
  void OnDone(const std::shared_ptr<GpuTask>& task);
  // The delivery's result is on the host. Copies it to the ranks in `mirrored_for`.
  void OnMirrored(const std::shared_ptr<GpuDelivery>& delivery);

  const HostTensors& host_;
  GpuEvents& events_;
  const GpuLosses& losses_;
  GpuBuffers& buffers_;
  const GpuGradients& gradients_;
  std::deque<std::shared_ptr<GpuTask>> waiting_;  // Those that still have ranges for lanes.
  std::map<pipeline::TensorIndex, std::vector<GpuRange>> host_results_;
  bool has_news_ = false;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_TASKS_H_
