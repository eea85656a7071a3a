// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/quiesce_follower.h"

#include <utility>

namespace talweg::membership {

QuiesceId QuiesceFollower::OnView(bool is_newer) {
  const QuiesceId known = followed_;
  const bool is_over = known != QuiesceId{0} && attached_ == QuiesceId{0};
  if (is_newer || is_over) followed_ = QuiesceId{0};
  const bool goes_on = is_over && !is_newer;
  return goes_on ? known : QuiesceId{0};
}

bool QuiesceFollower::OnQuiesce(QuiesceId id) {
  attached_ = id;
  return std::exchange(followed_, id) != id;
}

bool QuiesceFollower::OnCancelled(QuiesceId id) {
  if (id != followed_) return false;
  followed_ = QuiesceId{0};
  return true;
}

}  // namespace talweg::membership
