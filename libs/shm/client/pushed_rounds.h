// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_PUSHED_ROUNDS_H_
#define TALWEG_LIBS_SHM_CLIENT_PUSHED_ROUNDS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {

// What the other ranks of a node say that they have pushed of one tensor (docs/shared_memory.md,
// "Rounds that the ranks see complete"). Their lines are borrowed.
class PushedRounds {
 public:
  // The other ranks cannot be seen: the agent tells.
  PushedRounds() = default;
  // The other ranks can be seen; none is known so far.
  static PushedRounds Visible() {
    PushedRounds rounds;
    rounds.visible_ = true;
    return rounds;
  }
  void Add(const PushedLine& line) { lines_[count_++] = &line; }

  bool visible() const { return visible_; }
  // Reads with acquire, so that the ranks' contributions can be read afterwards.
  bool AllReach(uint64_t round) const {
    return visible_ && std::all_of(lines_, lines_ + count_, [round](const PushedLine* line) {
             return line->round.load(std::memory_order_acquire) >= round;
           });
  }

 private:
  bool visible_ = false;
  uint32_t count_ = 0;
  const PushedLine* lines_[kSummingRanksMax - 1] = {};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_PUSHED_ROUNDS_H_
