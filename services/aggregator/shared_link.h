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

// The host's link, and the jobs that meet on it at all lanes of the process (docs/quotas.md).
//
// A job has one account (LinkShare), wherever its bytes go through. So a job at one lane and a job
// at all of them have their parts of the link, and not of each lane. Lanes at which credit of one
// job waits take turns with what that job gets, by deficit round robin (Shreedhar and Varghese,
// SIGCOMM'95) without the rounds: none is given kLaneAheadBytes more than another one that waits.
//
// A lane says what its jobs have moved, and asks for its credit, once in a pass: Settle takes one
// lock for all of it. Where something waits, the lane sleeps or does other things. Whoever makes
// room wakes it.
//
// Any thread. Nothing blocks for longer than another thread's Settle.
class SharedLink {
 public:
  // So far may a lane be ahead of another lane of its job.
  static constexpr uint64_t kLaneAheadBytes = 256 * kKiB;
  // It is worth waking a lane for so much, or for all that waits, if that is less.
  static constexpr uint64_t kWakeBytes = 64 * kKiB;
  // Nobody waits longer for a lane that was woken, and has not come.
  static constexpr int64_t kLateNs = 20'000'000;

  // A data thread's end of the link.
  class Lane {
   public:
    // `wake` has that thread settle soon. It is called on any thread, under a lock: it does not
    // block, and calls nothing of the link.
    Lane(SharedLink* link, std::function<void()> wake);
    // All its uses have ended.
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    SharedLink& link() const { return *link_; }
    // Whether there has been room for what waits since this was asked.
    bool TakeWoken() { return woken_.exchange(false, std::memory_order_acquire); }

   private:
    friend class SharedLink;

    void Wake();

    SharedLink* const link_;
    const std::function<void()> wake_;
    std::atomic<bool> woken_{false};
  };

  enum class UseId : uint64_t {};

  // What one life of a job at a lane says in a pass, and is given. The lane's own.
  struct Turn {
    UseId use{};
    bool wants = false;  // More of it waits, at its members or here, than is on its way.
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    uint64_t held_bytes = 0;   // Credit that is to be given back.
    uint64_t given_bytes = 0;  // The answer: so much of it goes back now.
  };

  SharedLink() = default;
  SharedLink(const SharedLink&) = delete;
  SharedLink& operator=(const SharedLink&) = delete;

  // A life of a job begins at a lane, and ends. Until SetQuota it has no rules.
  UseId Begin(Lane* lane, JobId job);
  void End(UseId use);
  // The job has begun.
  void SetQuota(JobId job, const view::JobQuota& quota);

  // Takes what the turns say, and gives what there is room for. The counts are zero then, and
  // held_bytes is less by given_bytes.
  void Settle(std::span<Turn* const> turns, int64_t now_ns);

  // Several jobs are here. Otherwise nothing is to be said, and credit goes back at once.
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
    uint64_t waiting_bytes = 0;  // When it last settled.
    uint64_t given_bytes = 0;    // In all its life, and what idleness is worth.
    std::optional<int64_t> woken_at_ns;
  };
  struct Job {
    std::vector<Use*> uses;
    size_t wanting_count = 0;
  };

  // Times of several threads do not come in order.
  int64_t NotBefore(int64_t now_ns);
  void SetWants(Use& use, bool wants, int64_t now_ns);
  void Give(Use& use, Turn& turn, int64_t now_ns);
  // What the other lanes of its job leave to it.
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
