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

// A round that this rank has pushed, as it has said.
struct OpenedRound {
  uint64_t round = 0;
  bool on_device = false;               // Its result goes to a GPU.
  bool is_short = false;                // Some part is not full.
  bool compares = false;                // It and the other ranks tell what they have said.
  const std::byte* own_part = nullptr;  // RankTensor::own_part.
  PushedRounds others;                  // What these have pushed, where it can be seen.

  // The tensor's last round. With the state mutex locked.
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
  std::byte* arenas[kSummingRanksMax] = {};  // Where the tensor lies in them, if the ranks sum.
  const std::byte* own_part = nullptr;       // RankTensor::own_part.
};

// One call that waits for a round, or looks at its result. One thread's.
struct RoundCall {
  RankTensor& tensor;
  const Taking& taking;
  Deadline deadline;
  bool only_looks = false;  // And has no time to copy what is not all of the result.
  OpenedRound opened;
  bool is_in_place = false;             // Without another place the result goes where it came from.
  ArrivingResult::Copied copied_early;  // By the call before this one.
  ArrivingResult arriving;              // What is copied before the round is complete.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ROUND_CALL_H_
