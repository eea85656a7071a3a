// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/status.h"

namespace talweg::aggregation {
namespace {

struct NamedField {
  const char* name;
  uint64_t Counters::*field;
};

constexpr NamedField kFields[] = {
    {"views", &Counters::views},
    {"contributions", &Counters::contributions},
    {"contribution_bytes", &Counters::contribution_bytes},
    {"duplicates", &Counters::duplicates},
    {"results_again", &Counters::results_again},
    {"contributions_late", &Counters::contributions_late},
    {"contributions_forgotten", &Counters::contributions_forgotten},
    {"sums", &Counters::sums},
    {"summed_bytes", &Counters::summed_bytes},
    {"rounds", &Counters::rounds},
    {"rounds_disagreed", &Counters::rounds_disagreed},
    {"copies", &Counters::copies},
    {"sums_stale", &Counters::sums_stale},
    {"sums_held_back", &Counters::sums_held_back},
    {"results", &Counters::results},
    {"result_bytes", &Counters::result_bytes},
    {"decisions_again", &Counters::decisions_again},
    {"contradictions", &Counters::contradictions},
    {"rounds_lost", &Counters::rounds_lost},
    {"tensors_poisoned", &Counters::tensors_poisoned},
    {"declares_invalid", &Counters::declares_invalid},
    {"declares_over_budget", &Counters::declares_over_budget},
    {"waiting_notices", &Counters::waiting_notices},
    {"hellos", &Counters::hellos},
    {"hellos_refused", &Counters::hellos_refused},
    {"hellos_held", &Counters::hellos_held},
    {"fences", &Counters::fences},
    {"fences_held", &Counters::fences_held},
    {"connections_replaced", &Counters::connections_replaced},
    {"connections_lost", &Counters::connections_lost},
    {"frames_unreadable", &Counters::frames_unreadable},
    {"frames_unexpected", &Counters::frames_unexpected},
    {"goodbyes", &Counters::goodbyes},
};
// Every counter must be in the table: others would be missing in sums and in what people see.
static_assert(sizeof(Counters) == sizeof(uint64_t) * (std::size(kFields) + 4) +
                                      sizeof(uint64_t) * wire::kRefusedReasonCount);

constexpr const char* kVerdictNames[] = {"", "redo", "finish", "abort"};

}  // namespace

void AddCounters(const Counters& counters, Counters& sum) {
  for (const NamedField& named : kFields) sum.*named.field += counters.*named.field;
  for (size_t i = 0; i < sum.refused.size(); ++i) sum.refused[i] += counters.refused[i];
  for (size_t i = 0; i < sum.decisions.size(); ++i) sum.decisions[i] += counters.decisions[i];
}

std::vector<std::pair<std::string, uint64_t>> NamedCounters(const Counters& counters) {
  std::vector<std::pair<std::string, uint64_t>> named;
  for (const NamedField& field : kFields) named.emplace_back(field.name, counters.*field.field);
  for (size_t i = 1; i < counters.refused.size(); ++i) {
    const std::string reason = wire::RefusedReasonName(static_cast<wire::RefusedReason>(i));
    named.emplace_back("refused{reason=" + reason + "}", counters.refused[i]);
  }
  for (size_t i = 1; i < counters.decisions.size(); ++i) {
    named.emplace_back(std::string("decisions_") + kVerdictNames[i], counters.decisions[i]);
  }
  return named;
}

}  // namespace talweg::aggregation
