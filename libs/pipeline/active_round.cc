// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/active_round.h"

#include <algorithm>

namespace talweg::pipeline {

uint32_t ActiveRound::PartOf(SliceIndex slice) const {
  return tensor_.spec.collective.part_at(tensor_.slices[slice.value()].offset_bytes);
}

uint32_t ActiveRound::LengthIn(SliceIndex slice, uint64_t part_bytes) const {
  const view::Slice& place = tensor_.slices[slice.value()];
  const uint64_t begin = tensor_.spec.collective.offset_in_part(place.offset_bytes);
  return static_cast<uint32_t>(
      std::min<uint64_t>(part_bytes > begin ? part_bytes - begin : 0, place.length_bytes));
}

uint32_t ActiveRound::GivingRanks(SliceIndex slice) const {
  return tensor_.participation.GivingRanks(tensor_.self, PartOf(slice));
}

std::vector<LocalRank> ActiveRound::Givers(SliceIndex slice) const {
  const uint32_t part = PartOf(slice);
  std::vector<LocalRank> givers;
  for (const view::Participation::LocalPart& rank : tensor_.participation.RanksOf(tensor_.self)) {
    if (!tensor_.participation.Gives(rank, part) || tensor_.LeavesOut(rank.local_rank)) continue;
    givers.push_back(rank.local_rank);
  }
  return givers;
}

uint32_t ActiveRound::GivenLength(SliceIndex slice) const {
  const uint32_t part = PartOf(slice);
  if (!tensor_.finish()) return LengthIn(slice, tensor_.given.lengths[part]);
  return LengthIn(slice, (FinishesHeld() ? tensor_.held.lengths : tensor_.partial.lengths)[part]);
}

wire::Form ActiveRound::FormOf(SliceIndex slice, uint32_t travel_bytes) const {
  bool has_bytes = true;
  if (tensor_.finish()) {
    has_bytes = tensor_.finish()->sources[slice.value()] == tensor_.self.value();
  } else if (!tensor_.given.disagreement.empty()) {
    return wire::Form::kDisagreement;
  } else {
    has_bytes = GivingRanks(slice) > 0;
  }
  if (!has_bytes) return wire::Form::kEmpty;
  return travel_bytes <= wire::kInlineBytesMax ? wire::Form::kInline : wire::Form::kWritten;
}

uint32_t ActiveRound::CostOf(SliceIndex slice) const {
  // In a Finish, a member that has no bytes of the slice has no length for it either.
  const wire::Form form = FormOf(slice, 0);
  if (!wire::CarriesData(form)) return 0;
  const uint32_t length_bytes = GivenLength(slice);
  if (!tensor_.travels_encoded() || IsPrivate(slice)) return wire::CreditCost(form, length_bytes);
  return wire::CreditCost(
      form, static_cast<uint32_t>(tensor_.spec.collective.travel_bytes_max(length_bytes)));
}

Memory ActiveRound::Source() const {
  if (tensor_.finish()) return Memory::kResult;
  return tensor_.reduces() ? Memory::kSendBuffer : Memory::kContribution;
}

uint32_t ActiveRound::RanksGiven(SliceIndex slice) const {
  if (!tensor_.finish()) return GivingRanks(slice);
  return FinishesHeld() ? tensor_.held.ranks_summed : tensor_.partial.ranks_summed;
}

bool ActiveRound::WillHold(SliceIndex slice) const {
  if (tensor_.finish()) return WantsResult(slice);
  return tensor_.participation.Gets(tensor_.self, PartOf(slice));
}

bool ActiveRound::WantsResult(SliceIndex slice) const {
  if (!tensor_.finish()) return WillHold(slice) && !CopiesOwn(slice);
  if (FinishesHeld()) return false;
  return tensor_.partial.have.empty() || !tensor_.partial.have[slice.value()];
}

bool ActiveRound::CopiesOwn(SliceIndex slice) const {
  // A contribution that lies on a GPU, or encoded, is not copied: its result comes from the owner.
  return tensor_.kind() == wire::RoundKind::kCopy && !tensor_.wishes.on_device &&
         !tensor_.spec.collective.encodes() && GivingRanks(slice) > 0 && WillHold(slice);
}

bool ActiveRound::IsPrivate(SliceIndex slice) const {
  return !tensor_.finish() &&
         StaysHere(tensor_.participation.IsPrivate(tensor_.self, PartOf(slice)));
}

bool ActiveRound::StaysHere(bool others_are_out) const {
  switch (tensor_.travel) {
    case Travel::kNone: return true;
    case Travel::kShared: return others_are_out;
    case Travel::kAll: return false;
  }
  return false;
}

SliceBytes ActiveRound::BytesOf(SliceIndex slice, Memory memory, uint32_t length_bytes) const {
  return {.tensor = tensor_.index,
          .round = tensor_.active_round(),
          .slice = slice,
          .memory = memory,
          .offset_bytes = tensor_.slices[slice.value()].offset_bytes,
          .length_bytes = length_bytes};
}

}  // namespace talweg::pipeline
