// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_JOB_LIFE_H_
#define TALWEG_LIBS_MEMBERSHIP_JOB_LIFE_H_

#include <string>

#include "libs/base/ids.h"
#include "libs/membership/admission.h"
#include "libs/membership/aggregator_pool.h"
#include "libs/membership/effects.h"
#include "libs/membership/live_job.h"
#include "libs/membership/numbers.h"
#include "libs/membership/records.h"
#include "libs/membership/streams.h"
#include "libs/membership/turn.h"

namespace talweg::membership {

// What follows from a job's state: views, failures, ends, stops for joiners.
//
//   kForming --gathered--> kRunning --a loss--> kRunning (next epoch) or kFailed
//       |                               |          all members left --> kFinished
//       +--- join deadline, all gone ---+--> kFailed, kFinished
class JobLife {
 public:
  // All outlive this.
  struct Parts {
    const AggregatorPool* pool = nullptr;
    const Admission* admission = nullptr;
    Streams* streams = nullptr;
    Numbers* numbers = nullptr;
  };

  explicit JobLife(const Parts& parts)
      : pool_(parts.pool),
        admission_(parts.admission),
        streams_(parts.streams),
        numbers_(parts.numbers) {}

  // Called at the end of a turn for each job that the turn touched.
  void Advance(LiveJob& job, Turn& turn);
  void Fail(LiveJob& job, const std::string& text, Turn& turn);
  // The member is gone; ends its stream.
  void Remove(LiveJob& job, NodeRank node, MemberState how, const std::string& text, Turn& turn);
  static void TellMembers(const LiveJob& job, const MemberMessage& message, Turn& turn);

  // --- older_store.cc: a store that was lost, or restored from a copy, is older than what others
  // know.

  // A caller holds this epoch: the job's next epoch lies above it.
  static void ObserveEpoch(LiveJob& job, Epoch held, Turn& turn);
  // Returns whether the member says that it is in a view but the store knows of none with it. The
  // member is then lost: it may have missed later views, and cannot join because it has begun
  // rounds.
  bool LoseIfInUnknownView(LiveJob& job, const LiveMember& member, Epoch held, Turn& turn);

 private:
  void AdvanceForming(LiveJob& job, Turn& turn);
  void AdvanceRunning(LiveJob& job, Turn& turn);
  // Returns false if the job waits until its members have said what they hold, or is advanced
  // already.
  bool AdvanceRecovery(LiveJob& job, Turn& turn);
  std::string LossesOf(const LiveJob& job) const;
  bool WantsNewView(const LiveJob& job) const;
  // Returns false if there is no member, or no aggregator, to make a view of.
  bool MakeView(LiveJob& job, bool with_joiners, Turn& turn);
  void End(LiveJob& job, JobState state, const std::string& text, Turn& turn);

  const AggregatorPool* const pool_;
  const Admission* const admission_;
  Streams* const streams_;
  Numbers* const numbers_;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_JOB_LIFE_H_
