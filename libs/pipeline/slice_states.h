// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_SLICE_STATES_H_
#define TALWEG_LIBS_PIPELINE_SLICE_STATES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

// The way of a slice of the active round.
//
//   state     | what happens                                           | next state
//   ----------+--------------------------------------------------------+-----------
//   kIdle     | the slice does not concern this node                   | kExempt
//   kIdle     | the round may travel                                   | kQueued
//   kQueued   | it leaves as it lies                                   | kSent
//   kQueued   | the ranks are to be reduced first                      | kReducing
//   kQueued   | it has no bytes and concerns no other node             | kDone
//   kQueued   | another owner of the tensor is away                    | kIdle
//   kReducing | the outcome is the contribution                        | kReduced
//   kReducing | the outcome is the result: no other node takes part    | kDone
//   kReduced  | it leaves                                              | kSent
//   kSent     | its result comes, encoded                              | kDecoding
//   kSent     | its result comes, or an acknowledgement                | kDone
//   kDecoding | its result is decoded                                  | kDone
//   the first five | the connection to its owner broke                 | kIdle
//   any       | Reset: another round, or other slices                  | kIdle
//
namespace talweg::pipeline {

enum class SliceState : uint8_t {
  kIdle = 0,      // Not queued: the round is not contributed, or an owner is not ready.
  kQueued = 1,    // Waits for credit.
  kReducing = 2,  // Credit is charged; the node's ranks are being reduced.
  kReduced = 3,   // Credit is charged, the slice is reduced: it leaves at the next Flush.
  kSent = 4,
  kDecoding = 5,  // Its result is here, encoded.
  kDone = 6,      // Its result is here, or acknowledged if this is a Finish of the held round.
  kExempt = 7,    // This node has nothing to do with it.
};
inline constexpr uint8_t kSliceStateCount = 8;

// Whether the table above leads from one state to the other, but by a Reset.
constexpr bool MayFollow(SliceState state, SliceState next) {
  switch (state) {
    case SliceState::kIdle:
      return next == SliceState::kIdle || next == SliceState::kQueued ||
             next == SliceState::kExempt;
    case SliceState::kQueued:
      return next == SliceState::kIdle || next == SliceState::kReducing ||
             next == SliceState::kSent || next == SliceState::kDone;
    case SliceState::kReducing:
      return next == SliceState::kIdle || next == SliceState::kReduced || next == SliceState::kDone;
    case SliceState::kReduced: return next == SliceState::kIdle || next == SliceState::kSent;
    case SliceState::kSent:
      return next == SliceState::kIdle || next == SliceState::kDecoding ||
             next == SliceState::kDone;
    case SliceState::kDecoding: return next == SliceState::kDone;
    case SliceState::kDone:
    case SliceState::kExempt: break;
  }
  return false;
}

// The states of a round's slices, with counts of those that are over.
class SliceStates {
 public:
  // Sets `count` slices to kIdle.
  void Reset(size_t count);
  // CHECKs that the state may follow the slice's present one.
  void Set(size_t slice, SliceState state);

  SliceState operator[](size_t slice) const { return states_[slice]; }
  size_t size() const { return states_.size(); }
  auto begin() const { return states_.begin(); }
  auto end() const { return states_.end(); }
  // How many slices are kDone.
  uint32_t done_count() const { return done_count_; }
  // Whether the slice waits for nothing more from its owner.
  bool IsAnswered(size_t slice) const;
  // Whether each slice is kDone or kExempt.
  bool AreOver() const;
  // CHECKs the counts.
  void CheckInvariants() const;

 private:
  std::vector<SliceState> states_;
  uint32_t done_count_ = 0;
  uint32_t exempt_count_ = 0;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_SLICE_STATES_H_
