// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_HELD_CREDIT_H_
#define TALWEG_SERVICES_AGGREGATOR_HELD_CREDIT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <unordered_map>

#include "libs/base/ids.h"
#include "services/aggregator/shared_link.h"

namespace talweg::aggregator {

// The credit that one life of a job at one lane holds back, because jobs share the link
// (docs/quotas.md), and which of its members want more of the link.
//
// Owned by the lane's thread. `lane` outlives this object. The calls below only change turn(). The
// lane settles turn() with the link, which lanes share, and GiveBack then acts on the answer.
class HeldCredit {
 public:
  using Give = std::function<void(ConnectionId, uint64_t bytes)>;

  HeldCredit(JobId job, SharedLink::Lane* lane);
  ~HeldCredit() { Leave(); }
  HeldCredit(const HeldCredit&) = delete;
  HeldCredit& operator=(const HeldCredit&) = delete;

  // This life of the job is over, though some of its connections are still open. Their traffic no
  // longer counts for the job, which may have begun again.
  void Leave();

  // `wants`: the connection has bytes that wait, at its member or here, beside those on their way.
  void SetWants(ConnectionId connection, bool wants);
  // Count bytes that came and left over the link.
  void OnReceived(uint64_t bytes) { turn_.received_bytes += bytes; }
  void OnSent(uint64_t bytes) { turn_.sent_bytes += bytes; }

  // Holds back `bytes`, at least one, of the connection's credit.
  void Hold(ConnectionId connection, uint64_t bytes);
  // Drops the credit that is held for the connection.
  void Forget(ConnectionId connection);

  // Returns whether turn() has to be settled. Credit that found no room counts only if
  // `may_have_room`.
  bool HasNews(bool may_have_room) const;
  SharedLink::Turn* turn() { return &turn_; }
  // turn() was settled. Calls `give` for the credit that goes back.
  void GiveBack(const Give& give);

  bool is_shared() const { return !has_left_ && lane_->link().is_shared(); }
  // Returns whether there was no room for all held credit when it was last settled.
  bool is_late() const { return is_late_; }

 private:
  SharedLink::Lane* const lane_;
  SharedLink::Turn turn_;
  bool has_left_ = false;
  bool has_said_wants_ = false;  // `wants` as last settled.
  bool is_late_ = false;
  std::set<ConnectionId> wanting_;
  std::unordered_map<ConnectionId, uint64_t> bytes_;
  // The order in which credit is given back. For some of them none may be held any more.
  std::deque<ConnectionId> turns_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_HELD_CREDIT_H_
