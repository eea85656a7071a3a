// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_CONTRIBUTION_RULES_H_
#define TALWEG_LIBS_AGGREGATION_CONTRIBUTION_RULES_H_

#include <string>

#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/present_view.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

// What a contribution must be like, and what the contributions to a round must have in common
// (docs/protocol.md, section 5). Pure functions.
namespace talweg::aggregation {

// Whether the contribution is longer than its slice, has another length than it says, ends within
// an element, or takes more bytes than its encoding may need.
bool LengthIsWrong(const AggregatorTensor& tensor, const LocalSlice& slice,
                   const wire::Contribute& entry);

// Returns why this member may not give this mode and form to this slice, or "".
std::string ModeProblem(const PresentView& view, const AggregatorTensor& tensor,
                        const LocalSlice& slice, MemberIndex member, const wire::Contribute& entry);

// Returns where the members of a complete round disagree, naming both sides, or "".
std::string RoundDisagreement(const PresentView& view, const AggregatorTensor& tensor,
                              const LocalSlice& slice);

// The text of a round whose slice has a contribution that is no encoding.
std::string UndecodableText(const PresentView& view, const AggregatorTensor& tensor,
                            const LocalSlice& slice, MemberIndex member);

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_CONTRIBUTION_RULES_H_
