// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_DEALING_H_
#define TALWEG_LIBS_BASE_DEALING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// How a job's slices are dealt to aggregators (docs/protocol.md, "Where a tensor is summed").
namespace talweg {

// Values are part of the protocol with the scheduler.
enum class DealingRule : uint8_t {
  kStriped = 1,  // A run of a tensor's bytes for each aggregator, by weight.
  // By a hash of the slice's key; each aggregator gets equally many.
  kNaive = 2,
  kDjb2 = 3,
  kSdbm = 4,
  kFingerprint = 5,
  // By a hash of the slice's key, in proportion to the aggregators' weights.
  kWeighted = 6,
};

// A value of the job: processes that deal in different ways must not exchange slices.
struct Dealing {
  DealingRule rule = DealingRule::kStriped;
  // kFingerprint: the factor of the hash. kWeighted: how many points the owners share. Otherwise 0.
  uint32_t constant = 0;

  friend bool operator==(const Dealing&, const Dealing&) = default;
};

inline constexpr uint32_t kDealingFactor = 1;
inline constexpr uint32_t kDealingPoints = 101;

// For people: every form that ParseDealing takes.
inline constexpr std::string_view kDealingForms =
    "striped, naive, djb2, sdbm, fingerprint or fingerprint:FACTOR, weighted or weighted:POINTS, "
    "with a number from 1 to 4294967295";

// "striped", "djb2", "weighted:101".
std::string DealingText(const Dealing& dealing);
// Parses DealingText's output, or the same without a number, which means the usual number.
std::optional<Dealing> ParseDealing(std::string_view text);

// Whether an aggregator's share of the slices depends on its weight.
constexpr bool WeightsCount(const Dealing& dealing) {
  return dealing.rule == DealingRule::kStriped || dealing.rule == DealingRule::kWeighted;
}

// Whether there is such a rule, with such a constant.
bool IsValid(const Dealing& dealing);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_DEALING_H_
