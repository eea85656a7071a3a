// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_COMBINE_H_
#define TALWEG_SERVICES_AGENT_COMBINE_H_

#include <cstddef>
#include <span>

#include "libs/base/dtype.h"
#include "libs/reduce/reduce.h"

namespace talweg::agent {

// Returns the hop that combines this node's ranks. `is_final`: no other node takes part, so the
// output is the round's result and not a contribution to it. Not for broadcasts.
reduce::ReduceSpec RankHop(DType dtype, Op op, bool is_final, size_t rank_count);

// Combines the ranks' bytes of one slice, in rank order, into the node's contribution, which stands
// for `rank_count` ranks. All are in host memory. A broadcast copies the first input. `output` has
// whole elements and overlaps no input.
void CombineRanks(DType dtype, Op op, bool is_final, size_t rank_count,
                  std::span<const std::byte* const> inputs, std::span<std::byte> output);

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_COMBINE_H_
