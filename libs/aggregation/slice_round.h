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

namespace talweg::aggregation {

// One slice of one tensor in one epoch, round after round: the contribution of every member that
// takes part in, one result out (docs/protocol.md, section 5).
//
//   kFilling --all have contributed--> kComplete --StartSum--> kSumming --OnSummed--> kFilling
//                                          |                                     (next round)
//                                          +----------Disagree-----------------------^
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

  // The last summed round's in this epoch.
  struct Standing {
    Round round;  // 0: none yet.
    Epoch sum_epoch;
    uint32_t rank_count = 0;
    uint32_t length_bytes = 0;
    wire::Mode mode = wire::Mode::kSum;
    std::string disagreement;  // Not empty: instead of a result, what the members differ in.
  };

  // What one member has contributed.
  struct Part {
    bool here = false;
    bool has_bytes = false;
    bool wants_result = true;
    uint32_t rank_count = 0;
    uint32_t length_bytes = 0;
    RoundSignature signature = 0;
    int32_t priority = 0;
    std::string disagreement;  // Among the member's own ranks.
  };

  // `taker_count` of the view's members take part in the slice.
  SliceRound(uint32_t member_count, uint32_t taker_count)
      : taker_count_(taker_count), parts_(member_count) {}

  // The caller has checked that `entry` belongs to this slice and that its form suits the op.
  Outcome OnContribution(MemberIndex from, const wire::Contribute& entry, int64_t now_ns);

  // A member's connection is gone: what it gave to a round that is not complete is forgotten.
  void Forget(MemberIndex member);

  // kComplete -> kSumming.
  void StartSum();
  // kSumming -> kFilling of the next round. `epoch`: of the view, for sums made here.
  void OnSummed(Epoch epoch);
  // kComplete -> kFilling of the next round: there is no sum, `text` stands instead.
  void Disagree(Epoch epoch, std::string text);

  State state() const { return state_; }
  // The round that fills, is complete or is summed; 0 when the epoch has not named one yet.
  Round open_round() const { return open_round_; }
  wire::Mode mode() const { return mode_; }
  uint32_t here_count() const { return here_count_; }
  uint32_t taker_count() const { return taker_count_; }
  // How long the result of a complete round is.
  uint32_t length_bytes() const;
  // By member index. Valid in every state; in kFilling after OnSummed those of the next round.
  const std::vector<Part>& parts() const { return parts_; }
  // What each member wanted of the round in `standing()`.
  bool WantedResult(MemberIndex member) const { return wanted_[member.value()].result; }
  // And how urgently.
  int32_t WantedPriority(MemberIndex member) const { return wanted_[member.value()].priority; }
  // The member whose bytes a copy round's result is; nullopt while it is not here.
  std::optional<MemberIndex> source() const { return source_; }
  // The open round's result is one that a member has from an older epoch.
  bool is_finish() const { return mode_ == wire::Mode::kCopy && sum_epoch_ != Epoch{0}; }
  const Standing& standing() const { return standing_; }
  // When the first contribution of the open round came; meaningless while there is none.
  int64_t since_ns() const { return since_ns_; }

 private:
  struct Wanted {
    bool result = false;
    int32_t priority = 0;
  };

  bool AnyDisagrees() const;
  void Stand(Standing standing);

  State state_ = State::kFilling;
  wire::Mode mode_ = wire::Mode::kSum;
  Round open_round_;
  Epoch sum_epoch_;  // Copy mode: the source's, once it is here.
  std::optional<MemberIndex> source_;
  uint32_t taker_count_;
  uint32_t here_count_ = 0;
  int64_t since_ns_ = 0;
  std::vector<Part> parts_;
  std::vector<Wanted> wanted_;
  Standing standing_;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_SLICE_ROUND_H_
