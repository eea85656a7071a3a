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

// The priority of pushes for whose rounds nobody waits; of all others that clients make it is the
// lowest.
inline constexpr int32_t kNobodyWaits = std::numeric_limits<int32_t>::min() + 1;

struct AgentCoreConfig {
  view::MemberIdentity self;
  std::string job_name;
  std::string node_name;
  std::string host_id;      // An aggregator's that is equal is not reached over the link. "": none.
  uint32_t rank_count = 1;  // On this node.

  // No more is used of what an aggregator grants.
  uint64_t credit_bytes_max = ~uint64_t{0};
  uint32_t tensors_max = 65536;
  uint64_t tensor_bytes_max = 16 * kGiB;
  // Bytes that may be in the hands of the reducer at once: small keeps preemption quick.
  uint64_t reduce_bytes_max = 2 * kMiB;
  int64_t waiting_first_ns = 1'000'000'000;
  int64_t waiting_max_ns = 60'000'000'000;
  int64_t reconnect_first_ns = 50'000'000;
  int64_t reconnect_max_ns = 2'000'000'000;
  // An aggregator of the view that does not answer for so long, while the scheduler says nothing
  // of it either, ends the job here; so does a member that has no connection for so long, and the
  // scheduler where its word is waited for, when the scheduler is silent for so long. 0: never.
  int64_t unreachable_ns = 0;
  // A round that ranks here have pushed and that waits for others for so long ends the job; 0: it
  // waits as long as it takes.
  int64_t stall_ns = 0;
  // A view of this job is the last while a round is open. So the caller's memory may hold a round's
  // result where it holds what the node contributes to it, and to the next round.
  bool one_view = false;

  // When to tell again of somebody who is waited for since `since_ns`.
  int64_t NextNoticeNs(int64_t since_ns, int64_t now_ns) const {
    return now_ns + std::clamp(now_ns - since_ns, waiting_first_ns, waiting_max_ns);
  }
};

struct AgentCoreCounters {
  uint64_t contributions_sent = 0;
  uint64_t contribution_bytes_sent = 0;
  uint64_t results_taken = 0;
  uint64_t result_bytes_taken = 0;
  uint64_t result_bytes_written = 0;  // Those of them that are not inside frames.
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
