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
  Deliver(
      [this, rank, pid](pipeline::Effects& out) { core_->OnRankJoined(rank, pid, NowNs(), out); });
}

void AgentDriver::OnRanksReady(bool all) {
  core_->OnRanksReady(all);
  link_->SetRanksReady(all);
}

void AgentDriver::OnRanksAttached(bool all) { link_->SetRanksAttached(all); }

void AgentDriver::OnRankDeclare(LocalRank rank, uint32_t request,
                                const pipeline::TensorSpec& spec) {
  Deliver([this, rank, request, spec](pipeline::Effects& out) {
    core_->OnRankDeclare(rank, request, spec, NowNs(), out);
  });
}

void AgentDriver::OnRankPush(const pipeline::Push& push) {
  Deliver([this, push](pipeline::Effects& out) {
    const int64_t now_ns = NowNs();
    core_->OnPush(push, now_ns, out);
    if (timeline_.Wants(push.round) && push.tensor.value() < core_->tensors().size()) {
      const pipeline::AgentTensor& state = *core_->tensors()[push.tensor.value()];
      timeline_.OnPushed(push.tensor, push.round,
                         state.contributed && state.open_round() == push.round, now_ns);
    }
  });
}

void AgentDriver::OnRankLeft(LocalRank rank, bool clean, const std::string& text) {
  telemetry::Log(clean ? telemetry::LogLevel::kInfo : telemetry::LogLevel::kWarning, "local rank ",
                 rank, clean ? " has left" : " was lost: ", clean ? "" : text);
  if (devices_ != nullptr) devices_->OnRankLeft(rank);
  Deliver([this, rank, clean, text](pipeline::Effects& out) {
    core_->OnRankLeft(rank, clean, text, NowNs(), out);
  });
}

void AgentDriver::OnRankFailure(const std::string& text) {
  Deliver([this, text](pipeline::Effects& out) { core_->OnLocalFailure(text, NowNs(), out); });
}

void AgentDriver::OnRankAtBoundary(LocalRank rank, uint64_t steps) {
  Deliver([this, rank, steps](pipeline::Effects& out) {
    core_->OnRankAtBoundary(rank, steps, NowNs(), out);
  });
}

void AgentDriver::OnRanksStop(std::vector<uint64_t> ended) {
  Deliver(
      [this, ended = std::move(ended)](pipeline::Effects& out) { core_->OnRanksStop(ended, out); });
}

void AgentDriver::OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) {
  Deliver([this, rank, request, epoch](pipeline::Effects& out) {
    const bool ok = core_->OnRanksFollow(epoch, out);
    desk_->AnswerFollow(rank, request, epoch, ok);
  });
}

}  // namespace talweg::agent
