// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_ACTIVE_ROUND_H_
#define TALWEG_LIBS_PIPELINE_ACTIVE_ROUND_H_

#include <cstdint>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_tensor.h"
#include "libs/pipeline/effects.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// The active round of a placed tensor, slice by slice: what this node gives, what it gets, and
// whether the slice leaves the node. Its functions are pure. The tensor must outlive it.
class ActiveRound {
 public:
  explicit ActiveRound(const AgentTensor& tensor) : tensor_(tensor) {}

  uint32_t PartOf(SliceIndex slice) const;

  // --- What this node gives.

  // How many ranks of this node give something to the slice, in time or late; and which of them
  // have given it in time.
  uint32_t GivingRanks(SliceIndex slice) const;
  std::vector<LocalRank> Givers(SliceIndex slice) const;
  uint32_t GivenLength(SliceIndex slice) const;
  // In which form the node's contribution travels, if it takes `travel_bytes`.
  wire::Form FormOf(SliceIndex slice, uint32_t travel_bytes) const;
  // How many bytes of the owner's credit it takes; at most, if it travels encoded.
  uint32_t CostOf(SliceIndex slice) const;
  // Where the contribution lies.
  Memory Source() const;
  // How many ranks' contributions the node's bytes hold.
  uint32_t RanksGiven(SliceIndex slice) const;

  // --- What it gets.

  // Whether this node has the slice's result when the slice is done.
  bool WillHold(SliceIndex slice) const;
  // Whether the owner sends that result.
  bool WantsResult(SliceIndex slice) const;
  // Whether this node's own contribution is the result: the node copies it, and the owner sends
  // none.
  bool CopiesOwn(SliceIndex slice) const;

  // --- Who else there is.

  // Whether no other node gives to the slice or gets it. Its result is then made here.
  bool IsPrivate(SliceIndex slice) const;
  // Whether that is true for every slice.
  bool IsPrivate() const { return StaysHere(tensor_.participation.member_count() == 1); }

  SliceBytes BytesOf(SliceIndex slice, Memory memory, uint32_t length_bytes) const;

 private:
  // How many bytes of the slice hold data, if its part holds `part_bytes`.
  uint32_t LengthIn(SliceIndex slice, uint64_t part_bytes) const;
  // Whether a slice stays on this node. `others_are_out`: no other member takes part in it.
  bool StaysHere(bool others_are_out) const;
  // Whether this node finishes a round for others whose result it already holds.
  bool FinishesHeld() const { return tensor_.round_state() == RoundState::kFinishingHeld; }

  const AgentTensor& tensor_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_ACTIVE_ROUND_H_
