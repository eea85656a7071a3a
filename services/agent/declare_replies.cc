// SPDX-License-Identifier: Apache-2.0
#include "services/agent/declare_replies.h"

namespace talweg::agent {

shm::RankStatus ToRankStatus(pipeline::Status status) {
  switch (status) {
    case pipeline::Status::kOk: return shm::RankStatus::kOk;
    case pipeline::Status::kInvalid: return shm::RankStatus::kInvalidArgument;
    case pipeline::Status::kMismatch: return shm::RankStatus::kMismatch;
    case pipeline::Status::kOverBudget: return shm::RankStatus::kOutOfMemory;
    case pipeline::Status::kAborted: return shm::RankStatus::kAborted;
    case pipeline::Status::kJobFailed: return shm::RankStatus::kJobFailed;
  }
  return shm::RankStatus::kInternal;
}

void DeclareReplies::Reply(shm::RankConnectionId connection, const pipeline::DeclareReply& reply) {
  const TensorOfRank which{reply.tensor, reply.local_rank};
  Late& late = late_[which];
  late.connection = connection;
  late.replies.push_back(reply);
  if (late.replies.size() > 1) return;  // The rank has declared it before, and waits.
  MemoryOrder order;
  const absl::Status attached = memory_->Attach(reply.tensor, reply.local_rank, connection, &order);
  if (!attached.ok()) return OnFilled(which, attached);
  orders_->Place(std::move(order),
                 [this, which](const absl::Status& filled) { OnFilled(which, filled); });
}

void DeclareReplies::OnFilled(TensorOfRank which, const absl::Status& filled) {
  const auto found = late_.extract(which);
  if (found.empty()) return;  // The rank has gone.
  const Late& late = found.mapped();
  const absl::Status attached =
      filled.ok() ? memory_->OnAttached(which.first, which.second) : filled;
  if (!attached.ok()) {
    const std::string text(attached.message());
    for (const pipeline::DeclareReply& reply : late.replies) {
      server_->RefuseDeclaration(late.connection, shm::RequestId{reply.request},
                                 shm::RankStatus::kOutOfMemory, text);
    }
    return on_failure_(text);
  }
  for (const pipeline::DeclareReply& reply : late.replies) Tell(late.connection, reply);
  // Those who were told in time have heard it already.
  for (const pipeline::CompleteRound& completed : late.completed) Tell(completed);
}

void DeclareReplies::Tell(shm::RankConnectionId connection, const pipeline::DeclareReply& reply) {
  server_->ReplyDeclared(
      connection, shm::RequestId{reply.request},
      {.tensor = ToShm(reply.tensor),
       .tensor_bytes = memory_->spec(reply.tensor).bytes(),
       .completed_round = reply.held,
       .contribution = memory_->ContributionLocation(reply.tensor, reply.local_rank),
       .result = memory_->ResultLocations(reply.tensor),
       .arrivals = memory_->ArrivalsLocation(reply.tensor),
       .shared = memory_->Shared(reply.tensor)});
}

void DeclareReplies::Publish(const pipeline::CompleteRound& completed) {
  for (auto& [which, late] : late_) {
    if (which.first == completed.tensor) late.completed.push_back(completed);
  }
  Tell(completed);
}

void DeclareReplies::Tell(const pipeline::CompleteRound& completed) {
  server_->PublishCompletion({.tensor = ToShm(completed.tensor),
                              .round = completed.round,
                              .status = ToRankStatus(completed.status),
                              .text = completed.text,
                              .ranks_summed = completed.ranks_summed,
                              .sum_epoch = completed.sum_epoch,
                              .left_out = completed.left_out});
}

void DeclareReplies::OnRankGone(LocalRank rank) {
  std::erase_if(late_, [rank](const auto& late) { return late.first.second == rank; });
}

}  // namespace talweg::agent
