// SPDX-License-Identifier: Apache-2.0
// What ranks say: of their tensors and rounds, of their steps, and which view they follow
// (docs/elastic.md).
#include <string>
#include <utility>

#include "libs/telemetry/log.h"
#include "services/agent/agent_driver.h"

namespace talweg::agent {

void AgentDriver::OnRankJoined(LocalRank rank, uint32_t pid) {
  life_.OnRankAttached();
  Deliver([this, rank, pid](pipeline::Effects& out) {
    member_->OnRankJoined(rank, pid, NowNs(), out);
  });
}

void AgentDriver::OnRanksReady(bool all) {
  member_->OnRanksReady(all);
  link_->SetRanksReady(all);
}

void AgentDriver::OnRanksAttached(bool all) { link_->SetRanksAttached(all); }

void AgentDriver::OnRankDeclare(LocalRank rank, uint32_t request,
                                const pipeline::TensorSpec& spec) {
  Deliver([this, rank, request, spec](pipeline::Effects& out) {
    member_->OnRankDeclare(rank, request, spec, NowNs(), out);
  });
}

void AgentDriver::OnRankPush(const pipeline::Push& push) {
  Deliver([this, push](pipeline::Effects& out) {
    const int64_t now_ns = NowNs();
    member_->OnPush(push, now_ns, out);
    if (timeline_.Wants(push.round) && push.tensor.value() < member_->tensors().size()) {
      const pipeline::Tensor& state = *member_->tensors()[push.tensor.value()];
      timeline_.OnPushed(push.tensor, push.round,
                         state.contributed && state.open_round() == push.round, now_ns);
    }
  });
}

void AgentDriver::OnRankLeft(LocalRank rank, bool clean, const std::string& text) {
  Log(clean ? LogLevel::kInfo : LogLevel::kWarning, "local rank ", rank,
      clean ? " has left" : " was lost: ", clean ? "" : text);
  if (devices_ != nullptr) devices_->OnRankLeft(rank);
  Deliver([this, rank, clean, text](pipeline::Effects& out) {
    member_->OnRankLeft(rank, clean, text, NowNs(), out);
  });
}

void AgentDriver::OnRankFailure(const std::string& text) {
  Deliver([this, text](pipeline::Effects& out) { member_->OnLocalFailure(text, NowNs(), out); });
}

void AgentDriver::OnRankAtBoundary(LocalRank rank, uint64_t steps) {
  Deliver([this, rank, steps](pipeline::Effects& out) {
    member_->OnRankAtBoundary(rank, steps, NowNs(), out);
  });
}

void AgentDriver::OnRanksStop(std::vector<uint64_t> ended) {
  Deliver([this, ended = std::move(ended)](pipeline::Effects& out) {
    member_->OnRanksStop(ended, out);
  });
}

void AgentDriver::OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) {
  Deliver([this, rank, request, epoch](pipeline::Effects& out) {
    const bool ok = member_->OnRanksFollow(epoch, out);
    desk_->AnswerFollow(rank, request, epoch, ok);
  });
}

}  // namespace talweg::agent
