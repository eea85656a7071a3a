// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/agent_process.h"

// Simulated trainers whose gathers go on with the ranks that are left, as all_gather_survivors does
// (docs/collectives.md). A call is an all_gather. If that is aborted, the call goes on with two
// reductions, and so does each later call: the first finds who is left, the second brings the parts
// of those that are in both.
namespace talweg::sim {

std::optional<size_t> AgentProcess::PartnerOf(size_t place) const {
  for (size_t i = 0; i < plans_.size(); ++i) {
    const size_t by = plans_[i]->tensor().goes_on_by;
    if (by == 0 || plans_[by]->group().empty()) continue;
    if (i == place) return by;
    if (by == place) return i;
  }
  return std::nullopt;
}

bool AgentProcess::HearsFromItsCall(pipeline::TensorIndex tensor) const {
  // If some report was false, tensors fail that have lost nobody.
  if (trace_->HasReached(kFalseReport)) return false;
  for (size_t place = 0; place < plans_.size(); ++place) {
    if (plans_[place]->name() != allocated_.at(tensor).spec.name) continue;
    return GoesOn(place) && PartnerOf(place);
  }
  return false;
}

uint64_t AgentProcess::Progress(const RankProcess& rank, size_t place) const {
  const RankTensor& tensor = rank.tensors[place];
  return GoesOn(place) && PartnerOf(place) ? tensor.calls : tensor.taken.value();
}

bool AgentProcess::MayPush(const RankProcess& rank, size_t place) const {
  const RankTensor& tensor = rank.tensors[place];
  if (!tensor.is_mine || tensor.failed || tensor.pushed != tensor.taken) return false;
  if (IsReduction(place)) return rank.tensors[*PartnerOf(place)].is_reducing;
  return !tensor.is_reducing && Progress(rank, place) < EndOfStep(rank);
}

size_t AgentProcess::BeginCall(LocalRank local, size_t place) {
  RankTensor& tensor = ranks_[local.value()].tensors[place];
  if (!GoesOn(place) || !tensor.has_lost_a_rank) return place;
  tensor.is_reducing = true;
  return *PartnerOf(place);
}

void AgentProcess::NoteCall(LocalRank local, size_t place, const pipeline::CompleteRound& complete,
                            Epoch epoch) {
  const std::optional<size_t> partner = PartnerOf(place);
  if (!partner) return;
  const bool is_reduction = IsReduction(place);
  RankTensor& gather = ranks_[local.value()].tensors[is_reduction ? *partner : place];
  if (complete.status == pipeline::Status::kAborted) {
    if (is_reduction) throw Violation{name_ + ": a reduction of those that are left is aborted"};
    trace_->Reached("a gather goes on with the ranks that are left");
    gather.has_lost_a_rank = gather.is_reducing = true;
    return;
  }
  const std::vector<Ledger::RankOfMember> ranks =
      ledger_->RanksIn(*plans_[place], complete.sum_epoch);
  if (!is_reduction) {
    gather.found = ranks;
    return EndCall(local, place, epoch);
  }
  if (!gather.found) {
    gather.found = ranks;
    return;
  }
  const size_t before = std::erase_if(*gather.found, [&](const Ledger::RankOfMember& rank) {
    return std::find(ranks.begin(), ranks.end(), rank) == ranks.end();
  });
  if (before > 0) trace_->Reached("a rank is lost between the reductions of a gather");
  EndCall(local, *partner, epoch);
}

void AgentProcess::EndCall(LocalRank local, size_t place, Epoch epoch) {
  RankTensor& gather = ranks_[local.value()].tensors[place];
  ledger_->OnGathered(name_ + " rank " + std::to_string(local.value()),
                      allocated_.at(gather.index).key, gather.calls, {core().config().self, local},
                      epoch, *gather.found);
  ++gather.calls;
  gather.is_reducing = false;
  gather.found.reset();
}

}  // namespace talweg::sim
