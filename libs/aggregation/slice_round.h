// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_SLICE_ROUND_H_
#define TALWEG_LIBS_AGGREGATION_SLICE_ROUND_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "libs/base/ids.h"
#include "libs/wire/frames.h"

namespace talweg::aggregation {

// One slice of one tensor in one epoch, round after round: every member's contribution in, one
// result out (docs/protocol.md, section 5).
//
//   kFilling --every member contributed--> kComplete --StartSum--> kSumming --OnSummed--> kFilling
//                                                                                (next round)
//
// While a round fills, the result of the one before stands and can be sent again.
class SliceRound {
 public:
  enum class State : uint8_t { kFilling = 1, kComplete = 2, kSumming = 3 };

  // What the slice says to a contribution.
  enum class Outcome : uint8_t {
    kTaken,
    kCompleted,   // Taken, and it was the last: StartSum when the result memory is free.
    kDuplicate,   // Already here; the result will come.
    kServeAgain,  // Its round is summed: send the result to this member again.
    kWrongRound,
    kWrongMode,
  };

  // Of the last summed round in this epoch.
  struct Standing {
    Round round;  // 0: none yet.
    Epoch sum_epoch;
    uint32_t rank_count = 0;
    wire::Mode mode = wire::Mode::kSum;
  };

  struct Part {
    bool here = false;
    bool has_bytes = false;
    bool wants_result = true;
    uint32_t rank_count = 0;
  };

  explicit SliceRound(uint32_t member_count) : parts_(member_count) {}

  // The caller has checked that `entry` belongs to this slice and that its form suits the op.
  Outcome OnContribution(MemberIndex from, const wire::Contribute& entry, int64_t now_ns);

  // A member's connection is gone: what it gave to a round that is not complete is forgotten.
  void Forget(MemberIndex member);

  // kComplete -> kSumming.
  void StartSum();
  // kSumming -> kFilling of the next round. `epoch`: of the view, for sums made here.
  void OnSummed(Epoch epoch);

  State state() const { return state_; }
  // The round that fills, is complete or is summed; 0 when the epoch has not named one yet.
  Round open_round() const { return open_round_; }
  wire::Mode mode() const { return mode_; }
  uint32_t here_count() const { return here_count_; }
  // By member index. Valid in every state; in kFilling behind OnSummed those of the next round.
  const std::vector<Part>& parts() const { return parts_; }
  // Of the round in `standing()`: what each member wanted.
  bool WantedResult(MemberIndex member) const { return wanted_[member.value()]; }
  // The member whose bytes a copy round's result is; nullopt while it is not here.
  std::optional<MemberIndex> source() const { return source_; }
  const Standing& standing() const { return standing_; }
  // When the first contribution of the open round came; meaningless while there is none.
  int64_t since_ns() const { return since_ns_; }

 private:
  State state_ = State::kFilling;
  wire::Mode mode_ = wire::Mode::kSum;
  Round open_round_;
  Epoch sum_epoch_;  // Copy mode: the source's, once it is here.
  std::optional<MemberIndex> source_;
  uint32_t here_count_ = 0;
  int64_t since_ns_ = 0;
  std::vector<Part> parts_;
  std::vector<bool> wanted_;
  Standing standing_;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_SLICE_ROUND_H_
