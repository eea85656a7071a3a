// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_SHARED_LINK_H_
#define TALWEG_SERVICES_AGGREGATOR_SHARED_LINK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "libs/aggregation/link_share.h"
#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/view/job_quota.h"

namespace talweg::aggregator {

// The host's link, which the jobs at all lanes of the process share (docs/quotas.md).
//
// A job has one account (LinkShare) for all lanes. So each job has a part of the link, not of each
// lane, whether it uses one lane or all. If a job's credit waits at several lanes, these take turns
// by deficit round robin (Shreedhar and Varghese, SIGCOMM'95) without the rounds: no lane gets
// kLaneAheadBytes more than another lane that waits.
//
// Once in a pass, a lane reports what its jobs have moved and asks for their credit. Settle takes
// one lock for all of that. A lane whose credit waits sleeps or does other work. The lane that
// makes room wakes it.
//
// Any thread may call it. A call blocks no longer than another thread's Settle takes.
class SharedLink {
 public:
  // How far a lane may be ahead of another lane of its job.
  static constexpr uint64_t kLaneAheadBytes = 256 * kKiB;
  // A lane is woken for so much room, or for all that waits, if that is less.
  static constexpr uint64_t kWakeBytes = 64 * kKiB;
  // How long the other lanes wait for a lane that was woken and has not settled.
  static constexpr int64_t kLateNs = 20'000'000;

  // A data thread's end of the link.
  class Lane {
   public:
    // `wake` makes the lane's thread settle soon. It is called on any thread, under a lock, so it
    // must not block, nor call the link.
    Lane(SharedLink* link, std::function<void()> wake);
    // All its uses must have ended.
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    SharedLink& link() const { return *link_; }
    // Returns whether the lane was woken since the last call: there may be room for what waits.
    bool TakeWoken() { return woken_.exchange(false, std::memory_order_acquire); }

   private:
    friend class SharedLink;

    void Wake();

    SharedLink* const link_;
    const std::function<void()> wake_;
    std::atomic<bool> woken_{false};
  };

  enum class UseId : uint64_t {};

  // One pass of one life of a job at a lane: its report to the link, and the answer. Owned by the
  // lane.
  struct Turn {
    UseId use{};
    // The job has bytes that wait, at its members or here, beside those on their way.
    bool wants = false;
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    uint64_t held_bytes = 0;   // Credit that waits to be given back.
    uint64_t given_bytes = 0;  // The answer: how much of it goes back now.
  };

  SharedLink() = default;
  SharedLink(const SharedLink&) = delete;
  SharedLink& operator=(const SharedLink&) = delete;

  // A life of a job begins, or ends, at a lane. Until SetQuota the job has no quota.
  UseId Begin(Lane* lane, JobId job);
  void End(UseId use);
  // Ignored unless the job has begun.
  void SetQuota(JobId job, const view::JobQuota& quota);

  // Takes the reports in `turns`, and gives the credit for which there is room. Sets the received
  // and sent bytes to 0, and takes `given_bytes` off `held_bytes`.
  void Settle(std::span<Turn* const> turns, int64_t now_ns);

  // Returns whether there are several jobs. If not, lanes report nothing, and credit goes back at
  // once.
  bool is_shared() const { return job_count_.load(std::memory_order_relaxed) > 1; }

  // For tests.
  aggregation::LinkShare::Phase phase() const;
  double PartOf(JobId job) const;
  uint64_t SlackBytes() const;

 private:
  struct Use {
    Lane* lane = nullptr;
    JobId job;
    bool wants = false;
    uint64_t waiting_bytes = 0;  // The held credit when it last settled.
    // Credit given so far, raised after a pause to within kLaneAheadBytes of the others.
    uint64_t given_bytes = 0;
    std::optional<int64_t> woken_at_ns;
  };
  struct Job {
    std::vector<Use*> uses;
    size_t wanting_count = 0;
  };

  // Returns the later of `now_ns` and the last time, since several threads' times come out of
  // order.
  int64_t NotBefore(int64_t now_ns);
  void SetWants(Use& use, bool wants, int64_t now_ns);
  void Give(Use& use, Turn& turn, int64_t now_ns);
  // Returns how much credit the use may get before it is too far ahead of the job's other lanes.
  uint64_t LaneRoomBytes(const Use& use, int64_t now_ns) const;
  void WakeLanes(int64_t now_ns);
  bool IsLate(const Use& use, int64_t now_ns) const {
    return use.woken_at_ns && now_ns - *use.woken_at_ns >= kLateNs;
  }

  mutable std::mutex mutex_;
  std::atomic<size_t> job_count_{0};
  aggregation::LinkShare share_;
  std::map<JobId, Job> jobs_;
  std::map<UseId, std::unique_ptr<Use>> uses_;
  uint64_t last_use_ = 0;
  size_t waiting_count_ = 0;  // Uses with waiting_bytes.
  int64_t now_ns_ = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SHARED_LINK_H_
