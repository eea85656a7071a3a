// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_STATUS_H_
#define TALWEG_LIBS_AGGREGATION_STATUS_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/latecomers.h"
#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

// What people may ask about a job at an aggregator. Values, taken at one time.
namespace talweg::aggregation {

struct Counters {
  uint64_t views = 0;
  uint64_t contributions = 0;       // Taken.
  uint64_t contribution_bytes = 0;  // Taken.
  uint64_t duplicates = 0;          // A repetition while the round is open.
  uint64_t results_again = 0;       // A repetition after the round was summed.
  uint64_t contributions_late = 0;  // From an older epoch, by a member that has not fenced yet.
  uint64_t contributions_forgotten = 0;  // Their connection was lost before they were summed.
  std::array<uint64_t, wire::kRefusedReasonCount> refused{};  // By RefusedReason.
  uint64_t sums = 0;                                          // Slices summed.
  uint64_t summed_bytes = 0;                                  // Bytes read by sums.
  uint64_t rounds = 0;            // Rounds of which all slices placed here are summed.
  uint64_t rounds_disagreed = 0;  // Slices whose contributions do not fit together.
  uint64_t copies = 0;            // Slices of copy rounds.
  uint64_t sums_stale = 0;        // Finished after their epoch and thrown away.
  uint64_t sums_held_back = 0;    // Waited for writes from the result memory.
  uint64_t results = 0;
  uint64_t result_bytes = 0;
  std::array<uint64_t, 4> decisions{};  // By Verdict.
  uint64_t decisions_again = 0;
  uint64_t contradictions = 0;
  uint64_t rounds_lost = 0;  // Over for some members, and never for the others.
  uint64_t tensors_poisoned = 0;
  uint64_t declares_invalid = 0;
  uint64_t declares_over_budget = 0;
  uint64_t waiting_notices = 0;
  uint64_t hellos = 0;
  uint64_t hellos_refused = 0;
  uint64_t hellos_held = 0;  // Came before their view.
  uint64_t fences = 0;
  uint64_t fences_held = 0;  // Came before their view.
  uint64_t connections_replaced = 0;
  uint64_t connections_lost = 0;
  uint64_t frames_unreadable = 0;
  uint64_t frames_unexpected = 0;  // Our peers do not send such a type, or not in such a state.
  uint64_t goodbyes = 0;
};

// Adds every counter of `counters` to those of `sum`.
void AddCounters(const Counters& counters, Counters& sum);

// Every counter with its name; refusals and decisions separately ("refused{reason=wrong_round}").
std::vector<std::pair<std::string, uint64_t>> NamedCounters(const Counters& counters);

struct MemberStatus {
  view::MemberIdentity id;
  uint32_t rank_count = 0;
  std::string name;
  bool connected = false;  // Welcomed or fenced in the present epoch.
  bool reported = false;
  uint64_t contribution_bytes = 0;  // Taken, over all epochs of this connection.
  Latecomers::Lateness lateness;
};

struct RoundStatus {
  std::string tensor;
  Round round;
  uint32_t slices_open = 0;    // Some contributions are here, some are not.
  uint32_t slices_here = 0;    // How many slices are placed here.
  uint32_t slices_summed = 0;  // How many of them are summed in this round.
  int64_t waited_ns = 0;
  std::vector<NodeRank> missing;
};

struct TensorStatus {
  TensorKey key;
  std::string name;
  Collective collective;
  uint32_t slices_here = 0;
  uint32_t slice_count = 0;
  uint64_t reserved_bytes = 0;
  Round round_summed;    // The last round of which a slice was summed in this epoch.
  std::string poisoned;  // Why it is poisoned, or "".
};

struct JobStatus {
  JobId job;
  std::string name;
  Epoch epoch;
  bool in_view = false;
  bool reports_complete = false;
  uint64_t reserved_bytes = 0;
  std::vector<MemberStatus> members;
  uint32_t sums_known = 0;  // Over which the members' lateness is counted.
  size_t tensor_count = 0;
  std::vector<TensorStatus> tensors;     // Only if they were asked for.
  std::vector<RoundStatus> open_rounds;  // At least one contribution is here, and one missing.
  Counters counters;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_STATUS_H_
