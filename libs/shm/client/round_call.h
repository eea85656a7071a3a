// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ROUND_CALL_H_
#define TALWEG_LIBS_SHM_CLIENT_ROUND_CALL_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/arriving_result.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/pushed_rounds.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/client/round_lengths.h"
#include "libs/shm/client/transfers.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {

// A round that this rank has pushed, as the rank has described it.
struct OpenedRound {
  uint64_t round = 0;
  bool on_device = false;               // Its result goes to a GPU.
  bool is_short = false;                // Some part is not full.
  bool compares = false;                // This rank and the others show what they have said.
  const std::byte* own_part = nullptr;  // RankTensor::own_part.
  PushedRounds others;                  // What the other ranks have pushed, if it can be seen.

  // The tensor's last round. Call with the state mutex locked.
  static OpenedRound Of(const RankTensor& tensor) {
    return {.round = tensor.pushed,
            .on_device = tensor.on_device,
            .is_short = tensor.pushed_short,
            .compares = tensor.tells_pushes() && tensor.shape.has_tables,
            .own_part = tensor.own_part};
  }
};

// A round that is complete, and has a result.
struct CompleteRound {
  uint64_t round = 0;
  RoundLengths lengths;
  std::byte* arenas[kSummingRanksMax] = {};  // Where the tensor lies in each, if the ranks sum.
  const std::byte* own_part = nullptr;       // RankTensor::own_part.
};

// One call that waits for a round, or looks at its result. One thread's.
struct RoundCall {
  RankTensor& tensor;
  const Taking& taking;
  Deadline deadline;
  bool only_looks = false;  // The timeout is 0: copies nothing before all has arrived.
  OpenedRound opened;
  bool is_in_place = false;             // If `taking` has no place: over the contribution.
  ArrivingResult::Copied copied_early;  // Copied by the call before this one.
  ArrivingResult arriving;              // Copies before the round is complete.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ROUND_CALL_H_
