// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/tensor.h"

#include <algorithm>

#include "libs/base/fingerprint.h"
#include "libs/base/mutation.h"

namespace talweg::aggregation {

Agreement AgreementOf(const wire::Declare& declare, Epoch epoch) {
  return {.name = declare.name,
          .dtype = declare.dtype,
          .op = declare.op,
          .element_count = declare.element_count,
          .root_rank = declare.op == Op::kCopy ? declare.root_rank : 0,
          .root_epoch = epoch,
          .by_rank = declare.by_rank};
}

std::string Describe(const Agreement& agreement) {
  std::string text = std::string(DTypeName(agreement.dtype)) + "[" +
                     std::to_string(agreement.element_count) + "] " +
                     std::string(OpName(agreement.op));
  if (agreement.op != Op::kCopy) return text;
  return text + (agreement.root_rank == wire::kNoRank
                     ? " from a rank that has left"
                     : " from rank " + std::to_string(agreement.root_rank));
}

std::string Disagreement(const Agreement& first, const Agreement& other) {
  const std::string first_rank = "rank " + std::to_string(first.by_rank);
  const std::string other_rank = "rank " + std::to_string(other.by_rank);
  if (first.name != other.name) {
    return "tensors '" + first.name + "' (declared by " + first_rank + ") and '" + other.name +
           "' (declared by " + other_rank + ") have the same 64-bit key: rename one of them";
  }
  const bool same_root = first.root_epoch != other.root_epoch || first.root_rank == other.root_rank;
  if (first.dtype == other.dtype && first.op == other.op &&
      TALWEG_MUTATION(lengths_not_compared, first.element_count == other.element_count, true) &&
      same_root) {
    return "";
  }
  return "tensor '" + first.name + "': " + first_rank + " declared " + Describe(first) + ", " +
         other_rank + " declares " + Describe(other) +
         ": all ranks must declare the same type, length and operation";
}

std::string DeclareProblem(const wire::Declare& declare, const View& view) {
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
  if (!IsValid(declare.dtype)) {
    return who + "there is no dtype " + std::to_string(static_cast<int>(declare.dtype));
  }
  if (!IsValid(declare.op)) {
    return who + "there is no operation " + std::to_string(static_cast<int>(declare.op));
  }
  if (!OpDefined(declare.dtype, declare.op)) {
    return who + DescribeUndefined(declare.dtype, declare.op);
  }
  if (declare.element_count > kTensorBytesMax / DTypeSize(declare.dtype)) {
    return who + std::to_string(declare.element_count) + " elements of " +
           std::string(DTypeName(declare.dtype)) + " are more than " +
           FormatBytes(kTensorBytesMax) + ": split it into several tensors";
  }
  const uint64_t bytes = declare.element_count * DTypeSize(declare.dtype);
  if (bytes / view.slice_bytes_max >= wire::kTensorSlicesMax) {
    return who + "its " + FormatBytes(bytes) + " are more than " +
           std::to_string(wire::kTensorSlicesMax) + " slices of " +
           FormatBytes(view.slice_bytes_max) + ": configure the job with a larger slice size";
  }
  if (declare.op == Op::kCopy && declare.root_rank != wire::kNoRank &&
      declare.root_rank >= view.RankCount()) {
    return who + "the root of the broadcast is rank " + std::to_string(declare.root_rank) +
           ", and the job has " + std::to_string(view.RankCount()) + " ranks";
  }
  return "";
}

LocalSlice* Tensor::FindLocal(SliceIndex slice) {
  const auto found = std::lower_bound(
      local.begin(), local.end(), slice,
      [](const LocalSlice& candidate, SliceIndex index) { return candidate.index < index; });
  return found != local.end() && found->index == slice ? &*found : nullptr;
}

bool Tensor::Place(const View& view, AggregatorIndex self) {
  const Placement placement(view, key, agreed->Bytes());
  const auto member_count = static_cast<uint32_t>(view.members.size());
  slice_count = static_cast<uint32_t>(placement.slices().size());
  slice_lengths.clear();
  slice_lengths.reserve(slice_count);
  const std::vector<LocalSlice> before = std::move(local);
  local.clear();
  for (uint32_t i = 0; i < slice_count; ++i) {
    const Slice& slice = placement.slices()[i];
    slice_lengths.push_back(slice.length_bytes);
    if (slice.owner != self) continue;
    local.push_back({.index = SliceIndex{i},
                     .offset_bytes = slice.offset_bytes,
                     .length_bytes = slice.length_bytes,
                     .slot_offset_bytes = slice.slot_offset_bytes,
                     .round = SliceRound(member_count)});
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

bool Tensor::DeclaredBy(MemberIndex member) const {
  return member.value() < declarations.size() && declarations[member.value()].declared;
}

uint64_t Tensor::SlotBytes() const {
  if (local.empty()) return 0;
  return local.back().slot_offset_bytes + RoundUp(local.back().length_bytes, kCacheLineBytes);
}

void Tensor::LeaveEpoch() {
  slice_count = 0;
  slice_lengths.clear();
  declarations.clear();
  decision.reset();
  held = Round{0};
  slices_done = 0;
  waiting_round = Round{0};
}

}  // namespace talweg::aggregation
