// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <utility>

#include "tests/sim/agent_process.h"

// Simulated trainers whose rounds go on without them: what they gave goes into their next
// contribution.
namespace talweg::sim {

bool AgentProcess::IsLeftOut(LocalRank rank, const pipeline::CompleteRound& complete) {
  return rank.value() < complete.left_out.size() && complete.left_out[rank.value()];
}

std::pair<uint64_t, uint64_t> AgentProcess::NextContribution(LocalRank rank, RankTensor& tensor,
                                                             const Allocated& allocated) {
  const view::MemberIdentity& self = core().config().self;
  uint64_t base = ContributionBase(self, rank, allocated.key, tensor.pushed);
  if (!allocated.spec.collective.leaves_out()) return {base, kCellStep};
  for (const Round round : tensor.gives) {
    base += ContributionBase(self, rank, allocated.key, round);
  }
  tensor.gives.push_back(tensor.pushed);
  ledger_->OnPushed(allocated.key, tensor.pushed, {self, rank}, tensor.gives);
  const pipeline::AgentTensor* const known = core().FindTensor(allocated.key);
  if (known->held.round >= tensor.pushed) {
    trace_->Reached("a late rank pushes a round that is over");
  } else if (known->LeavesOut(rank)) {
    trace_->Reached("a late rank pushes a round that is not over");
  }
  return {base, tensor.gives.size() * kCellStep};
}

void AgentProcess::NoteLeftOut(LocalRank rank, RankTensor& tensor,
                               const pipeline::CompleteRound& complete) {
  if (!IsLeftOut(rank, complete)) return tensor.gives.clear();
  trace_->Reached("a round goes on without a rank");
  if (tensor.gives.size() > 1) trace_->Reached("two rounds in a row go on without a rank");
}

void AgentProcess::WatchReduce(const pipeline::ReduceSlice& reduce) {
  const Allocated& tensor = allocated_.at(reduce.target.tensor);
  if (!tensor.spec.collective.leaves_out()) return;
  ledger_->OnCombined(name_, tensor.key, reduce.target.round, core().config().self, reduce.inputs);
  if (reduce.inputs.empty()) trace_->Reached("a round goes on without a whole node");
}

}  // namespace talweg::sim
