// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_ROUNDS_H_
#define TALWEG_LIBS_PIPELINE_ROUNDS_H_

#include <cstdint>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/active_round.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/reductions.h"
#include "libs/pipeline/step_quiesce.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/view_state.h"
#include "libs/schedule/slice_queue.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// The rounds of tensors: how slices enter the queue, and how a slice and a round end
// (docs/protocol.md, sections 5 and 7). SliceSender takes slices from the queue to their owners.
class Rounds {
 public:
  // All outlive this.
  Rounds(const ViewState* views, TensorTable* tensors, const OwnerLinks* links,
         schedule::SliceQueue* queue, Reductions* reductions, StepQuiesce* quiesce,
         Failures* failures, AgentCoreCounters* counters)
      : views_(views),
        tensors_(tensors),
        links_(links),
        queue_(queue),
        reductions_(reductions),
        quiesce_(quiesce),
        failures_(failures),
        counters_(counters) {}

  // Whether slices of the active round may leave.
  bool MaySend(const AgentTensor& tensor) const;
  // Ends the open round of a dead tensor as soon as one local rank has pushed it, and returns true.
  // The others may have taken the end of an earlier round, and push it no more.
  bool GiveUpDead(AgentTensor& tensor, Effects& out);
  // Queues the idle slices, if they may leave. Ends a round that can have no result.
  void Queue(AgentTensor& tensor, Effects& out);

  void OnResult(AggregatorIndex from, Incarnation incarnation, const wire::Result& entry,
                uint32_t position, Effects& out);
  // The performer has decoded a result, or `is_sound` is false and it could not.
  void OnDecoded(uint64_t ticket, bool is_sound, Effects& out);
  // A slice has its result: the sum of `ranks_summed` ranks, of `length_bytes`.
  void SliceDone(AgentTensor& tensor, SliceIndex slice, uint32_t ranks_summed,
                 uint32_t length_bytes, Effects& out);
  // A slice is over without a result.
  void SliceOver(AgentTensor& tensor, SliceIndex slice, Effects& out);
  // What ranks are told of the held round, which has a result.
  static CompleteRound CompletionOf(const AgentTensor& tensor);
  // The open round is over without a result.
  void Abort(AgentTensor& tensor, Status status, const std::string& text, Effects& out);

 private:
  // Whether nobody has yet to say what becomes of the active round.
  bool IsDecided(const AgentTensor& tensor) const;
  // Whether `entry` is a result of a slice that this node has sent, and fits it.
  bool IsExpected(const AgentTensor& tensor, Incarnation incarnation,
                  const wire::Result& entry) const;
  // Returns false if the entry's bytes are not what this node wants.
  bool TakeBytes(const AgentTensor& tensor, const wire::Result& entry, uint32_t position,
                 Effects& out);
  void StartDecoding(AgentTensor& tensor, const wire::Result& entry, Effects& out);
  void RoundDone(AgentTensor& tensor, Effects& out);
  // The epoch of the sums of the active round.
  Epoch SumEpoch(const AgentTensor& tensor) const;

  const ViewState* const views_;
  TensorTable* const tensors_;
  const OwnerLinks* const links_;
  schedule::SliceQueue* const queue_;
  Reductions* const reductions_;
  StepQuiesce* const quiesce_;
  Failures* const failures_;
  AgentCoreCounters* const counters_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_ROUNDS_H_
