// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_SERVED_JOB_H_
#define TALWEG_SERVICES_AGGREGATOR_SERVED_JOB_H_

#include <utility>

#include "libs/aggregation/aggregator_core.h"
#include "libs/aggregation/memory_budget.h"
#include "libs/transport/transport.h"
#include "services/aggregator/held_credit.h"
#include "services/aggregator/job_memory.h"
#include "services/aggregator/slot_memory.h"
#include "services/aggregator/sum_turns.h"

namespace talweg::aggregator {

// One life of a job at this aggregator: its core, memory, waiting sums and held credit.
struct ServedJob {
  ServedJob(aggregation::AggregatorCoreConfig config, aggregation::MemoryBudget* budget,
            transport::Transport* transport, MemorySource* source, SlotLimits slots,
            SharedLink::Lane* lane)
      : core(std::move(config), budget),
        memory(core.config().job, transport, source, slots),
        credit(core.config().job, lane) {}

  JobId id() const { return core.config().job; }

  aggregation::AggregatorCore core;
  aggregation::AggregatorCore::Effects effects;  // Not yet performed.
  bool is_performing = false;                    // EffectPerformer performs them.
  JobMemory memory;
  JobSums sums;
  HeldCredit credit;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SERVED_JOB_H_
