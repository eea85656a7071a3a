// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/round_plan.h"

#include <algorithm>
#include <utility>

#include "libs/base/fingerprint.h"

namespace talweg::sim {
namespace {

// What Draw() may be asked for, besides a part's length.
constexpr uint64_t kIsOdd = ~uint64_t{0};
constexpr uint64_t kWhoIsOdd = kIsOdd - 1;
constexpr uint64_t kHowOdd = kIsOdd - 2;

// Lengths differ by this much, so that the cells of tests/sim can tell them apart.
constexpr uint64_t kLengthStep = 8;

}  // namespace

RoundPlan::RoundPlan(const Profile& profile, size_t tensor, view::Group group,
                     std::optional<view::Place> root)
    : tensor_(&profile.tensors[tensor]),
      name_("tensor" + std::to_string(tensor)),
      seed_(tensor),
      group_(std::move(group)),
      root_(root),
      places_(group_) {
  if (!places_.empty()) return;
  for (uint32_t node = 0; node < profile.rank_counts.size(); ++node) {
    for (uint32_t rank = 0; rank < profile.rank_counts[node]; ++rank) {
      places_.push_back({NodeRank{node}, LocalRank{rank}});
    }
  }
}

std::optional<uint32_t> RoundPlan::NumberOf(const view::Place& place,
                                            uint32_t number_of_all) const {
  if (group_.empty()) return number_of_all;
  const auto found = std::find(group_.begin(), group_.end(), place);
  if (found == group_.end()) return std::nullopt;
  return static_cast<uint32_t>(found - group_.begin());
}

uint64_t RoundPlan::Draw(Round round, uint64_t what) const {
  return Fingerprint64(Fingerprint64(seed_, round.value()), what);
}

std::optional<view::Place> RoundPlan::Odd(Round round) const {
  if (tensor_->odd_one_in == 0 || Draw(round, kIsOdd) % tensor_->odd_one_in != 0) {
    return std::nullopt;
  }
  return places_[Draw(round, kWhoIsOdd) % places_.size()];
}

RoundSignature RoundPlan::Signature(Round round, const view::Place& place) const {
  // Where lengths are compared too, the odd rank may differ in its lengths instead.
  const bool is_odd =
      Odd(round) == place && (collective().copies() || Draw(round, kHowOdd) % 2 == 0);
  if (!tensor_->is_signed) return is_odd ? SignatureOf(collective(), 1) : 0;
  return SignatureOf(collective(), 2 * round.value() + (is_odd ? 1 : 0));
}

uint64_t RoundPlan::LengthBytes(Round round, uint32_t part, const view::Place& place) const {
  const uint64_t most = collective().part_bytes();
  uint64_t length = most;
  if (tensor_->lengths_vary) {
    const uint64_t draw = Draw(round, part);
    if (draw % 4 == 0) {
      length = 0;
    } else if (draw % 4 != 1) {
      length = draw / 4 % (most / kLengthStep + 1) * kLengthStep;
    }
  }
  const bool is_odd =
      Odd(round) == place && !collective().copies() && Draw(round, kHowOdd) % 2 != 0;
  if (!is_odd) return length;
  return length == most ? most - kLengthStep : length + kLengthStep;
}

}  // namespace talweg::sim
