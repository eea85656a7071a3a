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
// whether the slice leaves the node. Pure functions of the tensor, which it borrows.
class ActiveRound {
 public:
  explicit ActiveRound(const AgentTensor& tensor) : tensor_(tensor) {}

  uint32_t PartOf(SliceIndex slice) const;

  // --- What this node gives.

  // How many of its ranks do, and which.
  uint32_t GivingRanks(SliceIndex slice) const;
  std::vector<LocalRank> Givers(SliceIndex slice) const;
  uint32_t GivenLength(SliceIndex slice) const;
  // How it travels.
  wire::Form FormOf(SliceIndex slice) const;
  // What that takes of the owner's credit.
  uint32_t CostOf(SliceIndex slice) const;
  // Where it lies.
  Memory Source() const;
  // How many ranks are in those bytes.
  uint32_t RanksGiven(SliceIndex slice) const;

  // --- What it gets.

  // When the slice is done its result is here.
  bool WillHold(SliceIndex slice) const;
  // It comes from the owner.
  bool WantsResult(SliceIndex slice) const;
  // It is what this node gives: it is copied here.
  bool CopiesOwn(SliceIndex slice) const;

  // --- Who else there is.

  // Nobody else has to do with the slice: its result is made here.
  bool IsPrivate(SliceIndex slice) const;
  // Nobody else has to do with any slice.
  bool IsPrivate() const { return StaysHere(tensor_.participation.member_count() == 1); }

  SliceBytes BytesOf(SliceIndex slice, Memory memory, uint32_t length_bytes) const;

 private:
  // How much of a slice there is, where its part holds `part_bytes`.
  uint32_t LengthIn(SliceIndex slice, uint64_t part_bytes) const;
  // What no other member takes part in does not go to an owner.
  bool StaysHere(bool others_are_out) const;
  // A round that is held here is finished for others.
  bool FinishesHeld() const { return tensor_.finish->round == tensor_.held.round; }

  const AgentTensor& tensor_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_ACTIVE_ROUND_H_
