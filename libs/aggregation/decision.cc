// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/decision.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "libs/base/check.h"

namespace talweg::aggregation {
namespace {

constexpr size_t kWordBits = 64;

bool Has(const wire::Report& report, size_t slice) {
  const size_t word = slice / kWordBits;
  return word < report.slices.size() && ((report.slices[word] >> (slice % kWordBits)) & 1) != 0;
}

std::string RoundText(Round round) { return "round " + std::to_string(round.value()); }

// Returns, for every slice, the lowest member that has it from epoch `sum_epoch`; empty unless
// every slice has one.
std::vector<uint16_t> Cover(const DecideInput& input, Epoch sum_epoch) {
  std::vector<uint16_t> sources;
  sources.reserve(input.slice_count);
  for (size_t slice = 0; slice < input.slice_count; ++slice) {
    const auto source = std::find_if(
        input.reports.begin(), input.reports.end(), [&](const MemberReport& candidate) {
          return candidate.report.partial_epoch == sum_epoch && Has(candidate.report, slice);
        });
    if (source == input.reports.end()) return {};
    sources.push_back(static_cast<uint16_t>(source->member.value()));
  }
  return sources;
}

Contradiction OfDifferentEpochs(const MemberReport& one, const MemberReport& other) {
  return {"members " + std::to_string(one.member.value()) + " and " +
          std::to_string(other.member.value()) + " hold " + RoundText(one.report.held) +
          " of different epochs, " + std::to_string(one.report.held_epoch.value()) + " and " +
          std::to_string(other.report.held_epoch.value())};
}

// Whether two members have seen different results of one round, even of one that is over for all. A
// round without data (held_epoch 0) is a joiner's, or was aborted.
std::optional<Contradiction> HeldOfTwoEpochs(std::span<const MemberReport> reports) {
  std::map<Round, const MemberReport*> holders;
  for (const MemberReport& candidate : reports) {
    if (candidate.report.held_epoch == Epoch{0}) continue;
    const auto [first, is_first] = holders.emplace(candidate.report.held, &candidate);
    if (!is_first && first->second->report.held_epoch != candidate.report.held_epoch) {
      return OfDifferentEpochs(*first->second, candidate);
    }
  }
  return std::nullopt;
}

// Some members hold round `hi`, others do not yet.
std::variant<wire::Decision, Contradiction, LostRound> DecideHeld(const DecideInput& input,
                                                                  Round hi) {
  const MemberReport* holder = nullptr;
  for (const MemberReport& candidate : input.reports) {
    if (candidate.report.held != hi) continue;
    if (holder == nullptr) holder = &candidate;
    if (candidate.report.held_epoch != holder->report.held_epoch) {
      return OfDifferentEpochs(*holder, candidate);
    }
  }
  TALWEG_CHECK(holder != nullptr);
  wire::Decision decision{.round = hi};
  if (holder->report.held_epoch == Epoch{0}) {
    decision.verdict = wire::Verdict::kAbort;
    decision.text = RoundText(hi) + " was aborted in an earlier view";
    return decision;
  }
  if (!input.all_get_all) {
    return LostRound{RoundText(hi) + " was over at member " +
                     std::to_string(holder->member.value()) +
                     " when the view changed, and what the others were to get is lost"};
  }
  decision.verdict = wire::Verdict::kFinish;
  decision.sum_epoch = holder->report.held_epoch;
  decision.sources.assign(input.slice_count, static_cast<uint16_t>(holder->member.value()));
  return decision;
}

}  // namespace

std::variant<wire::Decision, Contradiction, LostRound> Decide(const DecideInput& input) {
  TALWEG_CHECK(!input.reports.empty());
  const auto by_held = [](const MemberReport& a, const MemberReport& b) {
    return a.report.held < b.report.held;
  };
  const auto [lowest, highest] =
      std::minmax_element(input.reports.begin(), input.reports.end(), by_held);
  const Round lo = lowest->report.held;
  const Round hi = highest->report.held;
  if (hi.value() - lo.value() > 1) {
    return Contradiction{"member " + std::to_string(highest->member.value()) + " holds " +
                         RoundText(hi) + " while member " + std::to_string(lowest->member.value()) +
                         " holds only " + RoundText(lo)};
  }
  if (std::optional<Contradiction> two = HeldOfTwoEpochs(input.reports)) return *std::move(two);
  if (hi != lo) return DecideHeld(input, hi);

  std::set<Epoch> sum_epochs;
  for (const MemberReport& candidate : input.reports) {
    if (candidate.report.partial_epoch != Epoch{0}) {
      sum_epochs.insert(candidate.report.partial_epoch);
    }
  }
  for (auto sum_epoch = sum_epochs.rbegin(); sum_epoch != sum_epochs.rend(); ++sum_epoch) {
    std::vector<uint16_t> sources = Cover(input, *sum_epoch);
    if (sources.empty()) continue;
    return wire::Decision{.round = lo.Next(),
                          .verdict = wire::Verdict::kFinish,
                          .sum_epoch = *sum_epoch,
                          .sources = std::move(sources)};
  }
  const bool is_open = std::any_of(
      input.reports.begin(), input.reports.end(),
      [lo](const MemberReport& candidate) { return candidate.report.contributed > lo; });
  if (input.is_dead && is_open) {
    return wire::Decision{
        .round = lo.Next(),
        .verdict = wire::Verdict::kAbort,
        .text =
            "a rank that it needs is gone; end the step (in Python: "
            "end_step()), or use a root or a process set of ranks that are there"};
  }
  return wire::Decision{.round = lo.Next(), .verdict = wire::Verdict::kRedo};
}

std::string ReportProblem(const wire::Report& report, size_t slice_count) {
  if (report.held.value() == UINT64_MAX) return "it holds a round past the last";
  if (report.contributed != report.held && report.contributed != report.held.Next()) {
    return "it holds " + RoundText(report.held) + " and has contributed to " +
           RoundText(report.contributed);
  }
  size_t had = 0;
  for (size_t bit = 0; bit < report.slices.size() * kWordBits; ++bit) {
    if (!Has(report, bit)) continue;
    if (bit >= slice_count) {
      return "it has slice " + std::to_string(bit) + " of " + std::to_string(slice_count);
    }
    ++had;
  }
  if (had > 0 && report.partial_epoch == Epoch{0}) return "it has slices of no epoch";
  return "";
}

wire::Report WithoutExcess(const wire::Report& report, size_t slice_count) {
  const size_t words = (slice_count + kWordBits - 1) / kWordBits;
  if (report.slices.size() <= words) return report;
  wire::Report cut = report;
  const auto excess = report.slices.begin() + static_cast<ptrdiff_t>(words);
  const bool has_more = std::any_of(excess, report.slices.end(), [](uint64_t w) { return w != 0; });
  cut.slices = std::vector<uint64_t>(report.slices.begin(), excess);
  if (has_more) cut.slices.push_back(1);
  return cut;
}

}  // namespace talweg::aggregation
