// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_NUMBERS_H_
#define TALWEG_LIBS_MEMBERSHIP_NUMBERS_H_

#include <cstdint>

#include "libs/base/ids.h"
#include "libs/membership/live_job.h"
#include "libs/membership/records.h"
#include "libs/membership/requests.h"
#include "libs/membership/turn.h"
#include "libs/view/numbers.h"

namespace talweg::membership {

using view::NumbersFrom;
inline constexpr JobId kJobIdMax{uint64_t{1} << 62};

// Gives numbers, and decides which numbers of others it believes: they may have newer ones than its
// store knows.
class Numbers {
 public:
  Numbers(const Config& config, const Snapshot& snapshot, int64_t now_ns);

  uint64_t start_count() const { return start_count_; }
  // The next epoch of a job from the store lies above this.
  Epoch epoch_start() const { return epoch_start_; }

  QuiesceId NextQuiesce() { return QuiesceId{++quiesce_last_}; }
  JobId NextJob(Turn& turn);
  // Another scheduler, with a newer store, has given this id. It is never given again.
  void ObserveJob(JobId id, Turn& turn);

  // Whether the caller can have been given this epoch. A caller that came to this scheduler, or to
  // a job that began here, has all its views from here. What other callers have may be newer than
  // the store.
  Answer CheckEpoch(const LiveJob& job, bool from_store, bool in_view, Epoch held,
                    int64_t now_ns) const;
  // Whether any scheduler can have given the id. For jobs that this scheduler does not know.
  Answer CheckJob(JobId id, int64_t now_ns) const;

 private:
  // view::BelievedTo at that time.
  uint64_t BelievedTo(uint64_t stored, int64_t now_ns) const;

  const uint64_t start_count_;
  const int64_t start_unix_ns_;
  const int64_t start_ns_;
  const Epoch epoch_start_;
  uint64_t quiesce_last_;
  JobId job_next_;
  JobId job_next_stored_;  // From the store, or from the time of the start.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_NUMBERS_H_
