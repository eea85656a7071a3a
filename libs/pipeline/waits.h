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

// It knows whom this member waits for, and for how long (docs/protocol.md, sections 7 and 8):
//
//   an aggregator that does not answer        unreachable_ns; the scheduler could have told before
//   the scheduler, where its word is needed   unreachable_ns of its silence
//   a member that has no connection           unreachable_ns, if the scheduler is as long silent
//   a member that is connected                as long as it takes
//   a member that has left                    not at all
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
  // Members that are not in the view are not waited for.
  void OnView(const view::View& view);
  // The member waits for its view's aggregators to answer, or to decide.
  void OnPhase(int64_t now_ns);
  // Whether ranks here could take part in steps at once.
  void OnRanksReady(bool ready) { ranks_ready_ = ready; }

  // --- What owners say: a round of a tensor waits, or the epoch's reports do (no tensor).

  void OnTensorWaiting(AgentTensor& tensor, AggregatorIndex from, const wire::Waiting& entry,
                       int64_t now_ns, Effects& out);
  void OnEpochWaiting(AggregatorIndex from, const wire::Waiting& entry, int64_t now_ns,
                      Effects& out);

  // --- Ticks.

  // Fails the job if somebody is waited for too long.
  void CheckSilence(int64_t now_ns, Effects& out);
  // Tells of the aggregators that are waited for.
  void TellAggregators(int64_t now_ns, Effects& out);

 private:
  // Whether people have not been told of these nodes lately.
  bool IsNews(const wire::Waiting& entry, int64_t now_ns, NodesNamed& named) const;
  // What of this job only the scheduler can bring about now, or "".
  std::string NeededOfScheduler() const;
  void CheckScheduler(int64_t now_ns, Effects& out);
  void CheckUnreachable(int64_t now_ns, Effects& out);
  // Whether the job has failed: `what` needs a member that has been away for too long.
  bool CheckAbsent(AggregatorIndex from, const wire::Waiting& entry, const std::string& what,
                   Effects& out);
  // Which of the missing has left, if one has: `what` needs it.
  std::string LeftText(const wire::Waiting& entry, const std::string& what) const;
  // Whether something here cannot end without a word of `owner`.
  bool WaitFor(AggregatorIndex owner) const;
  bool NamesThisNode(const wire::Waiting& entry) const;

  const AgentCoreConfig* const config_;
  const ViewState* const views_;
  const TensorTable* const tensors_;
  const OwnerLinks* const links_;
  const StepQuiesce* const quiesce_;
  Failures* const failures_;
  TickTimer* const timer_;
  SchedulerSilence silence_;
  bool ranks_ready_ = true;
  std::map<NodeRank, std::string> left_members_;  // And what they said.
  NodesNamed epoch_named_;
  int64_t phase_since_ns_ = 0;
  int64_t phase_notice_ns_ = 0;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_WAITS_H_
