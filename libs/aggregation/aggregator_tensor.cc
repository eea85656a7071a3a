// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/aggregator_tensor.h"

#include <algorithm>

#include "libs/base/counted.h"
#include "libs/base/fingerprint.h"

namespace talweg::aggregation {

Agreement AgreementOf(const wire::Declare& declare, Epoch epoch) {
  const bool has_rank = declare.collective.has_root() || declare.root_rank == wire::kNoRank;
  return {.name = declare.name,
          .collective = declare.collective,
          .group = declare.group,
          .root_rank = has_rank ? declare.root_rank : 0,
          .root_epoch = epoch,
          .by_rank = declare.by_rank};
}

std::string Describe(const Agreement& agreement) {
  std::string text = Describe(agreement.collective);
  if (!agreement.group.empty()) text += " among " + Describe(agreement.group);
  if (agreement.IsDead()) return text + ", one of which has left";
  if (!agreement.collective.has_root()) return text;
  return text + (agreement.collective.from_root() ? " from rank " : " to rank ") +
         std::to_string(agreement.root_rank);
}

std::string Disagreement(const Agreement& first, const Agreement& other) {
  const std::string first_rank = "rank " + std::to_string(first.by_rank);
  const std::string other_rank = "rank " + std::to_string(other.by_rank);
  if (first.name != other.name) {
    return "tensors '" + first.name + "' (declared by " + first_rank + ") and '" + other.name +
           "' (declared by " + other_rank + ") have the same 64-bit key: rename one of them";
  }
  const bool same_root = first.root_epoch != other.root_epoch || first.root_rank == other.root_rank;
  if (first.collective == other.collective && first.group == other.group && same_root) return "";
  Collective as_first = other.collective;
  as_first.encoding = first.collective.encoding;
  const bool only_encodings = as_first == first.collective;
  return "tensor '" + first.name + "': " + first_rank + " declared " + Describe(first) + ", " +
         other_rank + " declares " + Describe(other) + ": " +
         (only_encodings && first.collective != other.collective
              ? "start all agents of the job with the same TALWEG_ENCODING and "
                "TALWEG_ENCODING_BYTES_MIN, or declare the same encoding at all ranks"
              : "all ranks must declare the same type, length and operation");
}

std::string DeclareProblem(const wire::Declare& declare, const view::View& view) {
  if (declare.name.empty() || declare.name.find('\0') != std::string::npos) {
    return "a tensor's name is empty or contains a zero byte (declared by rank " +
           std::to_string(declare.by_rank) + ")";
  }
  const std::string who =
      "tensor '" + declare.name + "' of rank " + std::to_string(declare.by_rank) + ": ";
  if (declare.key != TensorKey{Fingerprint64(declare.name)}) {
    return who + "its key " + std::to_string(declare.key.value()) +
           " is not the fingerprint of its name";
  }
  const Collective& collective = declare.collective;
  if (const std::string problem = Problem(collective); !problem.empty()) return who + problem;
  if (collective.needs_every_rank() && declare.group.empty()) {
    return who + std::string(collective.name()) + " needs the ranks that take part in it";
  }
  if (collective.side && declare.group.empty()) {
    return who + "a side tensor needs the ranks that take part in it";
  }
  const Agreement agreement = AgreementOf(declare, view.epoch);
  // Checks one part first, so that the product cannot overflow.
  if (collective.element_count > kTensorBytesMax / DTypeSize(collective.dtype) ||
      agreement.Bytes() > kTensorBytesMax) {
    return who + Counted(collective.element_count, "element") + " of " +
           std::string(DTypeName(collective.dtype)) + " are more than " +
           FormatBytes(kTensorBytesMax) + ": split it into several tensors";
  }
  const uint64_t slices =
      agreement.Bytes() / view.slice_bytes_max + collective.part_count(agreement.RankCount()) - 1;
  if (slices >= wire::kTensorSlicesMax) {
    return who + "its " + FormatBytes(agreement.Bytes()) + " are more than " +
           std::to_string(wire::kTensorSlicesMax) + " slices of " +
           FormatBytes(view.slice_bytes_max) + ": configure the job with a larger slice size";
  }
  if (collective.has_root() && !agreement.IsDead() && declare.root_rank >= view.NumberCount()) {
    return who + "its root is rank " + std::to_string(declare.root_rank) + ", and the job has " +
           Counted(view.NumberCount(), "rank");
  }
  return "";
}

LocalSlice* AggregatorTensor::FindLocal(SliceIndex slice) {
  const auto found = std::lower_bound(
      local.begin(), local.end(), slice,
      [](const LocalSlice& candidate, SliceIndex index) { return candidate.index < index; });
  return found != local.end() && found->index == slice ? &*found : nullptr;
}

bool AggregatorTensor::Place(const view::View& view, AggregatorIndex self) {
  const Collective& collective = agreed->collective;
  const view::Placement placement(view, key, collective, agreed->group);
  std::optional<talweg::view::Place> root;
  if (collective.has_root() && !agreed->IsDead()) {
    const Rank rank{agreed->root_rank};
    if (const std::optional<MemberIndex> member = view.MemberOfRank(rank)) {
      root = talweg::view::Place{view.members[member->value()].id.node,
                                 LocalRank{rank.value() - view.RankBase(*member).value()}};
    }
  }
  participation = view::Participation(view, collective, agreed->group, root);
  const auto member_count = static_cast<uint32_t>(view.members.size());
  slice_count = static_cast<uint32_t>(placement.slices().size());
  const std::vector<LocalSlice> before = std::move(local);
  local.clear();
  for (uint32_t i = 0; i < slice_count; ++i) {
    const view::Slice& slice = placement.slices()[i];
    if (slice.owner != self) continue;
    const uint32_t part = collective.part_at(slice.offset_bytes);
    local.push_back({.index = SliceIndex{i},
                     .part = part,
                     .offset_bytes = slice.offset_bytes,
                     .length_bytes = slice.length_bytes,
                     .slot_offset_bytes = collective.travel_offset(slice.slot_offset_bytes),
                     .round = SliceRound(member_count, participation.TakerCount(part))});
  }
  const bool same = std::equal(local.begin(), local.end(), before.begin(), before.end(),
                               [](const LocalSlice& a, const LocalSlice& b) {
                                 return a.index == b.index &&
                                        a.slot_offset_bytes == b.slot_offset_bytes &&
                                        a.length_bytes == b.length_bytes;
                               });
  if (same) {
    for (size_t i = 0; i < local.size(); ++i)
      local[i].writes_under_way = before[i].writes_under_way;
  }
  return same;
}

bool AggregatorTensor::DeclaredBy(MemberIndex member) const {
  return member.value() < declarations.size() && declarations[member.value()].declared;
}

bool AggregatorTensor::HasMemoryFor(const view::MemberIdentity& member) const {
  const auto own = slots.find(member);
  return own != slots.end() && own->second.ref && (result == AllocationId{0} || result_is_here);
}

uint64_t AggregatorTensor::SlotBytes() const {
  if (local.empty()) return 0;
  const LocalSlice& last = local.back();
  return last.slot_offset_bytes +
         RoundUp(agreed->collective.travel_bytes_max(last.length_bytes), kCacheLineBytes);
}

void AggregatorTensor::LeaveEpoch() {
  slice_count = 0;
  declarations.clear();
  decision.reset();
  held = Round{0};
  slices_done = 0;
  hurried = Round{0};
}

}  // namespace talweg::aggregation
