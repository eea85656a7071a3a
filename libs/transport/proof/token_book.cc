// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/proof/token_book.h"

#include <algorithm>

namespace talweg::transport {

bool TokenBook::Take(const TokenClaim& claim, const Admission& admission) {
  if (used_.size() >= forget_at_ && admission) ForgetRefused(admission);
  const PeerIdentity& who = claim.identity;
  return Note(claim, &used_[{who.job, who.node, who.incarnation}]);
}

bool TokenBook::Note(const TokenClaim& claim, Used* used) {
  if (claim.identity.epoch < used->epoch) return false;
  uint32_t behind = 0;
  if (claim.count > used->latest) {
    const uint32_t ahead = claim.count - used->latest;
    used->before = ahead < kOrderMax ? used->before << ahead : 0;
    used->latest = claim.count;
  } else {
    behind = used->latest - claim.count;
    if (behind >= kOrderMax) return false;
  }
  const uint64_t bit = uint64_t{1} << behind;
  if ((used->before & bit) != 0) return false;
  used->before |= bit;
  used->epoch = claim.identity.epoch;
  return true;
}

// A refused member stays refused, so its tokens need not be remembered.
void TokenBook::ForgetRefused(const Admission& admission) {
  std::erase_if(used_, [&admission](const auto& entry) {
    const auto& [job, node, incarnation] = entry.first;
    const PeerIdentity peer = {
        .job = job, .epoch = entry.second.epoch, .node = node, .incarnation = incarnation};
    return !admission(peer).empty();
  });
  forget_at_ = std::max(forget_at_, 2 * used_.size());
}

}  // namespace talweg::transport
