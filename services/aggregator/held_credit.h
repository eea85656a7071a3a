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

// The credit of one life of a job at one lane that waits, because jobs share the link
// (docs/quotas.md), and which of its members want more of the link.
//
// One owner thread, the lane's, which outlives it. What is told here goes to the link, which lanes
// share, when the lane settles turn(). Then GiveBack does what the answer says.
class HeldCredit {
 public:
  using Give = std::function<void(ConnectionId, uint64_t bytes)>;

  HeldCredit(JobId job, SharedLink::Lane* lane);
  ~HeldCredit() { Leave(); }
  HeldCredit(const HeldCredit&) = delete;
  HeldCredit& operator=(const HeldCredit&) = delete;

  // This life of the job is over, though some of its connections are not: nothing of theirs counts
  // as the job's, which may have begun again.
  void Leave();

  // Whether more of the connection's waits, at its member or here, than is on its way.
  void SetWants(ConnectionId connection, bool wants);
  // What has come and left over the link.
  void OnReceived(uint64_t bytes) { turn_.received_bytes += bytes; }
  void OnSent(uint64_t bytes) { turn_.sent_bytes += bytes; }

  // At least one byte, to be given back later.
  void Hold(ConnectionId connection, uint64_t bytes);
  // What is held for it is not to be given back.
  void Forget(ConnectionId connection);

  // Whether turn() is to be settled. What has found no room is worth it again when `may_have_room`.
  bool HasNews(bool may_have_room) const;
  SharedLink::Turn* turn() { return &turn_; }
  // It was settled.
  void GiveBack(const Give& give);

  bool is_shared() const { return !has_left_ && lane_->link().is_shared(); }
  // There was no room for all of it when it was looked at.
  bool is_late() const { return is_late_; }

 private:
  SharedLink::Lane* const lane_;
  SharedLink::Turn turn_;
  bool has_left_ = false;
  bool has_said_wants_ = false;  // As settled.
  bool is_late_ = false;
  std::set<ConnectionId> wanting_;
  std::unordered_map<ConnectionId, uint64_t> bytes_;
  // In the order in which it is given back. Some may have nothing held any more.
  std::deque<ConnectionId> turns_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_HELD_CREDIT_H_
