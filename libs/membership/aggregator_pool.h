// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_AGGREGATOR_POOL_H_
#define TALWEG_LIBS_MEMBERSHIP_AGGREGATOR_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/effects.h"
#include "libs/membership/leases.h"
#include "libs/membership/records.h"
#include "libs/membership/requests.h"
#include "libs/membership/streams.h"
#include "libs/membership/turn.h"
#include "libs/view/view.h"

namespace talweg::membership {

// What this run of the scheduler knows of an aggregator; cf. LiveMember.
struct LiveAggregator {
  AggregatorRecord record;
  std::optional<StreamId> stream;
  std::string shut_out;  // Why this daemon has ended the aggregator's last stream, or "".
  bool attached_before = false;
  bool knows_standbys = false;  // As the aggregator has said to this run of the scheduler.
  int64_t lease_end_ns = 0;
};

// The aggregators of all jobs, and those that were lost lately. It knows no jobs: a lost aggregator
// is named in Turn::lost_aggregators.
class AggregatorPool {
 public:
  // `leases` and `streams` outlive this.
  AggregatorPool(const Config& config, const Snapshot& snapshot, int64_t now_ns,
                 const Leases* leases, Streams* streams);

  const std::map<Incarnation, LiveAggregator>& all() const { return aggregators_; }
  // Returns null if no such aggregator is known.
  const LiveAggregator* Find(Incarnation incarnation) const;
  // Finds the caller's own aggregator, if the caller shows its secret and it is not lost.
  Answer FindFor(const PoolCaller& caller, LiveAggregator*& aggregator);

  // The aggregator has drawn `secret`.
  Answer Register(const view::ViewAggregator& aggregator, const SecretHash& secret, Turn& turn);
  Answer Renew(const PoolCaller& caller, int64_t now_ns);
  // The aggregator has opened its stream. Returns whether it is its first.
  bool Attach(LiveAggregator& aggregator, StreamId stream, bool knows_standbys, Turn& turn);
  // The aggregator's stream is gone. `counts`: that is a loss. `shut_out`: see
  // SchedulerCore::OnStreamBroken.
  void OnStreamBroken(Incarnation incarnation, bool counts, const std::string& shut_out,
                      Turn& turn);
  // Takes the aggregator into no further view.
  void Drain(LiveAggregator& aggregator, const std::string& text, Turn& turn);
  void Lose(LiveAggregator& aggregator, const std::string& text, Turn& turn);

  // Sends to all aggregators that have a stream.
  void Tell(const AggregatorMessage& message, Turn& turn) const;

  // Begins all leases anew.
  void RenewAll(int64_t now_ns);
  // Loses the aggregators whose leases have lapsed.
  void ExpireLeases(Turn& turn);
  // If too many are lost, forgets the oldest of them.
  void Collect(Turn& turn);

 private:
  const size_t aggregators_max_;
  const Leases* const leases_;
  Streams* const streams_;
  std::map<Incarnation, LiveAggregator> aggregators_;  // With those that were lost lately.
  std::vector<Incarnation> lost_;                      // In the order in which they were lost.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_AGGREGATOR_POOL_H_
