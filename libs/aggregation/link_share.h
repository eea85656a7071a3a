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
//   kAlone <--fewer than two jobs want the link, or two do--> kMeasuring or kSharing, as before
//   kMeasuring --measured what the link carries while nothing is held back--> kSharing
//   kSharing   --the link carries much less than that, or sharing_ns_ are over--> kMeasuring
//
// TCP gives each connection about as much as any other, in both directions. This aggregator
// controls what a job sends, by returning credit for what has come from it; what the job gets
// follows from what it sends. In kSharing each job has an account: the credit that was returned to
// it, with what it gets for those bytes, divided by its part of the link. No account may be more
// than SlackBytes() ahead of another; credit waits until it is not. The job with the least account
// never waits.
//
// This is weighted fair queueing (Demers, Keshav and Shenker, SIGCOMM'89) with the virtual time of
// start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM'96). An account is a job's finish tag,
// and the least account is the virtual time. Credit is scheduled, not packets: a job may be ahead
// by the slack, so that the link never idles because credit from here is late.
//
// A job may want the link and be slow for another reason, such as its members or their own links.
// Then the others would wait for nothing. The link then carries less, so this class measures again,
// for longer each time.
//
// A pure class. Equal calls give equal answers. It knows no bytes and no connections. Jobs that
// were not added with Set have no bound. One owner thread. Times do not go back.
class LinkShare {
 public:
  enum class Phase : uint8_t { kAlone, kMeasuring, kSharing };

  static constexpr uint64_t kNoBound = std::numeric_limits<uint64_t>::max();
  // How far an account may be ahead: what the link carries in kSlackNs, but at least
  // kSlackBytesMin.
  static constexpr int64_t kSlackNs = 20'000'000;
  static constexpr uint64_t kSlackBytesMin = kMiB;
  // A measurement takes at least this time and these bytes, but never longer than kMeasureNsMax.
  static constexpr int64_t kMeasureNs = 200'000'000;
  static constexpr uint64_t kMeasureBytes = 16 * kMiB;
  static constexpr int64_t kMeasureNsMax = 1'000'000'000;
  // If sharing has not paid, no credit is held back for kMeasureNs. That pause becomes kPauseRatio
  // times as long each time, up to kPauseNsMax.
  static constexpr int64_t kPauseRatio = 4;
  static constexpr int64_t kPauseNsMax = 8'000'000'000;
  // After sharing has paid for this many times as long as the last measurement took, the link is
  // measured again. So nothing is held back for a fiftieth of the time, on slow links too.
  static constexpr int64_t kSharingRatio = 50;
  // A job that has neither sent nor got anything for this time does not want the link.
  static constexpr int64_t kSilenceNs = 250'000'000;

  LinkShare() = default;
  LinkShare(const LinkShare&) = delete;
  LinkShare& operator=(const LinkShare&) = delete;

  // A job begins, or its rules change.
  void Set(JobId job, const view::JobQuota& quota);
  void Remove(JobId job);
  // With fewer than two jobs, nobody need call the functions below.
  size_t job_count() const { return jobs_.size(); }

  // Whether more of the job waits, at its members or here, than is on its way.
  void SetWants(JobId job, bool wants, int64_t now_ns);
  // Bytes that have come from the job's members, and that have been sent to them, over the link.
  void OnReceived(JobId job, uint64_t bytes, int64_t now_ns);
  void OnSent(JobId job, uint64_t bytes, int64_t now_ns);

  // For how many bytes from the job credit may be returned now. Call it for a job that has credit
  // to get back.
  uint64_t RoomBytes(JobId job, int64_t now_ns);
  // The most that RoomBytes returns while others want the link, too. kNoBound: the job has no
  // bound.
  uint64_t MostRoomBytes(JobId job);
  // Credit for `bytes` is returned.
  void OnGiven(JobId job, uint64_t bytes);

  Phase phase() const;
  // The job's part of the link among the jobs that want it now. 0: it does not want it.
  double PartOf(JobId job) const;
  uint64_t SlackBytes() const;
  // What the link carried, in both directions together, at the last measurement. 0: never measured.
  uint64_t BytesPerMs() const { return carried_per_ms_; }

 private:
  struct Job {
    view::JobQuota quota;
    bool wants = false;
    bool is_active = false;
    int64_t moved_at_ns = 0;
    // Recent bytes.
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    double part = 0;
    double account = 0;  // In bytes of the whole link.
  };
  // What the link carries while several jobs want it.
  struct Measurement {
    uint64_t bytes = 0;
    int64_t ns = 0;

    uint64_t BytesPerMs() const;
  };

  Job* Count(JobId job, uint64_t bytes, int64_t now_ns);
  // Returns nullptr if the job has no bound.
  Job* FindSharing(JobId job);
  // The load on the link for each byte that the job sends, divided by the job's part.
  static double CostOf(const Job& job);
  // Updates who wants the link, and the measurement, to `now_ns`.
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
  int64_t phase_ns_ = 0;    // How long the phase has lasted, without time in kAlone.
  int64_t pause_ns_ = 0;    // The least time that this kMeasuring lasts.
  int64_t sharing_ns_ = 0;  // The least time that this kSharing lasts, if it pays.
  int64_t next_pause_ns_ = kMeasureNs;
  Measurement measured_;
  int poor_count_ = 0;        // How many measurements in a row say that sharing does not pay.
  uint64_t poor_per_ms_ = 0;  // Their last result.
  uint64_t carried_per_ms_ = 0;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_LINK_SHARE_H_
