// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_LATECOMERS_H_
#define TALWEG_LIBS_AGGREGATION_LATECOMERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libs/base/ids.h"

namespace talweg::aggregation {

// Whose contributions come last, and by how much, over the newest sums of the present view. In
// synchronous training all members take equally long for a step, so only the order in which their
// contributions come tells who holds the others up.
//
// A pure class. One owner thread.
class Latecomers {
 public:
  static constexpr size_t kSumsMax = 4096;

  // What is known of one member.
  struct Lateness {
    uint32_t last_count = 0;  // In how many of the sums its contribution came last.
    int64_t behind_ns = 0;    // How long after the one before it, over all of these.
  };

  // A new view: nothing is known.
  void OnView();
  // A slice can be summed. The contribution of `last` came last, `behind_ns` after the one before.
  void OnLast(MemberIndex last, int64_t behind_ns);

  // How many sums are known; the oldest make way for the newest.
  uint32_t sum_count() const { return static_cast<uint32_t>(newest_.size()); }
  std::vector<Lateness> ByMember(size_t member_count) const;

 private:
  struct Sum {
    MemberIndex last;
    int64_t behind_ns = 0;
  };

  std::vector<Sum> newest_;  // A ring.
  size_t next_ = 0;          // The oldest, once the ring is full.
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_LATECOMERS_H_
