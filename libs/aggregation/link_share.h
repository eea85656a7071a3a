// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_LINK_SHARE_H_
#define TALWEG_LIBS_AGGREGATION_LINK_SHARE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>

#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/view/job_quota.h"

namespace talweg::aggregation {

// Shares this host's link among the jobs that want more of it than they get (docs/quotas.md).
//
//   kAlone <--fewer than two jobs want the link, or two do--> kMeasuring or kSharing, as it was
//   left kMeasuring --measured what the link carries while nothing is held back--> kSharing
//   kSharing   --it carries much less than that, or its time is over--------> kMeasuring
//
// TCP gives each connection about as much as any other, in both directions. What a job sends is in
// our hands: we give back the credit for what has come from it. And what it gets follows from what
// it sends. So in kSharing each job has an account: the credit that it was given back, with what it
// gets for so many bytes, over its part of the link. Nobody's account may be more than SlackBytes()
// ahead of another's; credit waits until it is not. The job with the least account never waits.
//
// This is weighted fair queueing (Demers, Keshav and Shenker, SIGCOMM'89) with the virtual time of
// start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM'96): an account is a job's finish tag,
// and the least of them the virtual time. What is scheduled is credit, not packets, so a job may be
// ahead by the slack, and the link is never idle for want of a word from here.
//
// A job may want the link and be slow for another reason: its members, their own links. Then the
// others would wait for nothing. That shows in what the link carries, and we measure again, for
// longer each time.
//
// A pure class. Equal calls give equal answers. It knows no bytes and no connections. Jobs that it
// was not told of have all the room there is. One owner thread. Times do not go back.
class LinkShare {
 public:
  enum class Phase : uint8_t { kAlone, kMeasuring, kSharing };

  static constexpr uint64_t kNoBound = std::numeric_limits<uint64_t>::max();
  // How far an account may be ahead: what the link carries in so long, and so much at least.
  static constexpr int64_t kSlackNs = 20'000'000;
  static constexpr uint64_t kSlackBytesMin = kMiB;
  // A measurement takes so long, and so many bytes, but no longer than that.
  static constexpr int64_t kMeasureNs = 200'000'000;
  static constexpr uint64_t kMeasureBytes = 16 * kMiB;
  static constexpr int64_t kMeasureNsMax = 1'000'000'000;
  // So long nothing is held back after sharing has not paid: kMeasureNs, then longer each time.
  static constexpr int64_t kPauseRatio = 4;
  static constexpr int64_t kPauseNsMax = 8'000'000'000;
  // When sharing has paid for so long, what the link carries is measured anew.
  static constexpr int64_t kSharingNs = 10'000'000'000;
  // Whoever has neither sent nor got anything for so long does not want the link.
  static constexpr int64_t kSilenceNs = 250'000'000;

  LinkShare() = default;
  LinkShare(const LinkShare&) = delete;
  LinkShare& operator=(const LinkShare&) = delete;

  // A job comes, or its rules change.
  void Set(JobId job, const view::JobQuota& quota);
  void Remove(JobId job);
  // With fewer than two nothing is to be told.
  size_t job_count() const { return jobs_.size(); }

  // Whether more of the job waits, at its members or here, than is on its way.
  void SetWants(JobId job, bool wants, int64_t now_ns);
  // What has come from the job's members, and what has left to them, over the link.
  void OnReceived(JobId job, uint64_t bytes, int64_t now_ns);
  void OnSent(JobId job, uint64_t bytes, int64_t now_ns);

  // For so many bytes that have come from the job credit may go back now. Asked for a job that has
  // credit to be given back.
  uint64_t RoomBytes(JobId job, int64_t now_ns);
  // As much as that ever is while others want the link, too. kNoBound: it has all the room.
  uint64_t MostRoomBytes(JobId job);
  // It goes back.
  void OnGiven(JobId job, uint64_t bytes);

  Phase phase() const { return active_count_ < 2 ? Phase::kAlone : phase_; }
  // Its part of the link beside those that want it now. 0: it does not want it.
  double PartOf(JobId job) const;
  uint64_t SlackBytes() const;
  // What the link carried, in both directions together, when it was last measured. 0: never.
  uint64_t BytesPerMs() const { return carried_per_ms_; }

 private:
  struct Job {
    view::JobQuota quota;
    bool wants = false;
    bool is_active = false;
    int64_t moved_at_ns = 0;
    // In both directions, of late.
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    double part = 0;
    double account = 0;  // In bytes of the whole link.
  };
  // What the link carries while several want it.
  struct Measurement {
    uint64_t bytes = 0;
    int64_t ns = 0;

    uint64_t BytesPerMs() const;
  };

  Job* Count(JobId job, uint64_t bytes, int64_t now_ns);
  // nullptr: it has all the room there is.
  Job* FindSharing(JobId job);
  // What a byte that the job sends loads the link with, in the part that is the job's.
  static double CostOf(const Job& job);
  // Time goes on: who wants the link, and what has been measured.
  void Advance(int64_t now_ns);
  void Refresh(int64_t now_ns);
  void SetParts();
  double LeastAccount(const Job* except) const;
  bool IsIdle(uint64_t carried_per_ms) const;
  void EndMeasurement();
  // Whether sharing costs little enough of what the link carries.
  static bool Pays(uint64_t sharing_per_ms, uint64_t without_per_ms);
  void Begin(Phase phase, int64_t pause_ns);

  std::map<JobId, Job> jobs_;
  size_t active_count_ = 0;
  int64_t now_ns_ = 0;
  int64_t refreshed_at_ns_ = 0;
  Phase phase_ = Phase::kMeasuring;
  int64_t phase_ns_ = 0;  // How long the phase has lasted; time in kAlone does not count.
  int64_t pause_ns_ = 0;  // How long this kMeasuring lasts at least.
  int64_t next_pause_ns_ = kMeasureNs;
  Measurement measured_;
  int poor_count_ = 0;        // Measurements in a row that say that sharing does not pay.
  uint64_t poor_per_ms_ = 0;  // The last one.
  uint64_t carried_per_ms_ = 0;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_LINK_SHARE_H_
