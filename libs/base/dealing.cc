// SPDX-License-Identifier: Apache-2.0
#include "libs/base/dealing.h"

#include <charconv>
#include <system_error>

namespace talweg {
namespace {

struct Row {
  DealingRule rule;
  std::string_view name;
  uint32_t usual_constant;  // 0: the rule has none.
};

constexpr Row kRows[] = {
    {DealingRule::kStriped, "striped", 0},
    {DealingRule::kNaive, "naive", 0},
    {DealingRule::kDjb2, "djb2", 0},
    {DealingRule::kSdbm, "sdbm", 0},
    {DealingRule::kFingerprint, "fingerprint", kDealingFactor},
    {DealingRule::kWeighted, "weighted", kDealingPoints},
};

const Row* RowOf(DealingRule rule) {
  for (const Row& row : kRows) {
    if (row.rule == rule) return &row;
  }
  return nullptr;
}

}  // namespace

std::string DealingText(const Dealing& dealing) {
  const Row* const row = RowOf(dealing.rule);
  std::string text = row == nullptr ? "rule " + std::to_string(static_cast<int>(dealing.rule))
                                    : std::string(row->name);
  if (dealing.constant != 0) text += ":" + std::to_string(dealing.constant);
  return text;
}

std::optional<Dealing> ParseDealing(std::string_view text) {
  const size_t colon = text.find(':');
  for (const Row& row : kRows) {
    if (row.name != text.substr(0, colon)) continue;
    Dealing dealing{.rule = row.rule, .constant = row.usual_constant};
    if (colon != std::string_view::npos) {
      const std::string_view number = text.substr(colon + 1);
      const auto [end, error] =
          std::from_chars(number.data(), number.data() + number.size(), dealing.constant);
      if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
      if (dealing.constant == 0) return std::nullopt;
    }
    return IsValid(dealing) ? std::optional(dealing) : std::nullopt;
  }
  return std::nullopt;
}

bool IsValid(const Dealing& dealing) {
  const Row* const row = RowOf(dealing.rule);
  return row != nullptr && (row->usual_constant == 0) == (dealing.constant == 0);
}

}  // namespace talweg
