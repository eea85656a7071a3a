// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/names.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "libs/pipeline/agent_core_config.h"

namespace talweg::pipeline {
namespace {

constexpr size_t kNamesMax = 8;

}  // namespace

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesMax); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesMax)
    text += " and " + std::to_string(names.size() - kNamesMax) + " more";
  return text;
}

std::string RanksOfNode(const view::View* view, const TensorSpec& spec, NodeRank node) {
  std::vector<std::string> ranks;
  const std::optional<MemberIndex> member = view ? view->IndexOf(node) : std::nullopt;
  if (member) {
    const uint32_t base = view->RankBase(*member).value();
    for (uint32_t i = 0; i < view->members[member->value()].rank_count; ++i) {
      const Rank rank{base + i};
      const bool takes_part =
          spec.ranks.empty() || std::binary_search(spec.ranks.begin(), spec.ranks.end(), rank);
      if (takes_part) ranks.push_back(std::to_string(rank.value()));
    }
  }
  const std::string text = "node " + std::to_string(node.value());
  if (ranks.empty()) return text;
  return (ranks.size() == 1 ? "rank " : "ranks ") + Listed(ranks) + " of " + text;
}

bool IsAwaited(const AgentTensor& tensor) {
  return tensor.pushed_count > 0 && tensor.priority != kNobodyWaits && !tensor.spec.collective.side;
}

std::string AwaitedRounds(const std::vector<std::unique_ptr<AgentTensor>>& tensors) {
  std::vector<std::string> rounds;
  for (const std::unique_ptr<AgentTensor>& tensor : tensors) {
    if (!IsAwaited(*tensor) || tensor->failed_status != Status::kOk) continue;
    rounds.push_back("round " + std::to_string(tensor->open_round().value()) + " of tensor '" +
                     tensor->spec.name + "'");
  }
  return Listed(rounds);
}

}  // namespace talweg::pipeline
