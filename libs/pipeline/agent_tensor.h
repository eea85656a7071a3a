// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_AGENT_TENSOR_H_
#define TALWEG_LIBS_PIPELINE_AGENT_TENSOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/slice_states.h"
#include "libs/view/participation.h"
#include "libs/view/placement.h"
#include "libs/wire/frames.h"
#include "libs/wire/round_kind.h"

// What an agent knows of one tensor. Plain state: the core's parts change it, tests read it.
namespace talweg::pipeline {

// Which slices travel to an owner.
enum class Travel : uint8_t {
  kNone = 1,    // This node is the whole job, and there are no aggregators.
  kShared = 2,  // Slices in which another member takes part.
  kAll = 3,     // All: the job has one node, and has aggregators so that they are used.
};

// A tensor at this member.
//
//   state       | what happens                                               | next state
//   ------------+------------------------------------------------------------+-----------
//   kAllocating | its memory is there                                        | kDeclaring
//   kDeclaring  | all owners of the present view have agreed                 | kOpen
//   kOpen       | a new view is frozen, or the connection to an owner broke  | kDeclaring
//   any         | it cannot go on: no memory, no room, ranks that disagree   | kFailed
//
// Ranks may have been told that a tensor in kOpen or kDeclaring has failed (`failed_status`),
// because a rank is gone that it cannot do without. Other nodes may still need the held round.
enum class TensorState : uint8_t {
  kAllocating = 1,
  kDeclaring = 2,  // Memory is allocated; not all owners of the present view have agreed.
  kOpen = 3,
  kFailed = 4,
};

// A tensor's active round at this member: the round whose slices travel.
//
//   state          | what happens                                   | next state
//   ---------------+------------------------------------------------+-----------------------------
//   kFilling       | the node's contribution is made                | kTravelling
//   kTravelling    | all slices are over, or the round is aborted   | kFilling, of the next round
//   kReported      | the decision: redo; or abort the held round    | kFilling or kTravelling
//   kReported      | the decision: abort the open round             | kFilling, of the next round
//   kReported      | the decision: finish the held round            | kFinishingHeld
//   kReported      | the decision: finish the open round            | kFinishingOpen
//   kFinishingHeld | all slices are over                            | kFilling or kTravelling
//   kFinishingOpen | all slices are over                            | kFilling, of the next round
//   any            | a new view is frozen; no rank is told of the   | kFilling or kTravelling
//                  | tensor, or the node is the whole job           |
//   any            | a new view is frozen                           | kReported
//   any            | the tensor fails                               | kFilling
//
// "kFilling or kTravelling": kTravelling if the node's contribution to the open round is made. It
// may be made in kReported and in kFinishingHeld, too.
enum class RoundState : uint8_t {
  kFilling = 1,        // Ranks push the open round.
  kTravelling = 2,     // The open round's slices leave, and results come.
  kReported = 3,       // Nothing travels: the primary owner decides what becomes of the round.
  kFinishingHeld = 4,  // Other nodes get the held round's result from nodes that have it.
  kFinishingOpen = 5,  // The open round's result is put together from slices that nodes have.
};

// A rank's declaration that has not been answered.
struct PendingDeclare {
  LocalRank local_rank;
  uint32_t request = 0;
};

// The answer of an owner of the present view.
struct OwnerAgreement {
  bool agreed = false;
  wire::RemoteRef slot;  // Where slot offset 0 of our contributions goes.
};

// The newest round that has ended here. Its result lies in the buffer of the round's parity.
struct HeldRound {
  Round round;
  Epoch sum_epoch;  // 0: the round was aborted, and there are no bytes.
  uint32_t ranks_summed = 0;
  std::vector<uint64_t> lengths;  // By part, how many bytes of it are here.
  std::vector<bool> left_out;     // By local rank, as in CompleteRound.

