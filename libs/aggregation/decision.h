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

// What becomes of the open round of a tensor in a new view: docs/protocol.md, section 6.
namespace talweg::aggregation {

// What one member of the new view has said of the tensor.
struct MemberReport {
  MemberIndex member;
  wire::Report report;
};

// The reports cannot all be true. The tensor is of no use any more.
struct Contradiction {
  std::string text;
};

// A round is over for some and can never be for the others, who did not get their parts of it. The
// tensor is of no use any more.
struct LostRound {
  std::string text;
};

struct DecideInput {
  std::span<const MemberReport> reports;  // By member, ascending; at least one.
  size_t slice_count = 1;                 // How the new view cuts the tensor.
  bool is_dead = false;                   // Somebody has left without whom it means nothing.
  // Whoever holds a round holds all of its result. If not, nobody has for others what they get.
  bool all_get_all = true;
};

// A pure function: `key` and the text's name of the tensor are the caller's.
std::variant<wire::Decision, Contradiction, LostRound> Decide(const DecideInput& input);

// Why a member's report of a tensor of `slice_count` slices cannot be true by itself, or "".
std::string ReportProblem(const wire::Report& report, size_t slice_count);

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_DECISION_H_
