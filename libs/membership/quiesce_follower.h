// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_QUIESCE_FOLLOWER_H_
#define TALWEG_LIBS_MEMBERSHIP_QUIESCE_FOLLOWER_H_

#include <utility>

#include "libs/membership/scheduler_core.h"

namespace talweg::membership {

// Which quiesce a member is in, what is to be passed on to it, and when. The member's streams tell,
// one after another; a scheduler that was killed may have ended a quiesce without a word.
class QuiesceFollower {
 public:
  // A stream has begun; `id` is under way at the scheduler, 0: none. A view follows, and after it
  // the quiesce again.
  void OnAttached(QuiesceId id) { attached_ = id; }

  // Says which quiesce is over, before the view is passed on; 0: none. What it has held back may go
  // on if the view is the one that this member has. A newer one ends the quiesce itself, as it lets
  // joiners in where the member has promised to have nothing open.
  QuiesceId OnView(bool is_newer) {
    const QuiesceId known = followed_;
    const bool is_over = known != QuiesceId{0} && attached_ == QuiesceId{0};
    if (is_newer || is_over) followed_ = QuiesceId{0};
    const bool goes_on = is_over && !is_newer;
    return goes_on ? known : QuiesceId{0};
  }

  // Whether the member has not been told of it.
  bool OnQuiesce(QuiesceId id) {
    attached_ = id;
    return std::exchange(followed_, id) != id;
  }

  // Whether it is the one that the member is in.
  bool OnCancelled(QuiesceId id) {
    if (id != followed_) return false;
    followed_ = QuiesceId{0};
    return true;
  }

 private:
  QuiesceId followed_;  // Told of, and not over; 0: none.
  QuiesceId attached_;  // Under way at the scheduler when this stream began, or later.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_QUIESCE_FOLLOWER_H_
