// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_CONTROL_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_CONTROL_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "libs/base/ids.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/segment.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {

// The agent's side of one control segment. One owner thread. This object keeps everything that
// decides anything. From the segment it reads only the rank's line and the ring, and each value
// once.
class RankControl {
 public:
  struct Identity {
    uint64_t incarnation = 0;
    uint32_t rank = 0;
    uint32_t size = 0;
    uint32_t local_rank = 0;
    uint32_t local_size = 0;
    uint32_t node_rank = 0;
    uint32_t node_count = 0;
    uint32_t silence_ms = 0;
  };

  static Outcome<RankControl> Create(ControlShape shape, const Identity& identity);

  const ControlShape& shape() const { return view_.shape(); }
  uint64_t bytes() const { return segment_.bytes; }
  // Returns the descriptor for the rank; this side no longer needs it.
  Descriptor TakeDescriptor() { return std::move(segment_.fd); }

  enum class Next { kEntry, kEmpty, kGarbage };
  // Copies the ring's next entry, which stays there until TakeEntry. kGarbage: the rank's tail is
  // impossible.
  Next NextEntry(RingEntry* entry) const;
  void TakeEntry() { ++consumed_; }
  bool RingEmpty() const;
  // Tells the rank that the room of taken entries is free.
  void PublishConsumed();

  // `goes_on`: see TensorState.
  void PublishState(uint32_t tensor, uint64_t round, RankStatus status, std::string_view text,
                    uint64_t ranks_summed, uint64_t sum_epoch, bool goes_on = false);
  // For a tensor with patience, before PublishState of a round that has a result.
  void PublishGoodRound(uint32_t tensor, const GoodRound& good);
  // Only the first call counts.
  void PublishFailure(RankStatus status, std::string_view text);
  // `until_awaited`: this sleep lasts until a thread waits.
  void PublishSleepSequence(uint32_t sequence, bool until_awaited = false);
  // Whether a thread of the rank sleeps, or is about to.
  bool Awaits() const;
  void PublishEventsLost();
  // See AgentLine. Returns how many steps the rank says it has ended.
  uint64_t PublishStop(uint64_t stop_at);
  uint64_t StepsEnded() const;
  void PublishEpoch(uint64_t epoch);
  void PublishBeat();

  enum class Waiter { kForRound, kForRoom };
  // Whether a Wake must be sent after something was published, of `tensor` or of any tensor.
  // Returns true once for each Wake that the rank reads, because only one is under way at a time.
  // Call OnWakeSent after sending one.
  bool WakeNeeded(Waiter waiter, std::optional<uint32_t> tensor) const;
  // The same after `bytes` of the tensor's open result have arrived. It is true only if a single
  // thread of the rank sleeps, and has asked for that many bytes.
  bool WakeNeededForBytes(uint32_t tensor, uint64_t bytes) const;
  void OnWakeSent() { ++wakes_sent_; }

 private:
  RankControl(Segment segment, ControlShape shape)
      : segment_(std::move(segment)), view_(segment_.mapping.data(), shape) {}

  Segment segment_;
  ControlView view_;
  uint64_t consumed_ = 0;
  uint64_t consumed_published_ = 0;
  uint64_t texts_ = 0;
  uint32_t events_lost_ = 0;
  uint32_t beats_ = 0;
  uint32_t wakes_sent_ = 0;
  bool failed_ = false;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_CONTROL_H_
