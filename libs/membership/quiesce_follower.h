// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_QUIESCE_FOLLOWER_H_
#define TALWEG_LIBS_MEMBERSHIP_QUIESCE_FOLLOWER_H_

#include "libs/membership/scheduler_core.h"

namespace talweg::membership {

// Tracks which quiesce a member is in, and what is to be passed on to the member, and when. The
// member's streams, one after another, bring the messages. A scheduler that was killed may have
// ended a quiesce without a message.
class QuiesceFollower {
 public:
  // A stream has begun. `id`: the scheduler's quiesce under way, 0: none. A view follows, and after
  // it the quiesce again.
  void OnAttached(QuiesceId id) { attached_ = id; }

  // Call it before the view is passed on. Returns the quiesce that is over; 0: none. If the view is
  // the one that this member has, the member may go on. A newer view ends the quiesce itself: it
  // admits joiners, for whom the member has promised to have nothing open.
  QuiesceId OnView(bool is_newer);

  // Returns whether the member has not been told of this quiesce yet.
  bool OnQuiesce(QuiesceId id);

  // Returns whether this is the quiesce that the member is in.
  bool OnCancelled(QuiesceId id);

 private:
  QuiesceId followed_;  // The quiesce that the member was told of and that is not over; 0: none.
  QuiesceId attached_;  // The scheduler's quiesce under way when this stream began, or a later one.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_QUIESCE_FOLLOWER_H_
