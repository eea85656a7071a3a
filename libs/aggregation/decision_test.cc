// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/decision.h"

#include <catch2/catch.hpp>

namespace talweg::aggregation {
namespace {

MemberReport Says(uint32_t member, uint64_t held, uint64_t held_epoch, uint64_t partial_epoch = 0,
                  std::vector<uint64_t> slices = {}, bool contributed = true) {
  return {MemberIndex{member},
          {.key = TensorKey{1},
           .held = Round{held},
           .held_epoch = Epoch{held_epoch},
           .contributed = Round{contributed ? held + 1 : held},
           .partial_epoch = Epoch{partial_epoch},
           .slices = std::move(slices)}};
}

wire::Decision Decided(const std::vector<MemberReport>& reports, size_t slice_count = 3,
                       bool root_is_gone = false) {
  const auto decided =
      Decide({.reports = reports, .slice_count = slice_count, .is_dead = root_is_gone});
  if (const auto* contradiction = std::get_if<Contradiction>(&decided)) FAIL(contradiction->text);
  return std::get<wire::Decision>(decided);
}

TEST_CASE("Decide: a round that one member holds is finished from the lowest member that holds it",
          "[aggregation]") {
  const wire::Decision decision = Decided({Says(0, 4, 2), Says(1, 5, 2), Says(2, 5, 2)});
  CHECK(decision.verdict == wire::Verdict::kFinish);
  CHECK(decision.round == Round{5});
  CHECK(decision.sum_epoch == Epoch{2});
  CHECK(decision.sources == std::vector<uint16_t>{1, 1, 1});
}

TEST_CASE("Decide: a round that some know to be aborted is aborted for all", "[aggregation]") {
  const wire::Decision decision = Decided({Says(0, 4, 2), Says(1, 5, 0)});
  CHECK(decision.verdict == wire::Verdict::kAbort);
  CHECK(decision.round == Round{5});
  CHECK_FALSE(decision.text.empty());
}

TEST_CASE("Decide: slices of one epoch that together cover the tensor finish it", "[aggregation]") {
  const wire::Decision decision =
      Decided({Says(0, 4, 2, 3, {0b011}), Says(1, 4, 2, 3, {0b110}), Says(2, 4, 2)});
  CHECK(decision.verdict == wire::Verdict::kFinish);
  CHECK(decision.round == Round{5});
  CHECK(decision.sum_epoch == Epoch{3});
  CHECK(decision.sources == std::vector<uint16_t>{0, 0, 1});
}

TEST_CASE("Decide: slices of two epochs never finish a tensor together", "[aggregation]") {
  const wire::Decision decision = Decided({Says(0, 4, 2, 2, {0b011}), Says(1, 4, 2, 3, {0b100})});
  CHECK(decision.verdict == wire::Verdict::kRedo);
  CHECK(decision.round == Round{5});
  CHECK(decision.sources.empty());
}

TEST_CASE("Decide: a missing slice means summing anew", "[aggregation]") {
  CHECK(Decided({Says(0, 4, 2, 3, {0b011}), Says(1, 4, 2, 3, {0b001})}).verdict ==
        wire::Verdict::kRedo);
  CHECK(Decided({Says(0, 0, 0, 0, {}, false)}).round == Round{1});
  // A tensor with more slices than one word of the bitmap holds.
  CHECK(Decided({Says(0, 4, 2, 3, {~uint64_t{0}})}, 65).verdict == wire::Verdict::kRedo);
  CHECK(Decided({Says(0, 4, 2, 3, {~uint64_t{0}, 1})}, 65).verdict == wire::Verdict::kFinish);
}

TEST_CASE("Decide: a broadcast without its root is aborted unless it can be finished",
          "[aggregation]") {
  CHECK(Decided({Says(0, 4, 2), Says(1, 4, 2)}, 3, true).verdict == wire::Verdict::kAbort);
  CHECK(Decided({Says(0, 4, 2), Says(1, 4, 2)}, 3, true).round == Round{5});
  CHECK(Decided({Says(0, 4, 2), Says(1, 5, 2)}, 3, true).verdict == wire::Verdict::kFinish);
  CHECK(Decided({Says(0, 4, 2, 3, {7}), Says(1, 4, 2)}, 3, true).verdict == wire::Verdict::kFinish);
}

TEST_CASE("Decide: a round that nobody has begun is not aborted", "[aggregation]") {
  const std::vector<MemberReport> idle = {Says(0, 4, 2, 0, {}, false), Says(1, 4, 2, 0, {}, false)};
  CHECK(Decided(idle, 3, true).verdict == wire::Verdict::kRedo);
  const std::vector<MemberReport> begun = {Says(0, 4, 2, 0, {}, false), Says(1, 4, 2)};
  CHECK(Decided(begun, 3, true).verdict == wire::Verdict::kAbort);
}

TEST_CASE("Decide: reports that cannot all be true decide nothing", "[aggregation]") {
  const std::vector<MemberReport> apart = {Says(0, 3, 2), Says(1, 5, 2)};
  CHECK(std::holds_alternative<Contradiction>(Decide({.reports = apart})));
  const std::vector<MemberReport> two_epochs = {Says(0, 5, 2), Says(1, 5, 3), Says(2, 4, 2)};
  CHECK(std::holds_alternative<Contradiction>(Decide({.reports = two_epochs})));
  const std::vector<MemberReport> half_aborted = {Says(0, 5, 0), Says(1, 5, 3), Says(2, 4, 2)};
  CHECK(std::holds_alternative<Contradiction>(Decide({.reports = half_aborted})));
  // These are two results of one round. They contradict each other even if the round is over for
  // all.
  const std::vector<MemberReport> parted = {Says(0, 5, 2), Says(1, 5, 3)};
  CHECK(std::holds_alternative<Contradiction>(Decide({.reports = parted})));
  const std::vector<MemberReport> parted_below = {Says(0, 4, 2), Says(1, 4, 3), Says(2, 5, 4)};
  CHECK(std::holds_alternative<Contradiction>(Decide({.reports = parted_below})));
  // Joiners hold a round without its data. That is no contradiction if all hold it.
  CHECK(Decided({Says(0, 5, 3), Says(1, 5, 0)}).verdict == wire::Verdict::kRedo);
}

TEST_CASE("ReportProblem: it names what cannot be true", "[aggregation]") {
  CHECK(ReportProblem(Says(0, 4, 2, 3, {0b111}).report, 3).empty());
  CHECK_FALSE(ReportProblem(Says(0, 4, 2, 3, {0b1000}).report, 3).empty());
  CHECK_FALSE(ReportProblem(Says(0, 4, 2, 0, {0b1}).report, 3).empty());
  wire::Report skipped = Says(0, 4, 2).report;
  skipped.contributed = Round{6};
  CHECK_FALSE(ReportProblem(skipped, 3).empty());
  CHECK_FALSE(ReportProblem(Says(0, UINT64_MAX, 2).report, 3).empty());
}

TEST_CASE("WithoutExcess: what a report says of slices stays, in a bounded number of words",
          "[aggregation]") {
  const auto cut = [](std::vector<uint64_t> slices, size_t slice_count) {
    return WithoutExcess(Says(0, 4, 2, 3, std::move(slices)).report, slice_count);
  };
  CHECK(cut({0b101}, 3).slices == std::vector<uint64_t>{0b101});
  CHECK(cut({0b101, 0, 0}, 3).slices == std::vector<uint64_t>{0b101});
  CHECK(cut({1, 2, 3}, 65).slices == std::vector<uint64_t>{1, 2, 1});
  CHECK(cut({}, 0).slices.empty());
  std::vector<uint64_t> many(8000, 0);
  many[0] = 1;
  CHECK(ReportProblem(cut(many, 3), 3).empty());
  many.back() = 1;
  CHECK(cut(many, 3).slices.size() == 2);
  CHECK_FALSE(ReportProblem(cut(many, 3), 3).empty());
}

TEST_CASE("Decide: where not all get all, a round that only some hold is lost", "[aggregation]") {
  const std::vector<MemberReport> reports = {Says(0, 5, 2), Says(1, 4, 2)};
  const auto decided = Decide({.reports = reports, .slice_count = 3, .all_get_all = false});
  const auto* lost = std::get_if<LostRound>(&decided);
  REQUIRE(lost != nullptr);
  CHECK(lost->text ==
        "round 5 was over at member 0 when the view changed, and what the others were to get is "
        "lost");
}

TEST_CASE("Decide: where not all get all, a round that nobody holds is done again",
          "[aggregation]") {
  const std::vector<MemberReport> reports = {Says(0, 4, 2), Says(1, 4, 2)};
  const auto decided = Decide({.reports = reports, .slice_count = 3, .all_get_all = false});
  const auto* decision = std::get_if<wire::Decision>(&decided);
  REQUIRE(decision != nullptr);
  CHECK(decision->verdict == wire::Verdict::kRedo);
  CHECK(decision->round == Round{5});
}

TEST_CASE("Decide: where not all get all, an aborted round is aborted for the rest",
          "[aggregation]") {
  const std::vector<MemberReport> reports = {Says(0, 5, 0), Says(1, 4, 2)};
  const auto decided = Decide({.reports = reports, .slice_count = 3, .all_get_all = false});
  const auto* decision = std::get_if<wire::Decision>(&decided);
  REQUIRE(decision != nullptr);
  CHECK(decision->verdict == wire::Verdict::kAbort);
}

}  // namespace
}  // namespace talweg::aggregation
