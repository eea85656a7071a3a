// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/stalls.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "libs/view/view.h"

namespace talweg::pipeline {
namespace {

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

void Stalls::OnPush(int64_t now_ns) {
  if (config_->stall_ns == 0) return;
  if (due_ns_ == TickTimer::kNever) due_ns_ = now_ns + config_->stall_ns;
  timer_->Ask(due_ns_);
}

void Stalls::OnTick(int64_t now_ns, Effects& out) {
  if (due_ns_ == TickTimer::kNever) return;
  if (now_ns >= due_ns_) {
    due_ns_ = TickTimer::kNever;
    for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
      const bool is_awaited = tensor->pushed_count > 0 && tensor->priority != kNobodyWaits &&
                              !tensor->spec.collective.side;
      if (!is_awaited) continue;
      const int64_t limit_ns = tensor->first_push_ns + config_->stall_ns;
      if (now_ns < limit_ns) {
        due_ns_ = std::min(due_ns_, limit_ns);
        continue;
      }
      const std::string missing = WhoIsMissing(*tensor);
      if (missing.empty()) {
        due_ns_ = std::min(due_ns_, now_ns + config_->waiting_first_ns);
        continue;
      }
      failures_->ReportAndFail("round " + std::to_string(tensor->open_round().value()) +
                                   " of tensor '" + tensor->spec.name + "' has waited for " +
                                   missing + " for " +
                                   std::to_string((now_ns - tensor->first_push_ns) / 1'000'000) +
                                   " ms, longer than stall_ms",
                               out);
      return;
    }
  }
  if (due_ns_ != TickTimer::kNever) timer_->Ask(due_ns_);
}

std::string Stalls::WhoIsMissing(const AgentTensor& tensor) const {
  std::vector<std::string> who;
  if (!tensor.contributed) {
    for (uint32_t i = 0; i < tensor.pushed.size(); ++i) {
      if (!tensor.pushed[i] && tensor.in_group[i]) who.push_back(ranks_->Text(LocalRank{i}));
    }
  } else if (tensor.named.round == tensor.active_round()) {
    for (const uint32_t node : tensor.named.nodes) {
      who.push_back(RanksOfNode(tensor, NodeRank{node}));
    }
  }
  return Joined(who);
}

std::string Stalls::RanksOfNode(const AgentTensor& tensor, NodeRank node) const {
  std::vector<std::string> ranks;
  const view::View* const view = views_->present();
  const std::optional<MemberIndex> member = view ? view->IndexOf(node) : std::nullopt;
  if (member) {
    const uint32_t base = view->RankBase(*member).value();
    for (uint32_t i = 0; i < view->members[member->value()].rank_count; ++i) {
      const Rank rank{base + i};
      const std::vector<Rank>& group = tensor.spec.ranks;
      if (group.empty() || std::binary_search(group.begin(), group.end(), rank)) {
        ranks.push_back(std::to_string(rank.value()));
      }
    }
  }
  const std::string text = "node " + std::to_string(node.value());
  if (ranks.empty()) return text;
  return (ranks.size() == 1 ? "rank " : "ranks ") + Joined(ranks) + " of " + text;
}

}  // namespace talweg::pipeline
