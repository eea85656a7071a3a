// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "libs/base/fingerprint.h"
#include "tests/sim/agent_process.h"

// The trainers of a simulated agent.
namespace talweg::sim {

pipeline::TensorSpec AgentProcess::SpecOf(LocalRank rank, size_t tensor) const {
  const TensorProfile& profile = config_.profile->tensors[tensor];
  pipeline::TensorSpec spec{.name = "tensor" + std::to_string(tensor),
                            .collective =
                                Collective::Of(DType::kF32, profile.op, profile.bytes / 4),
                            .root_rank = profile.root_rank};
  const bool is_last_node = config_.node + 1 == config_.profile->rank_counts.size();
  if (profile.mismatch && is_last_node && rank.value() + 1 == config_.rank_count) {
    spec.collective.element_count += 16;
  }
  return spec;
}

// Rule 10: whoever has declared a tensor hears that it is disagreed upon, first or last.
void AgentProcess::CheckTold() const {
  if (ledger_ == nullptr || core_.phase() != pipeline::Phase::kActive) return;
  for (const auto& [key, disagreement] : ledger_->disagreements()) {
    const pipeline::Tensor* const tensor = core_.FindTensor(key);
    if (tensor == nullptr || tensor->state == pipeline::TensorState::kFailed ||
        core_.view()->epoch != disagreement.epoch ||
        timeline_->now_ns() < disagreement.since_ns + 60 * kSecond) {
      continue;
    }
    throw Violation{name_ + ": has not heard in 60 s that " + tensor->spec.name +
                    " is disagreed upon"};
  }
}

void AgentProcess::StartRanks() {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].state != RankState::kStarting) continue;
    ranks_[rank].state = RankState::kDeclaring;
    timeline_->After(network_->Delay(), [this, rank, life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this, rank] { DeclareNext(LocalRank{rank}); });
    });
  }
}

void AgentProcess::DeclareNext(LocalRank rank) {
  if (ranks_[rank.value()].state != RankState::kDeclaring) return;
  // All at once, in an order of its own.
  for (const TensorProfile& tensor : config_.profile->tensors) {
    const bool is_last_node = config_.node + 1 == config_.profile->rank_counts.size();
    if (tensor.mismatch && is_last_node && config_.rank_count > 1) {
      trace_->Reached("ranks of one node disagree");
    }
  }
  std::vector<size_t> order(config_.profile->tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[timeline_->random().Below(i)]);
  }
  for (const size_t tensor : order) {
    Run([&](pipeline::Effects& out) {
      core_.OnRankDeclare(rank, static_cast<uint32_t>(tensor), SpecOf(rank, tensor),
                          timeline_->now_ns(), out);
    });
  }
}

void AgentProcess::OnDeclareReply(const pipeline::DeclareReply& reply) {
  RankProcess& rank = ranks_[reply.local_rank.value()];
  if (rank.state != RankState::kDeclaring) return;
  if (reply.status != pipeline::Status::kOk) {
    if (reply.text.empty()) throw Violation{name_ + ": a declaration failed without a reason"};
    return FailRankWith(reply.local_rank, reply.text, reply.status == pipeline::Status::kMismatch);
  }
  RankTensor& tensor = rank.tensors[reply.request];
  tensor.declared = true;
  tensor.index = reply.tensor;
  tensor.pushed = tensor.taken = reply.held;
  for (const RankTensor& other : rank.tensors) {
    if (!other.declared) return;
  }
  rank.state = RankState::kTraining;
  if (config_.profile->in_steps) {
    std::optional<Round> entered;
    for (const RankTensor& other : rank.tensors) {
      // Its open round may have been aborted in this very view.
      if (core_.tensors().at(other.index.value())->is_dead) continue;
      if (other.taken == entered.value_or(other.taken)) {
        entered = other.taken;
        continue;
      }
      if (ledger_->tensor_failed()) break;
      // Nobody is left who could tell: all who had been there before have finished meanwhile. Or
      // such a joiner is the one who tells: it goes on from rounds that are apart.
      static constexpr const char* kNobodyLeft = "a joiner whose survivors have all left";
      if (!ledger_->SurvivorIn(epoch_, core_.config().self) || trace_->HasReached(kNobodyLeft)) {
        trace_->Reached(kNobodyLeft);
        break;
      }
      throw Violation{name_ + ": enters in the middle of a step"};
    }
    if (rank.tensors.front().taken > Round{0})
      trace_->Reached("a joiner goes on with a later round");
  }
  timeline_->After(network_->Delay(),
                   [this, local = reply.local_rank, life = network_->host(host_).life()] {
                     network_->host(host_).Deliver(life, [this, local] { PushNext(local); });
                   });
}

