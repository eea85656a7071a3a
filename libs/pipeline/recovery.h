// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_RECOVERY_H_
#define TALWEG_LIBS_PIPELINE_RECOVERY_H_

#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/rounds.h"
#include "libs/pipeline/step_quiesce.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/view_state.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// Recovers the open rounds in a new view (docs/protocol.md, section 6). Each tensor is frozen and
// reported to its primary owner. The owner decides: do the round again, finish it, or abort it. The
// member becomes kActive when all its tensors are decided.
class Recovery {
 public:
  // All outlive this.
  Recovery(const AgentCoreConfig* config, ViewState* views, TensorTable* tensors,
           const OwnerLinks* links, Rounds* rounds, StepQuiesce* quiesce, Failures* failures,
           AgentCoreCounters* counters)
      : config_(config),
        views_(views),
        tensors_(tensors),
        links_(links),
        rounds_(rounds),
        quiesce_(quiesce),
        failures_(failures),
        counters_(counters) {}

  // The member is in a new view, and nothing of an older one can come any more.
  void FreezeAll(Effects& out);
  // Reports to a ready owner the tensors that it has yet to decide on.
  void SendReport(const Owner& owner, Effects& out) const;
  void OnDecision(AggregatorIndex from, const wire::Decision& decision, Effects& out);
  // If all is decided: enters kActive, and answers a quiesce if it can.
  void Settle(Effects& out);

 private:
  void Freeze(AgentTensor& tensor, Effects& out);
  // Returns what is wrong with a decision, or "".
  std::string Problem(const AgentTensor& tensor, const wire::Decision& decision) const;
  std::string FinishProblem(const AgentTensor& tensor, const wire::Decision& decision) const;
  // Whether the decision needs bytes that a job of one view has given up.
  bool AsksForGivenUp(const AgentTensor& tensor, const wire::Decision& decision) const;
  void CarryOut(AgentTensor& tensor, const wire::Decision& decision, Effects& out);

  const AgentCoreConfig* const config_;
  ViewState* const views_;
  TensorTable* const tensors_;
  const OwnerLinks* const links_;
  Rounds* const rounds_;
  StepQuiesce* const quiesce_;
  Failures* const failures_;
  AgentCoreCounters* const counters_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_RECOVERY_H_