  bool has_result() const { return sum_epoch != Epoch{0}; }
};

// The slices of round held + 1 whose results are here, and the epoch and ranks of their sums.
struct Partial {
  Epoch sum_epoch;
  uint32_t ranks_summed = 0;
  uint32_t have_count = 0;
  std::vector<bool> have;         // By slice.
  std::vector<uint64_t> lengths;  // By part, in bytes: where the last slice that is here ends.
};

// What the ranks here contribute to the open round.
struct OpenContribution {
  RoundSignature signature = 0;
  std::vector<uint64_t> lengths;  // By part, in bytes; 0 for a part that no rank here gives.
  LocalRank by;                   // The rank that said so first.
  std::string disagreement;       // Not empty: another rank says something else.
};

// The nodes that an owner waits for, as last reported to people.
struct NodesNamed {
  Round round;
  std::vector<uint32_t> nodes;
  int64_t until_ns = 0;  // Until then the same nodes are not reported again.
};

// A rank is left out of at most so many rounds in a row. The next one waits for it.
inline constexpr uint32_t kLeftOutInARowMax = 8;

struct AgentTensor {
  TensorIndex index;
  TensorKey key;
  TensorSpec spec;
  LocalRank declared_by;
  MemoryWishes wishes;  // The first accepted declaration's.

  TensorState state = TensorState::kAllocating;
  // If not kOk, the ranks have been told that the tensor has failed. While `state` is not kFailed,
  // this node still gives other nodes the round that it holds.
  Status failed_status = Status::kOk;
  std::string failed_text;
  std::vector<PendingDeclare> pending;
  std::vector<bool> told;  // By local rank: it has been told that it may push.

  // Who takes part, by the ranks' numbers when the tensor is first placed. Never resolved again.
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
  // The tensor has lost a member that it cannot do without. It stays dead in later views in which
  // another member takes that place, because other nodes may have given the tensor up already.
  bool is_dead = false;
  // If the tensor needs every rank: its group's members when it was first placed.
  std::vector<view::MemberIdentity> needed_members;

  // In the present view.
  AggregatorIndex primary;
  std::vector<view::Slice> slices;
  std::map<AggregatorIndex, OwnerAgreement> owners;  // The primary owner and the slices' owners.

  HeldRound held;
  // The first round of the unbroken series of aborted rounds up to `held`. A rank may push these
  // rounds late. 0: there is none, or every rank has pushed them.
  Round aborted_from;

  // By local rank: it has not pushed a round that went on without it, which is round held. Until it
  // does, the open round waits for all.
  std::vector<bool> owes;
  // By local rank: of how many rounds in a row it was left out, up to round held. Empty: of none.
  std::vector<uint32_t> left_out_in_a_row;

  // The state of round held + 1.
  std::vector<bool> pushed;  // By local rank.
  uint32_t pushed_count = 0;
  std::vector<bool> left_out;  // By local rank: the round goes on without it, also if it pushes.
  // The round waits for all, because the one before has no result: each rank has to hear of that
  // before it can be told of this one.
  bool needs_all = false;
  // When the round goes on without the ranks that have not pushed it. 0: nobody is in a hurry.
  int64_t hurry_ns = 0;
  OpenContribution given;
  int32_t priority = 0;
  uint64_t order = 0;  // The order in which tensors became ready.
  int64_t first_push_ns = 0;
  int64_t next_notice_ns = 0;
  NodesNamed named;

  Partial partial;

  // The slices of the active round: usually held + 1; in a Finish of the held round, held.
  SliceStates slice_states;
  // How the ranks disagree, as the result of the first slice says it.
  struct Disagreement {
    SliceIndex slice;
    std::string text;
  };
  std::optional<Disagreement> disagreement;

