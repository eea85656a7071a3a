// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_AGENT_CORE_CONFIG_H_
#define TALWEG_LIBS_PIPELINE_AGENT_CORE_CONFIG_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "libs/base/bytes.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// The priority of a push whose round nobody waits for. It is the lowest that a client uses.
inline constexpr int32_t kNobodyWaits = std::numeric_limits<int32_t>::min() + 1;

struct AgentCoreConfig {
  view::MemberIdentity self;
  std::string job_name;
  std::string node_name;
  // An aggregator with the same `host_id` is reached through memory, not over the link. "": none.
  std::string host_id;
  uint32_t rank_count = 1;  // On this node.

  // The limit on credit that is used; an aggregator may grant more.
  uint64_t credit_bytes_max = ~uint64_t{0};
  uint32_t tensors_max = 65536;
  uint64_t tensor_bytes_max = 16 * kGiB;
  // Bytes that the reducer may hold at once. A small limit keeps preemption quick.
  uint64_t reduce_bytes_max = 2 * kMiB;
  int64_t waiting_first_ns = 1'000'000'000;
  int64_t waiting_max_ns = 60'000'000'000;
  int64_t reconnect_first_ns = 50'000'000;
  int64_t reconnect_max_ns = 2'000'000'000;
  // Ends the job here after this time if an aggregator of the view does not answer and the
  // scheduler does not replace it, or if the scheduler is silent and its word is needed, or if the
  // scheduler is silent and a member has no connection. 0: never.
  int64_t unreachable_ns = 0;
  // Ends the job if a round that ranks here have pushed waits for others for this time. 0: never.
  int64_t stall_ns = 0;
  // In a new view this node neither does a round again to which it has contributed, nor finishes
  // one: the job fails instead. The caller may therefore keep a round's result in the same memory
  // as this node's contribution to it, and to the next round.
  bool one_view = false;

  // When to report again that this agent has waited for a peer since `since_ns`.
  int64_t NextNoticeNs(int64_t since_ns, int64_t now_ns) const {
    return now_ns + std::clamp(now_ns - since_ns, waiting_first_ns, waiting_max_ns);
  }
};

struct AgentCoreCounters {
  uint64_t contributions_sent = 0;
  uint64_t contribution_bytes_sent = 0;
  uint64_t results_taken = 0;
  uint64_t result_bytes_taken = 0;
  uint64_t result_bytes_written = 0;  // The part of `result_bytes_taken` that did not come inside
                                      // frames.
  uint64_t results_ignored = 0;  // Duplicates, other epochs, other rounds: never shown to a rank.
  uint64_t frames_ignored = 0;   // From unknown connections, or out of place.
  uint64_t rounds_completed = 0;
  uint64_t rounds_aborted = 0;
  uint64_t redos = 0;
  uint64_t finishes = 0;
  std::array<uint64_t, wire::kRefusedReasonCount> refused{};
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_AGENT_CORE_CONFIG_H_