void AgentProcess::PushNext(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state != RankState::kTraining) return;
  std::vector<size_t> order;
  Round lowest{UINT64_MAX};
  for (const RankTensor& tensor : rank.tensors) lowest = std::min(lowest, tensor.taken);
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    const RankTensor& tensor = rank.tensors[i];
    if (tensor.pushed != tensor.taken || tensor.taken.value() >= config_.profile->round_count) {
      continue;
    }
    if (config_.profile->in_steps && tensor.taken != lowest) continue;
    order.push_back(i);
  }
  while (!order.empty()) {
    const size_t place = timeline_->random().Below(order.size());
    Push(local, order[place]);
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(place));
  }
  CheckDone(local);
}

void AgentProcess::Push(LocalRank local, size_t place) {
  RankTensor& tensor = ranks_[local.value()].tensors[place];
  const TensorMemory& memory = memory_.at(tensor.index);
  tensor.pushed = tensor.pushed.Next();
  if (core_.FindTensor(memory.key)->held.round >= tensor.pushed) {
    trace_->Reached("a push of a round that was aborted before");
  }
  *memory.contributions[local.value()] =
      ContributionCells(core_.config().self, local, memory.key, tensor.pushed, memory.spec.bytes());
  const auto priority = static_cast<int32_t>(timeline_->random().Below(3));
  Run([&](pipeline::Effects& out) {
    core_.OnPush({.rank = local,
                  .tensor = tensor.index,
                  .round = tensor.pushed,
                  .priority = priority},
                 timeline_->now_ns(), out);
  });
}

void AgentProcess::OnCompleted(const pipeline::CompleteRound& complete) {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    for (size_t place = 0; place < ranks_[rank].tensors.size(); ++place) {
      const RankTensor& tensor = ranks_[rank].tensors[place];
      if (!tensor.declared || tensor.index != complete.tensor) continue;
      if (ranks_[rank].state != RankState::kTraining || tensor.pushed != complete.round) continue;
      // A rank takes its result when it gets round to it.
      timeline_->After(network_->Delay(), [this, rank, place, complete, epoch = core_.view()->epoch,
                                           life = network_->host(host_).life()] {
        network_->host(host_).Deliver(life, [this, rank, place, complete, epoch] {
          Take(LocalRank{rank}, place, complete, epoch);
        });
      });
    }
  }
}

// By the numbers that ranks here were given when they came.
std::optional<Ledger::RankOfMember> AgentProcess::RootOf(size_t place) const {
  const Rank root{config_.profile->tensors[place].root_rank};
  const std::optional<MemberIndex> member = told_view_->MemberOfRank(root);
  if (!member) return std::nullopt;
  return Ledger::RankOfMember{told_view_->members[member->value()].id,
                              LocalRank{root.value() - told_view_->RankBase(*member).value()}};
}

// As a rank has it that copies what has come, and all of it again only where that is not the whole.
const Cells& AgentProcess::ResultOf(const TensorMemory& memory, Round round) {
  const Arriving& arriving = memory.arriving;
  if (arriving.round == round && arriving.bytes == memory.spec.bytes()) {
    trace_->Reached("a result is copied while it comes");
    return *arriving.cells;
  }
  if (arriving.round == round && arriving.bytes > memory.spec.bytes()) {
    trace_->Reached("what had come of a result comes again");
  }
  return *memory.results[round.value() & 1];
}

