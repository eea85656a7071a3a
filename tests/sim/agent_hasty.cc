// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/agent_process.h"

// Simulated trainers whose waits have a time limit. It ends the waiting, and not the round
// (rule 7). What ranks write over what they have given.
namespace talweg::sim {

void AgentProcess::WaitNow(LocalRank local, size_t place) {
  const int64_t limit_ns = config_.profile->time_limit_ns;
  if (limit_ns == 0) return;
  const Round round = ranks_[local.value()].tensors[place].pushed;
  const auto more_ns = static_cast<int64_t>(hasty_.Below(static_cast<uint64_t>(limit_ns)));
  Later(limit_ns + more_ns, [this, local, place, round] { OnTimeUp(local, place, round); });
}

// The rank asks whom the round waits for, and gets an error that names them. Some then write into
// what they have given, some end, and the others wait again.
void AgentProcess::OnTimeUp(LocalRank local, size_t place, Round round) {
  RankProcess& rank = ranks_[local.value()];
  const RankTensor& tensor = rank.tensors[place];
  if (rank.state != RankState::kTraining || tensor.failed || tensor.pushed != round ||
      tensor.taken == round || core().views().has_failed()) {
    return;
  }
  AskWhom(local, place);
  if (hasty_.OneIn(3)) WriteEarly(local, place);
  if (hasty_.OneIn(60)) {
    trace_->Reached("a rank ends whose time is over");
    return FailRankWith(local, "its time was over");
  }
  trace_->Reached("a rank waits again whose time is over");
  WaitNow(local, place);
}

void AgentProcess::AskWhom(LocalRank local, size_t place) {
  RankTensor& tensor = ranks_[local.value()].tensors[place];
  tensor.asked = tensor.pushed;
  tensor.pushed_when_asked.clear();
  for (const RankProcess& rank : ranks_) {
    const RankTensor& its = rank.tensors[place];
    tensor.pushed_when_asked.push_back(its.declared && its.pushed >= tensor.asked);
  }
  rank_server_.Say(local, [place, index = tensor.index, round = tensor.asked](
                              shm::RankEventSink& sink, shm::RankConnectionId connection) {
    sink.OnRankAsk(connection, shm::RequestId{static_cast<uint32_t>(place)},
                   shm::TensorIndex{index.value()}, round);
  });
}

// The answer names ranks here that have not pushed, or else nodes that the round's owners have
// named in this epoch.
void AgentProcess::OnTold(LocalRank local, uint32_t request, const std::string& text) {
  // An agent takes no pushes any more after its job has failed. All waits end with that.
  if (text.empty() || core().views().has_failed()) return;
  const RankTensor& tensor = ranks_[local.value()].tensors.at(request);
  const std::string who = name_ + " rank " + std::to_string(local.value()) + ": round " +
                          std::to_string(tensor.asked.value()) + " of " + plans_[request]->name() +
                          " waits for " + text;
  static constexpr std::string_view kLocal = "(local rank ";
  static constexpr std::string_view kNode = " of node ";
  const auto number_at = [&](size_t at) {
    return static_cast<uint32_t>(std::stoul(text.substr(at)));
  };
  bool names_ranks = false;
  for (size_t at = text.find(kLocal); at != std::string::npos; at = text.find(kLocal, at + 1)) {
    names_ranks = true;
    if (!tensor.pushed_when_asked.at(number_at(at + kLocal.size()))) continue;
    throw Violation{who + ", which has pushed it"};
  }
  if (names_ranks) return trace_->Reached("a rank hears which ranks of its node a round waits for");
  const std::set<uint32_t>& named = awaited_[{TensorKey{Fingerprint64(plans_[request]->name())},
                                              tensor.asked, core().views().present()->epoch}];
  for (size_t at = text.find(kNode); at != std::string::npos; at = text.find(kNode, at + 1)) {
    if (named.contains(number_at(at + kNode.size()))) continue;
    throw Violation{who + ", which no owner has named"};
  }
  trace_->Reached("a rank hears which nodes a round waits for");
}

void AgentProcess::NoteWaiting(const wire::Frame& frame) {
  const auto* const waits = std::get_if<std::vector<wire::Waiting>>(&frame.entries);
  if (waits == nullptr || config_.profile->time_limit_ns == 0) return;
  for (const wire::Waiting& entry : *waits) {
    awaited_[{entry.key, entry.round, frame.header.epoch}].insert(entry.missing_nodes.begin(),
                                                                  entry.missing_nodes.end());
  }
}

bool AgentProcess::IsInPlace(LocalRank rank, pipeline::TensorIndex tensor) const {
  return driver_.memory().ContributionLocation(tensor, rank) ==
         driver_.memory().ResultLocations(tensor)[0];
}

// Overwrites the place of the rank's contribution, as an optimizer does that scales an average.
void AgentProcess::Scribble(LocalRank rank, pipeline::TensorIndex tensor) {
  if (IsInPlace(rank, tensor)) {
    trace_->Reached("a result comes to where its contribution lies");
  }
  const std::span<std::byte> bytes = ContributionOf(rank, tensor);
  for (uint64_t i = 0; i < CellCount(allocated_.at(tensor).spec.bytes()); ++i) {
    StoreCell(bytes, i, kScribbled + i);
  }
}

// The rank takes the error of its wait for the end of the round, and writes its next gradient into
// the place. An encoding may make anything of bytes that change while it reads them. A rank with
// patience has no such place.
void AgentProcess::WriteEarly(LocalRank local, size_t place) {
  const RankTensor& tensor = ranks_[local.value()].tensors[place];
  const RoundPlan& plan = *plans_[place];
  const Collective collective = plan.collective();
  const Allocated& allocated = allocated_.at(tensor.index);
  const view::MemberIdentity self = core().config().self;
  if (collective.encodes() || collective.leaves_out() || ranks_[local.value()].confused) return;
  if (!ledger_->OnWrittenEarly(allocated.key, tensor.pushed, {self, local})) return;
  trace_->Reached(IsInPlace(local, tensor.index)
                      ? "a rank writes into an open round, where its result comes to"
                      : "a rank writes into an open round");
  const uint64_t base = EarlyBase(self, local, allocated.key, tensor.pushed);
  const std::span<std::byte> bytes = ContributionOf(local, tensor.index);
  const uint64_t count = CellCount(allocated.spec.bytes());
  for (uint64_t i = hasty_.Below(count); i < count; ++i) StoreCell(bytes, i, base + i * kCellStep);
  network_->MemoryChanged(host_);
}

}  // namespace talweg::sim
