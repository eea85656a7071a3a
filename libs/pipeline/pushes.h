// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_PUSHES_H_
#define TALWEG_LIBS_PIPELINE_PUSHES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/local_ranks.h"
#include "libs/pipeline/rounds.h"
#include "libs/pipeline/step_quiesce.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/tick_timer.h"
#include "libs/pipeline/view_state.h"

namespace talweg::pipeline {

// What the ranks of this node contribute. When all of a tensor's local ranks have pushed a round,
// the round is contributed and its slices are queued.
class Pushes {
 public:
  // All outlive this.
  Pushes(const AgentCoreConfig* config, const ViewState* views, const LocalRanks* ranks,
         TensorTable* tensors, const StepQuiesce* quiesce, Rounds* rounds, Failures* failures,
         TickTimer* timer)
      : config_(config),
        views_(views),
        ranks_(ranks),
        tensors_(tensors),
        quiesce_(quiesce),
        rounds_(rounds),
        failures_(failures),
        timer_(timer) {}

  void OnPush(const Push& push, int64_t now_ns, Effects& out);
  // Half of those that `round` waits for have been there since `since_ns`, at its owner or on this
  // node. If this node is missing, the round goes on without its late ranks when the tensor's
  // patience is over.
  void OnHurry(AgentTensor& tensor, Round round, int64_t since_ns);
  // A new view: the owners' words were about members that may be gone. The owners of the new view
  // say theirs anew.
  void ForgetHurries();
  // Call it after each batch of events.
  void Flush();
  // A rank has left: fails the rounds that wait for it.
  void OnRankLeft(Effects& out);
  // An owner says that `round` waits for this node. Fails the round if it needs a rank that has
  // left, which no rank here needs.
  void OnAwaited(AgentTensor& tensor, Round round, Effects& out);
  // Goes on without late ranks. Reports the ranks that other ranks here wait for.
  void OnTick(int64_t now_ns, Effects& out);

 private:
  // Answers a push of a round that was aborted before this rank came to it. Returns false for any
  // other push.
  bool AnswerOver(const AgentTensor& tensor, const Push& push, Effects& out) const;
  // Returns what the rank did wrong, or "".
  std::string Problem(const Push& push) const;
  // Notes what the rank contributes, and where ranks disagree.
  void TakeGiven(AgentTensor& tensor, const Push& push);
  void CheckLeftRanks(AgentTensor& tensor, Effects& out);
  // Fails the open round if it needs a rank here that has left.
  void FailForLeftRank(AgentTensor& tensor, const std::string& what_others_did, Effects& out);
  // The push is of a round that has gone on without its rank. Returns false for any other push.
  bool TakeLate(AgentTensor& tensor, const Push& push, int64_t now_ns, Effects& out);
  void AddPush(AgentTensor& tensor, LocalRank rank, int64_t now_ns);
  // No owner sees which ranks of this node are late if the round concerns no other node.
  void HurryIfAlone(AgentTensor& tensor, int64_t now_ns);
  void LeaveOutMissing(AgentTensor& tensor, Effects& out);
  // The node's contribution is made.
  void Contribute(AgentTensor& tensor, Effects& out);

  const AgentCoreConfig* const config_;
  const ViewState* const views_;
  const LocalRanks* const ranks_;
  TensorTable* const tensors_;
  const StepQuiesce* const quiesce_;
  Rounds* const rounds_;
  Failures* const failures_;
  TickTimer* const timer_;
  uint64_t next_order_ = 1;
  std::set<TensorIndex> hurried_;  // Whose open round goes on without late ranks soon.
  // Rounds whose patience has not begun: the round before is not over here, or a rank is still a
  // round behind, or does not know the tensor.
  struct Hurry {
    Round round;
    int64_t since_ns = 0;
  };
  std::map<TensorIndex, Hurry> hurried_early_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_PUSHES_H_
