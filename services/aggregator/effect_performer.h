// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_EFFECT_PERFORMER_H_
#define TALWEG_SERVICES_AGGREGATOR_EFFECT_PERFORMER_H_

#include <absl/status/statusor.h>

#include <vector>

#include "libs/aggregation/effects.h"
#include "libs/wire/frames.h"
#include "services/aggregator/job_connection.h"
#include "services/aggregator/job_connections.h"
#include "services/aggregator/served_job.h"
#include "services/aggregator/sum_turns.h"

namespace talweg::aggregator {

// Performs the cores' effects on the connections, memory and sums that they name. One owner thread.
// `connections` and `turns` outlive this object.
class EffectPerformer {
 public:
  EffectPerformer(JobConnections* connections, SumTurns* turns)
      : connections_(connections), turns_(turns) {}

  // Performs the effects of the job's core, and the effects of these, until there are none.
  void Perform(ServedJob& job);
  // Memory that the job's core has asked for has come, or could not. Performs what follows.
  void OnAllocated(ServedJob& job, const aggregation::AllocateMemory& asked,
                   const absl::StatusOr<wire::RemoteRef>& ref);
  // Like Perform, after a frame from `from`. `contributions` are the frame's entries; null: it has
  // none.
  void PerformFrame(ServedJob& job, JobConnection& from,
                    const std::vector<wire::Contribute>* contributions);

 private:
  void Do(ServedJob& job, const aggregation::Send& effect);
  void Do(ServedJob& job, const aggregation::ReturnCredit& effect);
  void Do(ServedJob& job, const aggregation::AllocateMemory& effect);
  void Do(ServedJob& job, const aggregation::ReleaseMemory& effect);
  void Do(ServedJob& job, const aggregation::StoreInline& effect);
  void Do(ServedJob& job, const aggregation::Sum& effect);
  void Do(ServedJob& job, const aggregation::CopyResult& effect);
  void Do(ServedJob& job, const aggregation::SendResult& effect);
  void Do(ServedJob& job, const aggregation::CloseConnection& effect);

  JobConnections* const connections_;
  SumTurns* const turns_;
  // The frame that is being handled, for StoreInline.
  const std::vector<wire::Contribute>* contributions_ = nullptr;
  JobConnection* contributor_ = nullptr;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_EFFECT_PERFORMER_H_
