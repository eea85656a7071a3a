// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_FAILURES_H_
#define TALWEG_LIBS_PIPELINE_FAILURES_H_

#include <optional>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/reductions.h"
#include "libs/pipeline/step_quiesce.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/tick_timer.h"
#include "libs/pipeline/view_state.h"
#include "libs/schedule/slice_queue.h"

namespace talweg::pipeline {

// How a tensor, or the whole job, fails here. A failure is final.
class Failures {
 public:
  // The parts that end with the job. All outlive this.
  struct Parts {
    ViewState* views;
    TensorTable* tensors;
    OwnerLinks* links;
    StepQuiesce* quiesce;
    schedule::SliceQueue* queue;
    Reductions* reductions;
    TickTimer* timer;
  };

  explicit Failures(const Parts& parts) : parts_(parts) {}
  Failures(const Failures&) = delete;
  Failures& operator=(const Failures&) = delete;

  // --- Failures of a tensor.

  void FailTensor(AgentTensor& tensor, Status status, const std::string& text, Effects& out);
  // Fails the tensor for this node's ranks only. Other nodes may still need the round that is held
  // here.
  void GiveUp(AgentTensor& tensor, Status status, const std::string& text, Effects& out);
  // The open round needs a rank or a member that has left. Fails the job; or the tensor alone, at
  // all nodes, if only some ranks have it.
  void FailForLeft(AgentTensor& tensor, const std::string& text, Effects& out);
  // This node's owners are to hear of the tensor (again), and of its failure.
  void TellOwners(const AgentTensor& tensor);

  // --- Failures of the job. These do nothing if it has failed already.

  void FailJob(const std::string& text, Effects& out);
  // Also tells the scheduler.
  void ReportAndFail(const std::string& text, Effects& out,
                     std::optional<Rank> rank = std::nullopt);
  // As ReportAndFail; the text says that this node cannot go on.
  void CannotGoOn(const std::string& text, Effects& out);

 private:
  // Answers the pending declarations with the failure.
  void RefusePending(AgentTensor& tensor, Status status, const std::string& text, Effects& out);

  const Parts parts_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_FAILURES_H_
