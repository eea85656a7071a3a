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

// What an agent knows of one tensor. Plain state: AgentCore changes it, tests look at it.
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
  std::vector<SliceState> slice_states;
  uint32_t done_count = 0;    // How many of slice_states are kDone.
  uint32_t exempt_count = 0;  // Likewise.
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
  bool agreed() const {
    for (const auto& [owner, agreement] : owners) {
      if (!agreement.agreed) return false;
    }
    return true;
  }
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_AGENT_TENSOR_H_
