// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_DECLARATIONS_H_
#define TALWEG_LIBS_AGGREGATION_DECLARATIONS_H_

#include <cstdint>
#include <string>

#include "libs/aggregation/aggregator_core_config.h"
#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/present_view.h"
#include "libs/aggregation/status.h"
#include "libs/aggregation/tensor_memory.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

namespace talweg::aggregation {

// What the members agree on: which tensors exist, who has declared each and has been answered, and
// which have failed (docs/protocol.md, section 4). Only this class adds tensors, and writes their
// agreement, their declarations and why they are poisoned.
//
// A declaration is answered when the tensor's open round is decided and the member's slots are
// allocated.
//
// A pure class. One owner thread. The constructor's arguments outlive it.
class Declarations {
 public:
  Declarations(const AggregatorCoreConfig* config, const PresentView* view,
               const Attendance* attendance, TensorMemory* memory, Tensors* tensors,
               Counters* counters)
      : config_(config),
        view_(view),
        attendance_(attendance),
        memory_(memory),
        tensors_(tensors),
        counters_(counters) {}

  // A new view: all members declare again, and no declaration is answered before AnswerAll.
  void OnView();
  // Every open round is decided: answers, and releases memory that no member has asked for again.
  void AnswerAll(Effects& out);

  // Returns false if no agent says this: the key is not the name's, or the member asks again about
  // a tensor of which it was told in this epoch that it has failed.
  bool OnDeclare(ConnectionId connection, MemberIndex member, const wire::Declare& entry,
                 Effects& out);
  // A tensor has failed at a member.
  void OnFailed(MemberIndex member, const wire::Failed& entry, Effects& out);
  // The member's connection is over.
  void OnLost(MemberIndex member);
  void OnAllocated(AllocationId id, wire::RemoteRef ref, Effects& out);
  void OnAllocationRefused(AllocationId id, const std::string& text, Effects& out);

  // Answers the declaration if it can be answered, and has not been.
  void Answer(AggregatorTensor& tensor, MemberIndex member, Effects& out);
  // The tensor has failed: tells all members that have declared it why.
  void Poison(AggregatorTensor& tensor, wire::FailedCode code, std::string text, Effects& out);

 private:
  // Whether there is no room for the declaration's record.
  bool IsRefused(ConnectionId connection, const wire::Declare& entry, Effects& out);
  // Answers those members whose declarations can be answered.
  void AnswerMembers(AggregatorTensor& tensor, Effects& out);
  bool PlaceOrPoison(AggregatorTensor& tensor, Effects& out);
  void AnswerPoisoned(AggregatorTensor& tensor, MemberIndex member, wire::DeclaredStatus status,
                      Effects& out);
  template <typename Entry>
  void Say(ConnectionId connection, Entry entry, Effects& out) const {
    SendEntry(connection, view_->epoch(), std::move(entry), out);
  }

  const AggregatorCoreConfig* const config_;
  const PresentView* const view_;
  const Attendance* const attendance_;
  TensorMemory* const memory_;
  Tensors* const tensors_;
  Counters* const counters_;
  bool answers_ = false;       // AnswerAll was called in this view.
  uint64_t record_bytes_ = 0;  // What tensors' names, groups and failures take.
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_DECLARATIONS_H_
