// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_STALLS_H_
#define TALWEG_LIBS_PIPELINE_STALLS_H_

#include <cstdint>
#include <string>

#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/local_ranks.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/tick_timer.h"
#include "libs/pipeline/view_state.h"

namespace talweg::pipeline {

// Says whom a round waits for. Ends the job when a round that ranks here have pushed waits for
// others for `stall_ns`.
//
// A round may wait for ever if it is of a side tensor, or if all pushes here have kNobodyWaits.
class Stalls {
 public:
  // All outlive this.
  Stalls(const AgentCoreConfig* config, const ViewState* views, const LocalRanks* ranks,
         const TensorTable* tensors, Failures* failures, TickTimer* timer)
      : config_(config),
        views_(views),
        ranks_(ranks),
        tensors_(tensors),
        failures_(failures),
        timer_(timer) {}

  // A rank here has pushed.
  void OnPush(int64_t now_ns);
  void OnTick(int64_t now_ns, Effects& out);
  // Names those for whom the round waits. Returns "" if none is known.
  std::string WhomItWaitsFor(const AgentTensor& tensor, Round round) const;

 private:
  const AgentCoreConfig* const config_;
  const ViewState* const views_;
  const LocalRanks* const ranks_;
  const TensorTable* const tensors_;
  Failures* const failures_;
  TickTimer* const timer_;
  // When to look at the open rounds; kNever if none is open.
  int64_t due_ns_ = TickTimer::kNever;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_STALLS_H_
