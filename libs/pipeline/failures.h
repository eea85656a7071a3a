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

// How a tensor, or the whole job, ends here. Nothing leads back.
class Failures {
 public:
  // What ends with the job. All outlive this.
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

  // --- Of a tensor.

  void FailTensor(AgentTensor& tensor, Status status, const std::string& text, Effects& out);
  // For the ranks alone: the others may need the round that is held here.
  void GiveUp(AgentTensor& tensor, Status status, const std::string& text, Effects& out);
  // A rank or a member that the open round needs has left: the job's failure, or that of a tensor
  // which only some ranks have.
  void FailForLeft(AgentTensor& tensor, const std::string& text, Effects& out);

  // --- Of the job. Ignored when it has failed.

  void FailJob(const std::string& text, Effects& out);
  // Tells the scheduler, too.
  void ReportAndFail(const std::string& text, Effects& out,
                     std::optional<Rank> rank = std::nullopt);
  // For a reason of this node's own.
  void CannotGoOn(const std::string& text, Effects& out);

 private:
  // Answers the declarations that wait.
  void RefusePending(AgentTensor& tensor, Status status, const std::string& text, Effects& out);

  const Parts parts_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_FAILURES_H_
