// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_AGGREGATOR_TENSOR_H_
#define TALWEG_LIBS_AGGREGATION_AGGREGATOR_TENSOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libs/aggregation/effects.h"
#include "libs/aggregation/slice_round.h"
#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/view/participation.h"
#include "libs/view/placement.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

// What an aggregator knows of one tensor of a job (docs/protocol.md, section 4).
namespace talweg::aggregation {

inline constexpr uint64_t kTensorBytesMax = 16 * kGiB;

// What all members must say about a tensor, and who said it first.
struct Agreement {
  std::string name;
  Collective collective;
  view::Group group;
  uint32_t root_rank = 0;  // In `root_epoch`; kNoRank: it is gone; 0 if there is no root.
  Epoch root_epoch;
  uint32_t by_rank = 0;

  // The size of the group. 1 for "all ranks": there the number does not matter.
  uint32_t RankCount() const { return group.empty() ? 1 : static_cast<uint32_t>(group.size()); }
  uint64_t Bytes() const { return collective.bytes(RankCount()); }
  // Whether the tensor is useless in the view of `root_epoch`, and in later ones.
  bool IsDead() const { return root_rank == wire::kNoRank; }
};

Agreement AgreementOf(const wire::Declare& declare, Epoch epoch);

// "f32[100] sum", "f32[100] broadcast from rank 3", "f32[100] all_gather among 2 ranks (0.0, 1.0)".
std::string Describe(const Agreement& agreement);

// Returns a text that names both sides if they differ, or "". Ranks of roots are compared only
// within one epoch.
std::string Disagreement(const Agreement& first, const Agreement& other);

// Returns why nobody can declare this in this view, or "".
std::string DeclareProblem(const wire::Declare& declare, const view::View& view);

// A slice that is summed here.
struct LocalSlice {
  SliceIndex index;
  uint32_t part = 0;
  uint64_t offset_bytes = 0;  // In the tensor.
  uint32_t length_bytes = 0;
  uint64_t slot_offset_bytes = 0;  // See Collective::travel_offset.
  SliceRound round;
  // How many writes read this slice in the memory that the tensor's `result` names. Nothing is
  // summed into it meanwhile, even after a change of the view.
  uint32_t writes_under_way = 0;
};

struct Poison {
  wire::FailedCode code = wire::FailedCode::kMismatch;
  std::string text;
};

// One member's declaration in the present epoch, on its present connection.
struct Declaration {
  bool declared = false;
  bool answered = false;
  std::array<wire::RemoteRef, 2> result;
};

// One member's memory for contributions.
struct Slots {
  AllocationId id;  // 0: no bytes are placed here.
  uint64_t bytes = 0;
  std::optional<wire::RemoteRef> ref;  // Known once allocated.
};

// A record that all parts of the core read. Each part writes only the fields under its name.
struct AggregatorTensor {
  // Declarations.
  TensorKey key;
  std::optional<Agreement> agreed;        // Kept over epochs.
  std::optional<Poison> poison;           // Kept until the job's end.
  std::vector<Declaration> declarations;  // By member index; empty before the epoch's first.

  // TensorMemory: how the present view cuts the tensor, and its memory. A member's slots are kept
  // over epochs while their size stays.
  uint32_t slice_count = 0;  // 0: not placed in this epoch.
  view::Participation participation;
  uint64_t reserved_bytes = 0;
  bool is_placed = false;  // The job's quota counts it. It may have no bytes here.
  AllocationId result;
  bool result_is_here = false;  // The memory that `result` names has come.
  std::map<view::MemberIdentity, Slots> slots;

  // Rounds.
  std::vector<LocalSlice> local;  // By slice, ascending.
  uint32_t slices_done = 0;       // How many are summed in the present round.
  Round hurried;                  // The last round whose missing members were told to hurry.

  // Recovery.
  std::optional<wire::Decision> decision;
  Round held;  // The round from which joiners continue.

  bool Placed() const { return slice_count > 0; }
  bool DeclaredBy(MemberIndex member) const;
  // Whether all memory is here that a contribution of this member needs.
  bool HasMemoryFor(const view::MemberIdentity& member) const;
  // Returns nullptr if there is no such slice, or if it is summed elsewhere.
  LocalSlice* FindLocal(SliceIndex slice);
  // Cuts the tensor as `view` does. Rounds begin anew. Returns true if the slices here lie where
  // they lay before: the memory is used on, and writes under way stay counted.
  bool Place(const view::View& view, AggregatorIndex self);
  // How many bytes one member's slots take here, in the present placement.
  uint64_t SlotBytes() const;
  // Forgets everything that belongs to one epoch.
  void LeaveEpoch();
};

using Tensors = std::map<TensorKey, AggregatorTensor>;

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_AGGREGATOR_TENSOR_H_
