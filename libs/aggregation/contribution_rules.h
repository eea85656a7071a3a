// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_CONTRIBUTION_RULES_H_
#define TALWEG_LIBS_AGGREGATION_CONTRIBUTION_RULES_H_

#include <string>

#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/present_view.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

// What a contribution must be like, and what those of a round must have in common:
// docs/protocol.md, section 5. Pure functions.
namespace talweg::aggregation {

// Whether it is longer than its slice, or says another length than it has, or no whole elements.
bool LengthIsWrong(const AggregatorTensor& tensor, const LocalSlice& slice,
                   const wire::Contribute& entry);

// Why its mode and form are not what this member may give to this slice, or "".
std::string ModeProblem(const PresentView& view, const AggregatorTensor& tensor,
                        const LocalSlice& slice, MemberIndex member, const wire::Contribute& entry);

// What the members of a complete round do not agree on, naming both sides, or "".
std::string RoundDisagreement(const PresentView& view, const AggregatorTensor& tensor,
                              const LocalSlice& slice);

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_CONTRIBUTION_RULES_H_
