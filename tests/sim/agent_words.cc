// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/fingerprint.h"
#include "tests/sim/agent_process.h"

// The messages between a simulated agent and its ranks.
namespace talweg::sim {
namespace {

pipeline::Status ToStatus(shm::RankStatus status) {
  switch (status) {
    case shm::RankStatus::kOk: return pipeline::Status::kOk;
    case shm::RankStatus::kMismatch: return pipeline::Status::kMismatch;
    case shm::RankStatus::kOutOfMemory: return pipeline::Status::kOverBudget;
    case shm::RankStatus::kAborted: return pipeline::Status::kAborted;
    case shm::RankStatus::kJobFailed: return pipeline::Status::kJobFailed;
    default: return pipeline::Status::kInvalid;
  }
}

}  // namespace

void AgentProcess::OnWelcome(LocalRank rank) {
  ranks_[rank.value()].welcome = true;
  StartRanks();
}

void AgentProcess::Declare(LocalRank rank, uint32_t request, const pipeline::TensorSpec& spec) {
  shm::RankDeclaration declaration{
      .name = spec.name, .collective = spec.collective, .root_rank = spec.root_rank};
  for (const Rank each : spec.ranks) declaration.ranks.push_back(each.value());
  // The agent sets these as RankServer does. Some ranks ask for them.
  const auto shape = shm::BufferShape::Of(spec.collective, spec.rank_count());
  declaration.in_place = declaration.one_place =
      shape.all_get_one && spec.ranks.empty() && (config_.incarnation.value() + request) % 2 == 0;
  if (declaration.in_place) in_place_.insert(TensorKey{Fingerprint64(spec.name)});
  const Epoch numbers = core().views().numbers()->epoch;
  rank_server_.Say(rank, [this, request, declaration, numbers](shm::RankEventSink& sink,
                                                               shm::RankConnectionId connection) {
    // The node may have followed a newer view while this message was on its way.
    if (core().views().numbers()->epoch != numbers) ledger_->OnOlderNumbers(declaration.name);
    sink.OnRankDeclare(connection, shm::RequestId{request}, declaration);
  });
}

void AgentProcess::Say(LocalRank rank, const pipeline::Push& push) {
  rank_server_.Say(rank, [rank, push](shm::RankEventSink& sink, shm::RankConnectionId connection) {
    sink.OnRankPush(connection, {.local_rank = rank,
                                 .tensor = shm::TensorIndex{push.tensor.value()},
                                 .round = push.round,
                                 .priority = push.priority,
                                 .signature = push.signature,
                                 .lengths = push.lengths});
  });
}

void AgentProcess::OnDeclared(LocalRank rank, uint32_t request, const shm::DeclaredData& data) {
  const pipeline::TensorIndex index{data.tensor.value()};
  if (request >= kSideRequests) {
    return Later(network_->Delay(), [this, request, index, held = data.completed_round] {
      OnSideDeclared(request - kSideRequests, index, held);
    });
  }
  OnDeclareReply(rank, request, index, data.completed_round);
}

void AgentProcess::OnDeclarationRefused(LocalRank rank, uint32_t request, shm::RankStatus status,
                                        const std::string& text) {
  if (text.empty()) throw Violation{name_ + ": a declaration failed without a reason"};
  if (request >= kSideRequests) return OnSideRefused(request - kSideRequests, status, text);
  if (ranks_[rank.value()].state != RankState::kDeclaring) return;
  FailRankWith(rank, text, status == shm::RankStatus::kMismatch);
}

// Reads what the agent has published as a rank does: the lengths are in the result's table.
void AgentProcess::OnCompletion(const shm::RankServer::Completion& completion) {
  pipeline::CompleteRound complete{.tensor = pipeline::TensorIndex{completion.tensor.value()},
                                   .round = completion.round,
                                   .status = ToStatus(completion.status),
                                   .text = std::string(completion.text),
                                   .ranks_summed = static_cast<uint32_t>(completion.ranks_summed),
                                   .sum_epoch = completion.sum_epoch,
                                   .left_out = completion.left_out};
  if (complete.status == pipeline::Status::kOk) {
    complete.lengths = LengthsOf(complete.tensor, complete.round);
  }
  if (const std::optional<size_t> side = SideOf(complete.tensor)) {
    timeline_->After(network_->Delay(), [this, side, complete,
                                         life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this, side, complete] { TakeSide(*side, complete); });
    });
    return;
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    for (size_t place = 0; place < ranks_[rank].tensors.size(); ++place) {
      const RankTensor& tensor = ranks_[rank].tensors[place];
      if (!tensor.declared || tensor.index != complete.tensor) continue;
      if (ranks_[rank].state != RankState::kTraining || tensor.pushed != complete.round) continue;
      // A rank takes its result some time later.
      timeline_->After(network_->Delay(),
                       [this, rank, place, complete, epoch = core().views().present()->epoch,
                        life = network_->host(host_).life()] {
                         network_->host(host_).Deliver(life, [this, rank, place, complete, epoch] {
                           Take(LocalRank{rank}, place, complete, epoch);
                         });
                       });
    }
  }
}

void AgentProcess::OnDisconnected(LocalRank rank, const std::string& text) {
  FailRankWith(rank, text);
}

void AgentProcess::OnJobFailed(const std::string& text) {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) FailRankWith(LocalRank{rank}, text);
}

std::vector<uint64_t> AgentProcess::LengthsOf(pipeline::TensorIndex tensor, Round round) {
  const pipeline::TensorSpec& spec = allocated_.at(tensor).spec;
  const auto shape = shm::BufferShape::Of(spec.collective, spec.rank_count());
  const std::span<std::byte> result =
      rank_server_.memory().At(driver_.memory().ResultLocations(tensor)[round.value() & 1]);
  std::vector<uint32_t> words(shape.part_count);
  std::memcpy(words.data(), result.data() + shape.table_offset(), shape.table_bytes());
  return {words.begin(), words.end()};
}

}  // namespace talweg::sim
