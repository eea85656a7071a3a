// SPDX-License-Identifier: Apache-2.0
#include "services/agent/rank_words.h"

#include <utility>

#include "libs/telemetry/log.h"

namespace talweg::agent {

void RankWords::OnRankJoined(LocalRank rank, uint32_t pid) {
  parts_.life->OnRankAttached();
  parts_.runner->Deliver([this, rank, pid](pipeline::Effects& out) {
    parts_.runner->core().OnRankJoined(rank, pid, NowNs(), out);
  });
}

void RankWords::OnRanksReady(bool all) {
  parts_.runner->core().OnRanksReady(all);
  link_->SetRanksReady(all);
}

void RankWords::OnRankDeclare(LocalRank rank, uint32_t request,
                              const pipeline::Declaration& declaration) {
  parts_.runner->Deliver([this, rank, request, declaration](pipeline::Effects& out) {
    parts_.runner->core().OnRankDeclare(rank, request, declaration, NowNs(), out);
  });
}

void RankWords::OnRankPush(const pipeline::Push& push) {
  parts_.runner->Deliver([this, push](pipeline::Effects& out) {
    const int64_t now_ns = NowNs();
    parts_.runner->core().OnPush(push, now_ns, out);
    if (parts_.timeline->Wants(push.round) &&
        push.tensor.value() < parts_.runner->core().tensors().size()) {
      const pipeline::AgentTensor& state = *parts_.runner->core().tensors()[push.tensor.value()];
      parts_.timeline->OnPushed(push.tensor, push.round,
                                state.contributed() && state.open_round() == push.round, now_ns);
    }
  });
}

void RankWords::OnRankLeft(LocalRank rank, bool clean, const std::string& text) {
  telemetry::Log(clean ? telemetry::LogLevel::kInfo : telemetry::LogLevel::kWarning, "local rank ",
                 rank, clean ? " has left" : " was lost: ", clean ? "" : text);
  if (devices_ != nullptr) devices_->OnRankLeft(rank);
  parts_.runner->Deliver([this, rank, clean, text](pipeline::Effects& out) {
    parts_.runner->core().OnRankLeft(rank, clean, text, NowNs(), out);
  });
}

void RankWords::OnRankFailure(const std::string& text) {
  parts_.runner->Deliver([this, text](pipeline::Effects& out) {
    parts_.runner->core().OnLocalFailure(text, NowNs(), out);
  });
}

void RankWords::OnRankAtBoundary(LocalRank rank, uint64_t steps) {
  parts_.runner->Deliver([this, rank, steps](pipeline::Effects& out) {
    parts_.runner->core().OnRankAtBoundary(rank, steps, NowNs(), out);
  });
}

void RankWords::OnRanksStop(std::vector<uint64_t> ended) {
  parts_.runner->Deliver([this, ended = std::move(ended)](pipeline::Effects& out) {
    parts_.runner->core().OnRanksStop(ended, out);
  });
}

void RankWords::OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) {
  parts_.runner->Deliver([this, rank, request, epoch](pipeline::Effects& out) {
    const bool ok = parts_.runner->core().OnRanksFollow(epoch, out);
    desk_->AnswerFollow(rank, request, epoch, ok);
  });
}

}  // namespace talweg::agent
