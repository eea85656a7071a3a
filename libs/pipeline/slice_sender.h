// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_SLICE_SENDER_H_
#define TALWEG_LIBS_PIPELINE_SLICE_SENDER_H_

#include <cstdint>
#include <map>
#include <optional>

#include "libs/base/ids.h"
#include "libs/pipeline/active_round.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/reductions.h"
#include "libs/pipeline/rounds.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/view_state.h"
#include "libs/schedule/slice_queue.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// Takes slices from the queue to their owners, through the local reduction if there is one. Slices
// that are ready at the same time leave together.
class SliceSender {
 public:
  // All outlive this.
  SliceSender(const AgentCoreConfig* config, const ViewState* views, TensorTable* tensors,
              const OwnerLinks* links, schedule::SliceQueue* queue, Reductions* reductions,
              Rounds* rounds, Failures* failures, AgentCoreCounters* counters)
      : config_(config),
        views_(views),
        tensors_(tensors),
        links_(links),
        queue_(queue),
        reductions_(reductions),
        rounds_(rounds),
        failures_(failures),
        counters_(counters) {}

  // Sends the slices that may leave. Call it only when the view's fences are passed.
  void Flush(int64_t now_ns, Effects& out);
  // `travel_bytes`: how many bytes the slice takes encoded; nullopt if it is not.
  void OnReduced(uint64_t ticket, std::optional<uint32_t> travel_bytes, int64_t now_ns,
                 Effects& out);
  // The connection to `owner` broke: slices that it has not answered become idle again.
  void ForgetOwner(AggregatorIndex owner);
  void OnRefused(AggregatorIndex from, const wire::Refused& entry, Effects& out);

 private:
  using Sends = std::map<ConnectionId, Send>;  // What leaves with the present Flush.

  // A slice was taken from the queue: sends it, has it reduced, or ends it.
  void Dispatch(AgentTensor& tensor, SliceIndex slice, Sends& sends, Effects& out);
  // Whether a queued slice is still wanted.
  bool IsWanted(const schedule::QueuedSlice& queued);
  bool IsIn(SliceState state, const AgentTensor& tensor, Round round, SliceIndex slice) const;
  void StartReduction(AgentTensor& tensor, SliceIndex slice, Effects& out);
  // Returns the credit of a reduction that does not leave.
  void GiveBack(const Reduction& reduced, int64_t now_ns);
  void SendSlice(AgentTensor& tensor, SliceIndex slice, uint32_t travel_bytes, Sends& sends,
                 Effects& out);
  wire::Contribute EntryOf(const AgentTensor& tensor, SliceIndex slice,
                           uint32_t travel_bytes) const;

  const AgentCoreConfig* const config_;
  const ViewState* const views_;
  TensorTable* const tensors_;
  const OwnerLinks* const links_;
  schedule::SliceQueue* const queue_;
  Reductions* const reductions_;
  Rounds* const rounds_;
  Failures* const failures_;
  AgentCoreCounters* const counters_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_SLICE_SENDER_H_