void AgentProcess::Take(LocalRank local, size_t place, const pipeline::CompleteRound& complete,
                        Epoch epoch) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state != RankState::kTraining) return;
  RankTensor& tensor = rank.tensors[place];
  const TensorMemory& memory = memory_.at(tensor.index);
  const std::string who = name_ + " rank " + std::to_string(local.value());
  // Said again, as another rank came late to it; this one may have taken a later round meanwhile. A
  // RankServer passes over it likewise.
  if (complete.round <= tensor.taken) return;
  if (complete.round != tensor.taken.Next()) throw Violation{who + ": a round was skipped"};
  const bool aborted = complete.status == pipeline::Status::kAborted;
  if (!aborted && complete.status != pipeline::Status::kOk) {
    throw Violation{who + ": a round ended with " + pipeline::StatusName(complete.status)};
  }
  ledger_->OnOutcome(who,
                     {.tensor = memory.key,
                      .op = memory.spec.collective.op,
                      .round = complete.round,
                      .aborted = aborted,
                      .sum_epoch = complete.sum_epoch,
                      .ranks_summed = complete.ranks_summed,
                      .member = core_.config().self,
                      .epoch = epoch,
                      .root = RootOf(place)},
                     ResultOf(memory, complete.round));
  tensor.taken = complete.round;
  if (aborted) trace_->Reached("a rank hears that its round is aborted");
  if (trace_->on()) {
    trace_->Add(timeline_->now_ns(), who,
                "takes " + memory.spec.name + " round " + std::to_string(complete.round.value()) +
                    (aborted ? " (aborted)" : "") + " of epoch " +
                    std::to_string(complete.sum_epoch.value()));
  }
  const uint64_t one_in = config_.profile->straggler_one_in;
  if (one_in == 0 || !timeline_->random().OneIn(one_in)) return PushNext(local);
  const int64_t pause_ns = static_cast<int64_t>(timeline_->random().Below(8 * kSecond));
  timeline_->After(pause_ns, [this, local, life = network_->host(host_).life()] {
    network_->host(host_).Deliver(life, [this, local] { PushNext(local); });
  });
}

void AgentProcess::ConfuseRank(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state != RankState::kTraining || core_.phase() == pipeline::Phase::kFailed) return;
  rank.confused = true;
  RankTensor tensor = rank.tensors[timeline_->random().Below(rank.tensors.size())];
  switch (timeline_->random().Below(3)) {
    case 0: tensor.index = pipeline::TensorIndex{1000}; break;
    case 1: tensor.pushed = Round{tensor.pushed.value() + 5}; break;
    case 2:
      if (tensor.pushed == tensor.taken) return;  // Else it pushes the same again.
      break;
  }
  Run([&](pipeline::Effects& out) {
    core_.OnPush({.rank = local, .tensor = tensor.index, .round = tensor.pushed},
                 timeline_->now_ns(), out);
  });
}

void AgentProcess::CheckDone(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  for (const RankTensor& tensor : rank.tensors) {
    if (tensor.taken.value() < config_.profile->round_count) return;
  }
  rank.state = RankState::kDone;
  trace_->Add(timeline_->now_ns(), name_, "rank " + std::to_string(local.value()) + " is done");
  Run([&](pipeline::Effects& out) { core_.OnRankLeft(local, true, "", timeline_->now_ns(), out); });
}

void AgentProcess::FailRankWith(LocalRank local, const std::string& text, bool may_linger) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state == RankState::kDone || rank.state == RankState::kDead ||
      rank.state == RankState::kFailed) {
    return;
  }
  rank.state = RankState::kFailed;
  rank.text = text;
  // A trainer that gets an error ends, at once or later, without a goodbye.
  const int64_t linger_ns = may_linger && timeline_->random().OneIn(2) ? 100 * kSecond : 0;
  timeline_->After(
      linger_ns + network_->Delay(), [this, local, life = network_->host(host_).life()] {
        network_->host(host_).Deliver(life, [this, local] {
          Run([&](pipeline::Effects& out) {
            core_.OnRankLeft(local, false, "it ended on an error", timeline_->now_ns(), out);
          });
        });
      });
}

void AgentProcess::KillRank(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state == RankState::kDone || rank.state == RankState::kDead) return;
  rank.state = RankState::kDead;
  trace_->Add(timeline_->now_ns(), name_, "rank " + std::to_string(local.value()) + " is killed");
  Run([&](pipeline::Effects& out) {
    core_.OnRankLeft(local, false, "its socket hung up", timeline_->now_ns(), out);
  });
}

bool AgentProcess::Settled() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
    return rank.state == RankState::kDone || rank.state == RankState::kFailed ||
           rank.state == RankState::kDead;
  });
}

bool AgentProcess::AllRanksDone() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const RankProcess& rank) { return rank.state == RankState::kDone; });
}

std::string AgentProcess::Unsettled() const {
  static constexpr const char* kStates[] = {"starting", "declaring", "training",
                                            "done",     "failed",    "dead"};
  std::string text = name_ + " (" + pipeline::PhaseName(core_.phase()) + ", epoch " +
                     std::to_string(core_.newest_view() ? core_.newest_view()->epoch.value() : 0) +
                     "):";
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    text +=
        " rank " + std::to_string(rank) + " is " + kStates[static_cast<int>(ranks_[rank].state)];
    for (const RankTensor& tensor : ranks_[rank].tensors) {
      text +=
          " " + std::to_string(tensor.taken.value()) + "/" + std::to_string(tensor.pushed.value());
    }
    text += ";";
  }
  return text;
}

}  // namespace talweg::sim
