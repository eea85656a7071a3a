// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_QUIESCE_H_
#define TALWEG_LIBS_MEMBERSHIP_QUIESCE_H_

#include <cstdint>

#include "libs/membership/aggregator_pool.h"
#include "libs/membership/live_job.h"
#include "libs/membership/numbers.h"
#include "libs/membership/turn.h"
#include "libs/view/view.h"

// How a running job is stopped between two steps, so that joiners can enter (docs/protocol.md,
// section 2):
//
//   none --joiners, and all of the view are here--> which step? --all answered--> end step N
//     ^                                                 |                             |
//     +-- cancelled: no joiner is left, a loss ---------+-----------------------------+
//                                                        all answered: the view is due
namespace talweg::membership {

// Advances the job's quiesce. Returns true if all members have stopped: the view that admits the
// joiners is to be made.
bool AdvanceQuiesce(LiveJob& job, const AggregatorPool& pool, Numbers& numbers, Turn& turn);

// A member says that it has stopped. `step`: the latest step that one of its ranks is in, or the
// step that it was told. An answer to another quiesce is ignored.
void OnQuiesceAnswer(LiveJob& job, const view::MemberIdentity& member, QuiesceId quiesce,
                     uint64_t step, Turn& turn);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_QUIESCE_H_
