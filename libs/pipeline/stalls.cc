// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/stalls.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "libs/pipeline/names.h"

namespace talweg::pipeline {

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
      if (!IsAwaited(*tensor)) continue;
      const int64_t limit_ns = tensor->first_push_ns + config_->stall_ns;
      if (now_ns < limit_ns) {
        due_ns_ = std::min(due_ns_, limit_ns);
        continue;
      }
      const std::string missing = WhomItWaitsFor(*tensor, tensor->open_round());
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

std::string Stalls::WhomItWaitsFor(const AgentTensor& tensor, Round round) const {
  // What its ranks have pushed is forgotten, and their error is on its way to them.
  if (tensor.failed_status != Status::kOk) return "";
  std::vector<std::string> who;
  if (round == tensor.open_round() && !tensor.contributed()) {
    for (const LocalRank rank : tensor.MissingRanks()) who.push_back(ranks_->Text(rank));
  } else if (round == tensor.active_round()) {
    for (const uint32_t node : tensor.MissingNodes()) {
      who.push_back(RanksOfNode(views_->present(), tensor.spec, NodeRank{node}));
    }
  }
  return Listed(who);
}

}  // namespace talweg::pipeline
