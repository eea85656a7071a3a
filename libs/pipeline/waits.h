// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_WAITS_H_
#define TALWEG_LIBS_PIPELINE_WAITS_H_

#include <cstdint>
#include <map>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/scheduler_silence.h"
#include "libs/pipeline/step_quiesce.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/tick_timer.h"
#include "libs/pipeline/view_state.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// Tracks whom this member waits for, and for how long (docs/protocol.md, sections 7 and 8):
//
//   an aggregator that does not answer   unreachable_ns; the scheduler has as long to replace it
//   the scheduler, where it is needed    unreachable_ns of its silence
//   a member that has no connection      unreachable_ns, if the scheduler is silent as long
//   a member that is connected           as long as it takes (but see Stalls)
//   a member that has left               not at all
class Waits {
 public:
  // All outlive this.
  Waits(const AgentCoreConfig* config, const ViewState* views, const TensorTable* tensors,
        const OwnerLinks* links, const StepQuiesce* quiesce, Failures* failures, TickTimer* timer)
      : config_(config),
        views_(views),
        tensors_(tensors),
        links_(links),
        quiesce_(quiesce),
        failures_(failures),
        timer_(timer),
        silence_(config->unreachable_ns, timer) {}

  // --- What happens.

  SchedulerSilence& scheduler() { return silence_; }
  void OnMemberLeft(NodeRank node, const std::string& text) { left_members_[node] = text; }
  // Forgets left members that are not in the view.
  void OnView(const view::View& view);
  // The member begins to wait for the view's aggregators to answer, or to decide.
  void OnPhase(int64_t now_ns);
  // Whether this node's ranks could take part in steps at once.
  void OnRanksReady(bool ready) { ranks_ready_ = ready; }

  // --- What owners say: a tensor's round waits, or the epoch waits for reports (no tensor).

  // Whether the entry's round, or epoch, waits for this node.
  bool NamesThisNode(const wire::Waiting& entry) const;
  void OnTensorWaiting(AgentTensor& tensor, AggregatorIndex from, const wire::Waiting& entry,
                       int64_t now_ns, Effects& out);
  void OnEpochWaiting(AggregatorIndex from, const wire::Waiting& entry, int64_t now_ns,
                      Effects& out);

  // --- Ticks.

  // Fails the job if it has waited for a peer for too long.
  void CheckSilence(int64_t now_ns, Effects& out);
  // Reports the aggregators that this member waits for.
  void TellAggregators(int64_t now_ns, Effects& out);

 private:
  // Whether these nodes have not been reported lately. If so, notes them in `named`.
  bool IsNews(const wire::Waiting& entry, int64_t now_ns, NodesNamed& named) const;
  // Returns what only the scheduler can bring about for this job now, or "".
  std::string NeededOfScheduler() const;
  void CheckScheduler(int64_t now_ns, Effects& out);
  void CheckUnreachable(int64_t now_ns, Effects& out);
  // Fails the job if `what` needs a member that has been away for too long. Returns whether it did.
  bool CheckAbsent(AggregatorIndex from, const wire::Waiting& entry, const std::string& what,
                   int64_t now_ns, Effects& out);
  // Names a missing member that has left, if there is one: `what` needs it.
  std::string LeftText(const wire::Waiting& entry, const std::string& what) const;
  // Whether something here cannot end without an answer of `owner`.
  bool WaitFor(AggregatorIndex owner) const;

  const AgentCoreConfig* const config_;
  const ViewState* const views_;
  const TensorTable* const tensors_;
  const OwnerLinks* const links_;
  const StepQuiesce* const quiesce_;
  Failures* const failures_;
  TickTimer* const timer_;
  SchedulerSilence silence_;
  bool ranks_ready_ = true;
  std::map<NodeRank, std::string> left_members_;  // With what they said.
  NodesNamed epoch_named_;
  int64_t phase_since_ns_ = 0;
  int64_t phase_notice_ns_ = 0;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_WAITS_H_