  // Whether any rank has been told that it may push.
  bool announced() const;
  Round open_round() const { return held.round.Next(); }
  Round active_round() const { return finish() ? finish()->round : open_round(); }
  RoundState round_state() const;
  // How the active round's result comes from what the nodes give.
  wire::RoundKind kind() const {
    return finish() ? wire::RoundKind::kFinish : wire::KindOf(spec.collective);
  }
  // Whether the node's contribution to the open round is made: all local ranks of the group have
  // pushed the round, or it goes on without the rest.
  bool contributed() const {
    return !left_out.empty() || (pushed_count > 0 && pushed_count == in_group_count);
  }
  // In kReported, what this member has reported; otherwise null.
  const wire::Report* report() const { return std::get_if<wire::Report>(&recovery_); }
  // In kFinishingHeld and kFinishingOpen, the decision; otherwise null.
  const wire::Decision* finish() const { return std::get_if<wire::Decision>(&recovery_); }
  bool awaits_decision() const { return report() != nullptr; }
  // Whether the active round has nothing that could travel before local ranks have pushed it.
  bool WaitsForPushes() const { return !contributed() && finish() == nullptr; }
  // Whether all owners of the present view have agreed to the tensor.
  bool agreed() const;
  // Whether contributions are reduced, copied or encoded on this node before they leave.
  bool reduces() const {
    return pushed.size() > 1 || wishes.on_device || spec.collective.encodes() ||
           spec.collective.leaves_out();
  }
  // How the slices of the active round travel.
  Encoding travel_encoding() const { return wire::EncodingOf(kind(), spec.collective); }
  bool travels_encoded() const { return travel_encoding() != Encoding::kPlain; }
  // Whether something of the tensor cannot end without an answer of `owner`.
  bool WaitsFor(AggregatorIndex owner) const;
  // The tensor's local ranks that have not pushed round held + 1.
  std::vector<LocalRank> MissingRanks() const;
  // Whether `rank`, by its last push, is a round behind.
  bool Owes(LocalRank rank) const { return rank.value() < owes.size() && owes[rank.value()]; }
  // Whether a round that `rank` has not pushed is over, or goes on, without it.
  bool HasGoneOnWithout(LocalRank rank) const {
    return Owes(rank) ||
           (rank.value() < left_out.size() && left_out[rank.value()] && !pushed[rank.value()]);
  }
  // Whether a push of `round` by `rank` is of a round that went on without the rank and is over.
  bool IsOwed(Round round, LocalRank rank) const { return round <= held.round && Owes(rank); }
  // Whether the open round may go on without the ranks that have not pushed it. A rank that has
  // not been told of the tensor would begin with the next round, and stay a round behind the
  // others. What a rank that is always late gives would never be in a sum.
  bool MayLeaveOutMissing() const;
  // Whether what `rank` pushes to the open round comes too late for it.
  bool LeavesOut(LocalRank rank) const {
    return rank.value() < left_out.size() && left_out[rank.value()];
  }
  // The nodes for which the active round waits, as its owners last said.
  std::vector<uint32_t> MissingNodes() const;

  // --- Changes.

  // Sets all slices of the active round to kIdle, and those that do not concern this node to
  // kExempt.
  void ResetSlices();
  // The open round goes on without the ranks that have not pushed it.
  void LeaveOutMissing();
  // Forgets what the ranks have pushed and which results have come.
  void OpenNextRound();
  // To kReported.
  void AwaitDecision(wire::Report report) { recovery_ = std::move(report); }
  // From kReported to kFinishingHeld or kFinishingOpen.
  void Finish(const wire::Decision& decision);
  // To kFilling or kTravelling, of the open round.
  void ResumeOpenRound() { recovery_ = std::monostate(); }
  // The connection to `owner` broke. It has to agree again, and each of its slices whose result has
  // not come is contributed again.
  void LoseOwner(AggregatorIndex owner);

  // CHECKs the invariants that hold between events.
  void CheckInvariants() const;

 private:
  std::variant<std::monostate, wire::Report, wire::Decision> recovery_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_AGENT_TENSOR_H_
