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

// What this life of the scheduler knows of an aggregator, as of a member.
struct LiveAggregator {
  AggregatorRecord record;
  std::optional<StreamId> stream;
  std::string shut_out;  // Why this daemon has ended its last stream, or "".
  bool attached_before = false;
  bool knows_standbys = false;  // By its own word, in this life of the scheduler.
  int64_t lease_end_ns = 0;
};

// The aggregators of all jobs, and those that were lost lately. It knows no jobs: when one is lost,
// the turn names it (Turn::lost_aggregators).
class AggregatorPool {
 public:
  // The last two outlive it.
  AggregatorPool(const Config& config, const Snapshot& snapshot, int64_t now_ns,
                 const Leases* leases, Streams* streams);

  const std::map<Incarnation, LiveAggregator>& all() const { return aggregators_; }
  // Null: no such aggregator is known.
  const LiveAggregator* Find(Incarnation incarnation) const;
  // The caller's own one, if it shows the secret and is not lost.
  Answer FindFor(const PoolCaller& caller, LiveAggregator*& aggregator);

  // `secret` is drawn by the aggregator.
  Answer Register(const view::ViewAggregator& aggregator, const SecretHash& secret, Turn& turn);
  Answer Renew(const PoolCaller& caller, int64_t now_ns);
  // Its stream is open. Says whether it is the first that it has opened.
  bool Attach(LiveAggregator& aggregator, StreamId stream, bool knows_standbys, Turn& turn);
  // Its stream is gone. `counts`: that is a loss. `shut_out`: of SchedulerCore::OnStreamBroken.
  void OnStreamBroken(Incarnation incarnation, bool counts, const std::string& shut_out,
                      Turn& turn);
  // It is taken into no further view.
  void Drain(LiveAggregator& aggregator, const std::string& text, Turn& turn);
  void Lose(LiveAggregator& aggregator, const std::string& text, Turn& turn);

  // To all that have a stream.
  void Tell(const AggregatorMessage& message, Turn& turn) const;

  // All leases begin now.
  void RenewAll(int64_t now_ns);
  // Those whose leases have lapsed are lost.
  void ExpireLeases(Turn& turn);
  // Forgets the oldest of many that are lost.
  void Collect(Turn& turn);

 private:
  const size_t aggregators_max_;
  const Leases* const leases_;
  Streams* const streams_;
  std::map<Incarnation, LiveAggregator> aggregators_;  // Also those that were lost lately.
  std::vector<Incarnation> lost_;                      // In the order of their going.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_AGGREGATOR_POOL_H_
