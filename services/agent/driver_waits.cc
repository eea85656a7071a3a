// SPDX-License-Identifier: Apache-2.0
// What people are told of whom rounds wait for.
#include <algorithm>
#include <string>
#include <vector>

#include "libs/telemetry/log.h"
#include "services/agent/agent_driver.h"

namespace talweg::agent {
namespace {

constexpr uint32_t kWaitingNamedMax = 5;
// As many as a rank's error names.
constexpr size_t kToldMax = 8;

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < std::min(words.size(), kToldMax); ++i) {
    text += (i == 0 ? "" : ", ") + words[i];
  }
  if (words.size() > kToldMax) text += " and " + std::to_string(words.size() - kToldMax) + " more";
  return text;
}

// The ranks of one node that take part in the tensor.
std::string NodeText(const view::View* view, const pipeline::TensorSpec& spec, uint32_t node) {
  const std::string text = "node " + std::to_string(node);
  if (view == nullptr) return text;
  for (uint32_t i = 0; i < view->members.size(); ++i) {
    if (view->members[i].id.node != NodeRank{node}) continue;
    const uint32_t base = view->RankBase(MemberIndex{i}).value();
    std::vector<std::string> ranks;
    for (uint32_t rank = base; rank < base + view->members[i].rank_count; ++rank) {
      const bool takes_part = spec.ranks.empty() ||
                              std::binary_search(spec.ranks.begin(), spec.ranks.end(), Rank{rank});
      if (takes_part) ranks.push_back(std::to_string(rank));
    }
    return "rank" + std::string(ranks.size() == 1 ? " " : "s ") + Joined(ranks) + " of " + text;
  }
  return text;
}

// Whether all these nodes are standbys, which may take as long as they like.
bool AreStandbys(const view::View* view, const std::vector<uint32_t>& nodes) {
  return view != nullptr && !nodes.empty() &&
         std::all_of(nodes.begin(), nodes.end(), [&](uint32_t node) {
           return std::any_of(view->members.begin(), view->members.end(),
                              [&](const view::ViewMember& member) {
                                return member.id.node == NodeRank{node} && member.standby;
                              });
         });
}

}  // namespace

std::string AgentDriver::WhomItWaitsFor(pipeline::TensorIndex index, Round round) const {
  const pipeline::AgentCore& member = *core_;
  if (index.value() >= member.tensors().size()) return "";
  const pipeline::AgentTensor& tensor = *member.tensors()[index.value()];
  if (tensor.active_round() != round) return "";
  std::vector<std::string> who;
  if (!tensor.contributed && !tensor.finish) {
    for (uint32_t i = 0; i < tensor.pushed.size(); ++i) {
      if (!tensor.in_group[i] || tensor.pushed[i]) continue;
      who.push_back("rank " + std::to_string(member.views().GlobalRank(LocalRank{i}).value()) +
                    " (local rank " + std::to_string(i) + " of node " +
                    std::to_string(options_.self.node.value()) + ")");
    }
    return Joined(who);
  }
  const auto missing = missing_nodes_.find({index, round});
  if (missing == missing_nodes_.end()) return "";
  for (const uint32_t node : missing->second) {
    who.push_back(NodeText(member.views().newest(), tensor.spec, node));
  }
  return Joined(who);
}

bool AgentDriver::NameWaiting() {
  const int64_t second = NowNs() / 1'000'000'000;
  if (second != waiting_second_) {
    if (waiting_unnamed_ > 0) {
      telemetry::Log(telemetry::LogLevel::kWarning, waiting_unnamed_,
                     " more tensors waited in the same second");
    }
    waiting_second_ = second;
    waiting_named_ = 0;
    waiting_unnamed_ = 0;
  }
  if (waiting_named_ == kWaitingNamedMax) {
    ++waiting_unnamed_;
    return false;
  }
  ++waiting_named_;
  return true;
}

void AgentDriver::Do(const pipeline::LogWaiting& effect) {
  if (effect.what == pipeline::LogWaiting::For::kNodes) {
    missing_nodes_[{effect.tensor, effect.round}] = effect.missing;
    // Nobody's step waits for them.
    if (AreStandbys(core_->views().newest(), effect.missing)) return;
  }
  const bool is_of_tensor = effect.what == pipeline::LogWaiting::For::kNodes ||
                            effect.what == pipeline::LogWaiting::For::kLocalRanks;
  const auto notice_ns = static_cast<uint64_t>(options_.stall_notice_ns);
  if (is_of_tensor && (notice_ns == 0 || effect.waited_ns < notice_ns)) return;
  if (!NameWaiting()) return;
  std::string who;
  for (size_t i = 0; i < effect.missing.size(); ++i) {
    who += (who.empty() ? "" : ", ") + std::to_string(effect.missing[i]);
    if (i >= effect.absent_ns.size() || effect.absent_ns[i] == 0) continue;
    who += " (no connection for " + std::to_string(effect.absent_ns[i] / 1'000'000) + " ms)";
  }
  const double seconds = static_cast<double>(effect.waited_ns) / 1e9;
  switch (effect.what) {
    case pipeline::LogWaiting::For::kNodes:
      telemetry::Log(telemetry::LogLevel::kWarning, "tensor '", memory_->spec(effect.tensor).name,
                     "' round ", effect.round, " waits since ", seconds, " s for node ", who);
      return;
    case pipeline::LogWaiting::For::kLocalRanks:
      telemetry::Log(telemetry::LogLevel::kWarning, "tensor '", memory_->spec(effect.tensor).name,
                     "' round ", effect.round, " waits since ", seconds, " s for local rank ", who,
                     " of node ", options_.self.node.value());
      return;
    case pipeline::LogWaiting::For::kAggregators:
      telemetry::Log(telemetry::LogLevel::kWarning, "epoch ", core_->views().newest()->epoch,
                     " of job '", options_.job_name, "' waits since ", seconds,
                     " s for aggregator ", who);
      return;
    case pipeline::LogWaiting::For::kEpoch:
      telemetry::Log(telemetry::LogLevel::kWarning, "an epoch of job '", options_.job_name, "', ",
                     core_->views().newest()->epoch, " or later, waits since ", seconds,
                     " s for node ", who);
      return;
  }
}

}  // namespace talweg::agent
