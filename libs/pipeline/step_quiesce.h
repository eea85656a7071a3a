// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_STEP_QUIESCE_H_
#define TALWEG_LIBS_PIPELINE_STEP_QUIESCE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/local_ranks.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/view_state.h"

namespace talweg::pipeline {

// Stops ranks at the end of a step, where joiners enter and ranks take the numbers of a new view.
//
//   none --Ask--> asked --TryAnswer, OnRanksStop--> answered
//    ^              |                                  |
//    +-- LetGo, OnResume, Forget ----------------------+
class StepQuiesce {
 public:
  // All outlive this.
  StepQuiesce(const ViewState* views, const LocalRanks* ranks, const TensorTable* tensors)
      : views_(views), ranks_(ranks), tensors_(tensors), at_boundary_(ranks->count()) {}

  // With step 0, asks for the latest step that a rank here is in; with another step, for its end.
  void Ask(uint64_t id, uint64_t step, Effects& out);
  // Answers step 0: `ended` says how many steps each rank has ended.
  void OnRanksStop(const std::vector<uint64_t>& ended, Effects& out);
  // The rank waits, and has ended `steps` steps since it joined.
  void OnRankAtBoundary(LocalRank rank, uint64_t steps, Effects& out);
  // Sends Quiesced if all ranks here have ended the step and no round is open. If a round of a
  // later step has begun, asks for that step's end instead.
  void TryAnswer(Effects& out);

  void OnResume(uint64_t id, Effects& out);
  // Ends the request: ranks go on.
  void LetGo(Effects& out);
  // The job has failed: ends the request, and no rank goes on.
  void Forget() { asked_.reset(); }

  bool is_asked() const { return asked_.has_value(); }
  bool AnyRankWaits() const;
  // The job's step at whose end the rank waits.
  std::optional<uint64_t> StepEndedBy(LocalRank rank) const;

 private:
  struct Asked {
    uint64_t id = 0;
    uint64_t step = 0;
    bool is_answered = false;
  };

  bool AllHaveEnded(uint64_t step) const;
  // Whether a round has gone on without ranks here that wait. They have made all pushes of their
  // step, so the round is of a later one. The ranks that began that step may be gone.
  bool LaterStepHasBegun() const;

  const ViewState* const views_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  std::optional<Asked> asked_;
  std::vector<std::optional<uint64_t>> at_boundary_;  // By local rank: the steps that it has ended,
                                                      // if it waits.
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_STEP_QUIESCE_H_
