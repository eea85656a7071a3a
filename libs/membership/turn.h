// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_TURN_H_
#define TALWEG_LIBS_MEMBERSHIP_TURN_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/effects.h"
#include "libs/membership/live_job.h"
#include "libs/membership/records.h"

namespace talweg::membership {

// The work of one event: what it has touched, what is to be stored, and what is to be said
// afterwards. The core reads it when the event is over (SchedulerCore::Finish).
class Turn {
 public:
  explicit Turn(int64_t now_ns) : now_ns(now_ns) {}

  const int64_t now_ns;
  std::set<JobId> touched;  // To be advanced.
  std::set<JobId> dirty;    // To be stored.
  std::set<Incarnation> dirty_aggregators;
  std::set<Incarnation> lost_aggregators;  // The running jobs that use one will be advanced.
  StoreWrite write;                        // Changes other than the dirty records.
  std::vector<Effect> effects;

  void Touch(const LiveJob& job) { touched.insert(job.id); }
  void Store(const LiveJob& job) { dirty.insert(job.id); }
  void Store(const AggregatorRecord& record) {
    dirty_aggregators.insert(record.aggregator.incarnation);
  }
  void TouchUsersOf(const AggregatorRecord& record) {
    lost_aggregators.insert(record.aggregator.incarnation);
  }
  void Say(Effect effect) { effects.push_back(std::move(effect)); }
  void Log(std::string text) { effects.push_back(Note{std::move(text)}); }
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_TURN_H_
