// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_DECISION_H_
#define TALWEG_LIBS_AGGREGATION_DECISION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "libs/base/ids.h"
#include "libs/wire/frames.h"

// What becomes of a tensor's open round in a new view (docs/protocol.md, section 6).
namespace talweg::aggregation {

// What one member of the new view has reported about the tensor.
struct MemberReport {
  MemberIndex member;
  wire::Report report;
};

// The reports cannot all be true. The tensor has failed.
struct Contradiction {
  std::string text;
};

// A round is over for some members and can never end for the others, who did not get their parts of
// it. The tensor has failed.
struct LostRound {
  std::string text;
};

struct DecideInput {
  std::span<const MemberReport> reports;  // By member, ascending; at least one.
  size_t slice_count = 1;                 // The number of slices in the new view.
  bool is_dead = false;                   // A member that the tensor cannot do without has left.
  // A member that holds a round holds all of its result. Otherwise no member holds what the others
  // get.
  bool all_get_all = true;
};

// A pure function. The caller sets the decision's `key`, and names the tensor in the text.
std::variant<wire::Decision, Contradiction, LostRound> Decide(const DecideInput& input);

// Returns why a member's report about a tensor of `slice_count` slices cannot be true by itself, or
// "".
std::string ReportProblem(const wire::Report& report, size_t slice_count);

// Returns the report with no more words of slices than those of the tensor and one that tells of
// any slice past them. ReportProblem() says the same of it. A frame may hold thousands of words.
wire::Report WithoutExcess(const wire::Report& report, size_t slice_count);

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_DECISION_H_
