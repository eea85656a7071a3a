// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_AGENT_TENSOR_H_
#define TALWEG_LIBS_PIPELINE_AGENT_TENSOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/effects.h"
#include "libs/view/participation.h"
#include "libs/view/placement.h"
#include "libs/wire/frames.h"

// What an agent knows of one tensor. Plain state: the core's parts change it, tests look at it.
namespace talweg::pipeline {

enum class SliceState : uint8_t {
  kIdle = 0,      // Not on its way: the round is not contributed, or its owner is not ready.
  kQueued = 1,    // Waits for credit.
  kReducing = 2,  // Charged; the node's ranks are being combined.
  kReduced = 3,   // Charged and combined: leaves at the next Flush.
  kSent = 4,
  kDone = 5,    // Its result is here (or, in a Finish, acknowledged).
  kExempt = 6,  // This node has nothing to do with it.
};

// The states of a round's slices, and how many of them are over.
class SliceStates {
 public:
  // All are kIdle.
  void Reset(size_t count);
  void Set(size_t slice, SliceState state);

  SliceState operator[](size_t slice) const { return states_[slice]; }
  size_t size() const { return states_.size(); }
  auto begin() const { return states_.begin(); }
  auto end() const { return states_.end(); }
  // How many are kDone.
  uint32_t done_count() const { return done_count_; }
  // Each is kDone or kExempt.
  bool AreOver() const { return done_count_ + exempt_count_ == states_.size(); }
  // CHECKs the counts.
  void CheckInvariants() const;

 private:
  std::vector<SliceState> states_;
  uint32_t done_count_ = 0;
  uint32_t exempt_count_ = 0;
};

// Which slices travel to an owner.
enum class Travel : uint8_t {
  kNone = 1,    // This node is the whole job, without aggregators.
  kShared = 2,  // Those in which another member takes part.
  kAll = 3,     // The job is of one node, and has aggregators to use them.
};

enum class TensorState : uint8_t {
  kAllocating = 1,
  kDeclaring = 2,  // Memory is there; not all owners of the present view have agreed.
  kOpen = 3,
  kFailed = 4,
};

// A declaration of one rank that has not been answered.
struct PendingDeclare {
  LocalRank local_rank;
  uint32_t request = 0;
};

// What an owner of the present view has answered.
struct OwnerAgreement {
  bool agreed = false;
  wire::RemoteRef slot;  // Where slot offset 0 of our contributions goes.
};

// A result that is complete here: the round that it is of lies in the buffer of its parity.
struct HeldRound {
  Round round;
  Epoch sum_epoch;  // 0: it was aborted, there are no bytes.
  uint32_t ranks_summed = 0;
  std::vector<uint64_t> lengths;  // By part, in bytes: as much of each as is here.
};

// The slices of round held + 1 whose results are here, and what sums they are of.
struct Partial {
  Epoch sum_epoch;
  uint32_t ranks_summed = 0;
  uint32_t have_count = 0;
  std::vector<bool> have;         // By slice.
  std::vector<uint64_t> lengths;  // By part, in bytes: where the last slice that is here ends.
};

// What the ranks here say of the open round.
struct OpenContribution {
  RoundSignature signature = 0;
  std::vector<uint64_t> lengths;  // By part, in bytes; those of parts that none here gives are 0.
  LocalRank by;                   // Who said so first.
  std::string disagreement;       // Not empty: another one says something else.
};

// The nodes that an owner waits for, as people were last told of them.
struct NodesNamed {
  Round round;
  std::vector<uint32_t> nodes;
  int64_t until_ns = 0;  // The same is no news before.
};

struct AgentTensor {
  TensorIndex index;
  TensorKey key;
  TensorSpec spec;
  LocalRank declared_by;
  bool staged = false;  // See AgentCore::StageContributions.

  TensorState state = TensorState::kAllocating;
  // Not kOk: the ranks have been told that it is of no use any more. While `state` is not kFailed
  // this node still gives others the round that it holds.
  Status failed_status = Status::kOk;
  std::string failed_text;
  std::vector<PendingDeclare> pending;
  bool announced = false;  // Some rank has been told that it may push.

  // Who takes part, by the first view of this member. Resolved when it is first placed.
  bool resolved = false;
  view::Group group;           // Empty: all ranks.
  std::vector<bool> in_group;  // By local rank.
  uint32_t in_group_count = 0;
  view::MemberIdentity root_member;
  LocalRank root_local_rank;

  // In the present view.
  view::Participation participation;
  MemberIndex self;
  Travel travel = Travel::kShared;
  // Somebody is gone without whom it means nothing. Also after views in which somebody else holds
  // the place: others may have given the tensor up before.
  bool is_dead = false;
  // Whom the group had when the tensor was first placed, where it needs every rank.
  std::vector<view::MemberIdentity> needed_members;

  // The present view's.
  AggregatorIndex primary;
  std::vector<view::Slice> slices;
  std::map<AggregatorIndex, OwnerAgreement> owners;  // The primary and the slices' owners.

  HeldRound held;
  // The first of the rounds up to `held` that were aborted one after another; 0: `held` was not.
  // A rank may come to them when all of them are over.
  Round aborted_from;

  // Round held + 1.
  std::vector<bool> pushed;  // By local rank.
  uint32_t pushed_count = 0;
  bool contributed = false;  // All local ranks of the group have pushed it.
  OpenContribution given;
  int32_t priority = 0;
  uint64_t order = 0;  // In which tensors became ready.
  int64_t first_push_ns = 0;
  int64_t next_notice_ns = 0;
  NodesNamed named;

  Partial partial;

  // The active round: usually held + 1; in a Finish of a round that is held here, held.
  SliceStates slice_states;
  // What the result of the first slice says that the ranks do not agree on.
  struct Disagreement {
    SliceIndex slice;
    std::string text;
  };
  std::optional<Disagreement> disagreement;

  bool awaits_decision = false;
  std::optional<wire::Report> report;    // As frozen, while awaits_decision.
  std::optional<wire::Decision> finish;  // The copy round that is being done.

  Round open_round() const { return held.round.Next(); }
  Round active_round() const { return finish ? finish->round : open_round(); }
  // All owners of the present view have agreed to it.
  bool agreed() const;
  // Contributions are combined, or copied, here before they leave.
  bool reduces() const { return pushed.size() > 1 || staged; }
  // Something of it cannot end without a word of `owner`.
  bool WaitsFor(AggregatorIndex owner) const;
  // Those of the tensor's group here that have not pushed round held + 1.
  std::vector<LocalRank> MissingRanks() const;
  // For whom the active round waits, as far as its owners have said it lately.
  std::vector<uint32_t> MissingNodes() const;

  // --- Changes.

  // No slice of the active round is on its way.
  void ResetSlices();
  // What ranks have pushed, and what has come, is over.
  void OpenNextRound();
  // The connection to `owner` broke: it has to agree anew, and each slice there whose result has
  // not come is contributed again.
  void LoseOwner(AggregatorIndex owner);

  // CHECKs what must hold between events.
  void CheckInvariants() const;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_AGENT_TENSOR_H_
