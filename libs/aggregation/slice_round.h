// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_SLICE_ROUND_H_
#define TALWEG_LIBS_AGGREGATION_SLICE_ROUND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"
#include "libs/wire/round_kind.h"

namespace talweg::aggregation {

// One slice of one tensor in one epoch, round after round: the contribution of every member that
// takes part in, one result out (docs/protocol.md, section 5).
//
//   kFilling --all have contributed--> kComplete --StartSum--> kSumming --OnSummed--> kFilling
//                                          |                      |              (next round)
//                                          +------Disagree--------+------------------^
//
// While a round fills, the previous round's result is kept and can be sent again.
class SliceRound {
 public:
  enum class State : uint8_t { kFilling = 1, kComplete = 2, kSumming = 3 };

  // How the slice answers a contribution.
  enum class Outcome : uint8_t {
    kTaken,
    kCompleted,   // Taken, and it was the last: StartSum when the result memory is free.
    kDuplicate,   // Already here; the result will come.
    kServeAgain,  // Its round is summed: send the result to this member again.
    kWrongRound,
    kWrongMode,
  };

  // The last round that ended in this epoch.
  struct Standing {
    Round round;  // 0: none yet.
    Epoch sum_epoch;
    uint32_t rank_count = 0;
    uint32_t length_bytes = 0;
    uint32_t travel_bytes = 0;  // How many bytes the result takes.
    wire::RoundKind kind = wire::RoundKind::kSum;
    std::string disagreement;  // Not empty: how the members differ, instead of a result.
  };

  // What one member has contributed.
  struct Part {
    bool here = false;
    bool has_bytes = false;
    bool wants_result = true;
    uint32_t rank_count = 0;
    uint32_t length_bytes = 0;
    uint32_t travel_bytes = 0;
    RoundSignature signature = 0;
    int32_t priority = 0;
    std::string disagreement;  // How the member's own ranks differ.
  };

  // `taker_count` of the view's members take part in the slice.
  SliceRound(uint32_t member_count, uint32_t taker_count)
      : taker_count_(taker_count), parts_(member_count) {}

  // The caller has checked that `entry` belongs to this slice and that its form fits the op.
  Outcome OnContribution(MemberIndex from, const wire::Contribute& entry, int64_t now_ns);

  // The member's connection is gone: forgets its contribution to a round that is not complete.
  void Forget(MemberIndex member);

  // kComplete -> kSumming.
  void StartSum();
  // kSumming -> kFilling of the next round. `epoch`: the view's, for sums made here. The result
  // takes `travel_bytes`.
  void OnSummed(Epoch epoch, uint32_t travel_bytes);
  // kComplete, or kSumming, -> kFilling of the next round: `text` stands instead of a sum.
  void Disagree(Epoch epoch, std::string text);

  State state() const { return state_; }
  // The round that fills, is complete or is summed; 0 while the epoch has not named one.
  Round open_round() const { return open_round_; }
  // The open round's kind. A Finish counts as a copy until its source has contributed. Meaningless
  // before the first contribution.
  wire::RoundKind kind() const { return kind_; }
  uint32_t here_count() const { return here_count_; }
  uint32_t taker_count() const { return taker_count_; }
  // The length of a complete round's result.
  uint32_t length_bytes() const;
  // By member index. Valid in every state; in kFilling after OnSummed these are of the next round.
  const std::vector<Part>& parts() const { return parts_; }
  // Whether the member wanted the result of the round in `standing()`.
  bool WantedResult(MemberIndex member) const { return wanted_[member.value()].result; }
  // How urgently it wanted it.
  int32_t WantedPriority(MemberIndex member) const { return wanted_[member.value()].priority; }
  // The member whose bytes are the result, if the round copies; nullopt until it has contributed.
  std::optional<MemberIndex> source() const { return source_; }
  const Standing& standing() const { return standing_; }
  // When the first contribution to the open round came; meaningless before.
  int64_t since_ns() const { return since_ns_; }
  // How long after the one before it the newest contribution came; 0 if it was the round's first.
  int64_t behind_ns() const { return behind_ns_; }

 private:
  struct Wanted {
    bool result = false;
    int32_t priority = 0;
  };

  bool AnyDisagrees() const;
  void Stand(Standing standing);

  State state_ = State::kFilling;
  wire::RoundKind kind_ = wire::RoundKind::kSum;
  Round open_round_;
  Epoch sum_epoch_;  // kFinish: the epoch of the source's sum.
  std::optional<MemberIndex> source_;
  uint32_t taker_count_;
  uint32_t here_count_ = 0;
  int64_t since_ns_ = 0;
  int64_t newest_ns_ = 0;  // When the newest contribution to the open round came.
  int64_t behind_ns_ = 0;
  std::vector<Part> parts_;
  std::vector<Wanted> wanted_;
  Standing standing_;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_SLICE_ROUND_H_
