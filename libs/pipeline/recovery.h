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

// What becomes of the open rounds in a new view (docs/protocol.md, section 6). Each tensor is
// frozen and reported to its primary owner, which decides: do the round again, finish it, or abort
// it. The member is kActive when all its tensors are decided.
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

  // The view is another one, and nothing of an older one can come any more.
  void FreezeAll(Effects& out);
  // To an owner that is ready: the tensors that it decides on and has not.
  void SendReport(const Owner& owner, Effects& out) const;
  void OnDecision(AggregatorIndex from, const wire::Decision& decision, Effects& out);
  // kActive if all is decided, and then perhaps quiesced.
  void Settle(Effects& out);

 private:
  void Freeze(AgentTensor& tensor, Effects& out);
  // What is wrong with a decision, or "".
  std::string Problem(const AgentTensor& tensor, const wire::Decision& decision) const;
  std::string FinishProblem(const AgentTensor& tensor, const wire::Decision& decision) const;
  // Whether the decision asks for bytes that are given up, where the job has one view.
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
