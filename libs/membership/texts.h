// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_TEXTS_H_
#define TALWEG_LIBS_MEMBERSHIP_TEXTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/live_job.h"
#include "libs/membership/records.h"
#include "libs/membership/requests.h"
#include "libs/view/view.h"

// The texts of the scheduler's core.
namespace talweg::membership {

// "agent of node 1 (host-b, incarnation 7f3a)", "aggregator a0 (incarnation 7f3a)".
std::string AgentText(const view::ViewMember& member);
std::string AggregatorText(const view::ViewAggregator& aggregator);
std::string SecondsText(int64_t ns);
// "1 member", "2 members".
std::string NodesText(const std::vector<NodeRank>& nodes);
// "'a', 'b'".
std::string JobsText(const std::vector<std::string>& names);

// What a forming job waits for; why one is over; or "". `members_to_begin`: a forming job with this
// many members waits for no more.
std::string StateText(const LiveJob& job, uint64_t members_to_begin, int64_t now_ns);

inline Answer Refuse(Code code, std::string text) {
  return {.code = code, .text = std::move(text)};
}
// Why nobody gets the place of a holder without a stream yet, after its name.
inline constexpr char kSilentHolder[] =
    "which has no stream to the scheduler now; ask again when its lease has ended";
// The caller is not the agent that it speaks for.
Answer Unproven(const view::MemberIdentity& id);

// Return why a request can never be granted, or "".
std::string ProblemOf(const JoinRequest& request);
std::string ProblemOf(const view::ViewAggregator& aggregator);
// Returns how two specs differ, naming both values; "" if they do not.
std::string DifferenceOf(const JobSpec& set, const JobSpec& asked);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_TEXTS_H_
