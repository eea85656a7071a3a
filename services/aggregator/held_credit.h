// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_HELD_CREDIT_H_
#define TALWEG_SERVICES_AGGREGATOR_HELD_CREDIT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <unordered_map>

#include "libs/aggregation/link_share.h"
#include "libs/base/ids.h"

namespace talweg::aggregator {

// The host's link, and the jobs that meet on it.
struct SharedLink {
  aggregation::LinkShare share;
  bool has_held_credit = false;  // Some job's, as far as is known.

  // Credit goes back as the share says. Else at once.
  bool is_shared() const { return share.job_count() > 1; }
};

// The credit of one job's members that waits, because jobs share the link (docs/quotas.md), and
// which of the members want more of the link.
//
// A pure class. One owner thread; `link` outlives it.
class HeldCredit {
 public:
  using Give = std::function<void(ConnectionId, uint64_t bytes)>;

  HeldCredit(JobId job, SharedLink* link) : job_(job), link_(link) {}

  // Whether more of the connection's waits, at its member or here, than is on its way.
  void SetWants(ConnectionId connection, bool wants, int64_t now_ns);
  // What has come and left over the link.
  void OnReceived(uint64_t bytes, int64_t now_ns);
  void OnSent(uint64_t bytes, int64_t now_ns);

  // At least one byte, to be given back later.
  void Hold(ConnectionId connection, uint64_t bytes);
  // What is held for it is not to be given back.
  void Forget(ConnectionId connection) { bytes_.erase(connection); }
  // Gives back the credit for which there is room. Whether some is left.
  bool GiveSome(int64_t now_ns, const Give& give);

  bool is_shared() const { return link_->is_shared(); }
  // There was no room for all of it when it was looked at.
  bool is_late() const { return is_late_; }

 private:
  void GiveByTurns(int64_t now_ns, const Give& give);

  const JobId job_;
  SharedLink* const link_;
  std::set<ConnectionId> wanting_;
  std::unordered_map<ConnectionId, uint64_t> bytes_;
  // In the order in which it is given back. Some may have nothing held any more.
  std::deque<ConnectionId> turns_;
  bool is_late_ = false;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_HELD_CREDIT_H_
