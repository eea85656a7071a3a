// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/slice_round.h"

#include <catch2/catch.hpp>

namespace talweg::aggregation {
namespace {

using Outcome = SliceRound::Outcome;
using State = SliceRound::State;

wire::Contribute Sum(uint64_t round, uint32_t rank_count = 1) {
  return {.round = Round{round}, .rank_count = rank_count, .mode = wire::Mode::kSum};
}
wire::Contribute Source(uint64_t round, uint64_t sum_epoch) {
  return {.round = Round{round},
          .rank_count = 4,
          .mode = wire::Mode::kCopy,
          .wants_result = false,
          .sum_epoch = Epoch{sum_epoch}};
}
wire::Contribute Empty(uint64_t round, bool wants_result) {
  return {.round = Round{round},
          .mode = wire::Mode::kCopy,
          .form = wire::Form::kEmpty,
          .wants_result = wants_result};
}
constexpr MemberIndex kFirst{0};
constexpr MemberIndex kSecond{1};

TEST_CASE("SliceRound: a round fills, is summed, and the next one begins", "[aggregation]") {
  SliceRound slice(2, 2);
  CHECK(slice.OnContribution(kSecond, Sum(7, 2), 10) == Outcome::kTaken);
  CHECK(slice.open_round() == Round{7});
  CHECK(slice.OnContribution(kFirst, Sum(7, 1), 20) == Outcome::kCompleted);
  CHECK(slice.since_ns() == 10);
  slice.StartSum();
  CHECK(slice.state() == State::kSumming);
  slice.OnSummed(Epoch{3}, 64);
  CHECK(slice.standing().round == Round{7});
  CHECK(slice.standing().sum_epoch == Epoch{3});
  CHECK(slice.standing().rank_count == 3);
  CHECK(slice.open_round() == Round{8});
  CHECK(slice.here_count() == 0);
  CHECK(slice.OnContribution(kFirst, Sum(8), 30) == Outcome::kTaken);
}

TEST_CASE("SliceRound: each member's result is as urgent as its own contribution",
          "[aggregation]") {
  SliceRound slice(2, 2);
  wire::Contribute first = Sum(1);
  first.priority = -3;
  wire::Contribute second = Sum(1);
  second.priority = 8;
  CHECK(slice.OnContribution(kFirst, first, 0) == Outcome::kTaken);
  CHECK(slice.OnContribution(kSecond, second, 0) == Outcome::kCompleted);
  slice.StartSum();
  slice.OnSummed(Epoch{1}, 64);
  CHECK(slice.WantedPriority(kFirst) == -3);
  CHECK(slice.WantedPriority(kSecond) == 8);
  CHECK(slice.WantedResult(kFirst));
}

TEST_CASE("SliceRound: the same contribution twice counts once", "[aggregation]") {
  SliceRound slice(2, 2);
  CHECK(slice.OnContribution(kFirst, Sum(1), 0) == Outcome::kTaken);
  CHECK(slice.kind() == wire::RoundKind::kSum);
  CHECK(slice.OnContribution(kFirst, Sum(1), 0) == Outcome::kDuplicate);
  CHECK(slice.here_count() == 1);
  CHECK(slice.OnContribution(kSecond, Sum(1), 0) == Outcome::kCompleted);
  CHECK(slice.OnContribution(kFirst, Sum(1), 0) == Outcome::kDuplicate);
  slice.StartSum();
  CHECK(slice.OnContribution(kSecond, Sum(1), 0) == Outcome::kDuplicate);
  slice.OnSummed(Epoch{1}, 64);
  CHECK(slice.OnContribution(kSecond, Sum(1), 0) == Outcome::kServeAgain);
  CHECK(slice.OnContribution(kSecond, Sum(2), 0) == Outcome::kTaken);
  // A member that has contributed to round 2 has received round 1.
  CHECK(slice.OnContribution(kSecond, Sum(1), 0) == Outcome::kWrongRound);
  CHECK(slice.OnContribution(kFirst, Sum(1), 0) == Outcome::kServeAgain);
}

TEST_CASE("SliceRound: rounds that are too old, too new or zero are wrong", "[aggregation]") {
  SliceRound slice(2, 2);
  CHECK(slice.OnContribution(kFirst, Sum(0), 0) == Outcome::kWrongRound);
  CHECK(slice.OnContribution(kFirst, Sum(5), 0) == Outcome::kTaken);
  CHECK(slice.OnContribution(kSecond, Sum(4), 0) == Outcome::kWrongRound);
  CHECK(slice.OnContribution(kSecond, Sum(6), 0) == Outcome::kWrongRound);
  CHECK(slice.OnContribution(kSecond, Sum(5), 0) == Outcome::kCompleted);
  CHECK(slice.OnContribution(kFirst, Sum(6), 0) == Outcome::kWrongRound);
  slice.StartSum();
  CHECK(slice.OnContribution(kFirst, Sum(6), 0) == Outcome::kWrongRound);
  slice.OnSummed(Epoch{1}, 64);
  CHECK(slice.OnContribution(kFirst, Sum(7), 0) == Outcome::kWrongRound);
  CHECK(slice.OnContribution(kFirst, Sum(4), 0) == Outcome::kWrongRound);
}

TEST_CASE("SliceRound: a lost connection's contribution is forgotten until the round is complete",
          "[aggregation]") {
  SliceRound slice(2, 2);
  REQUIRE(slice.OnContribution(kFirst, Sum(5), 0) == Outcome::kTaken);
  slice.Forget(kFirst);
  CHECK(slice.here_count() == 0);
  CHECK(slice.open_round() == Round{0});  // The epoch has named no round yet.
  REQUIRE(slice.OnContribution(kSecond, Sum(6), 0) == Outcome::kTaken);
  REQUIRE(slice.OnContribution(kFirst, Sum(6), 0) == Outcome::kCompleted);
  slice.Forget(kFirst);  // The bytes are here, so nobody waits for them again.
  CHECK(slice.state() == State::kComplete);
  slice.StartSum();
  slice.OnSummed(Epoch{1}, 64);
  REQUIRE(slice.OnContribution(kFirst, Sum(7), 0) == Outcome::kTaken);
  slice.Forget(kFirst);
  CHECK(slice.open_round() == Round{7});
}

TEST_CASE("SliceRound: a copy has exactly one source and keeps its epoch", "[aggregation]") {
  SliceRound slice(3, 3);
  CHECK(slice.OnContribution(kFirst, Empty(5, true), 0) == Outcome::kTaken);
  CHECK(slice.OnContribution(kSecond, Sum(5), 0) == Outcome::kWrongMode);
  CHECK(slice.OnContribution(kSecond, Source(5, 2), 0) == Outcome::kTaken);
  CHECK(slice.OnContribution(MemberIndex{2}, Source(5, 2), 0) == Outcome::kWrongMode);
  CHECK(slice.OnContribution(MemberIndex{2}, Empty(5, false), 0) == Outcome::kCompleted);
  CHECK(slice.source() == kSecond);
  CHECK(slice.kind() == wire::RoundKind::kFinish);
  slice.StartSum();
  slice.OnSummed(Epoch{9}, 64);
  CHECK(slice.standing().sum_epoch == Epoch{2});
  CHECK(slice.standing().kind == wire::RoundKind::kFinish);
  CHECK(slice.standing().rank_count == 4);
  CHECK(slice.WantedResult(kFirst));
  CHECK_FALSE(slice.WantedResult(kSecond));
  CHECK_FALSE(slice.WantedResult(MemberIndex{2}));
  CHECK_FALSE(slice.source().has_value());
  // A broadcast's source names no epoch: the result gets the present one.
  REQUIRE(slice.OnContribution(kFirst, Source(6, 0), 0) == Outcome::kTaken);
  slice.Forget(kFirst);
  CHECK_FALSE(slice.source().has_value());
  REQUIRE(slice.OnContribution(kFirst, Source(6, 0), 0) == Outcome::kTaken);
  REQUIRE(slice.OnContribution(kSecond, Empty(6, true), 0) == Outcome::kTaken);
  REQUIRE(slice.OnContribution(MemberIndex{2}, Empty(6, true), 0) == Outcome::kCompleted);
  slice.StartSum();
  slice.OnSummed(Epoch{9}, 64);
  CHECK(slice.standing().sum_epoch == Epoch{9});
}

TEST_CASE("SliceRound: the source says whether a copy is a Finish", "[aggregation]") {
  SliceRound slice(2, 2);
  wire::Contribute named = Empty(5, true);
  named.sum_epoch = Epoch{2};  // Who is not the source only repeats the decision.
  REQUIRE(slice.OnContribution(kFirst, named, 0) == Outcome::kTaken);
  CHECK(slice.kind() == wire::RoundKind::kCopy);
  REQUIRE(slice.OnContribution(kSecond, Source(5, 2), 0) == Outcome::kCompleted);
  CHECK(slice.kind() == wire::RoundKind::kFinish);
}

TEST_CASE("SliceRound: a source that is forgotten takes the Finish with it", "[aggregation]") {
  SliceRound slice(3, 3);
  REQUIRE(slice.OnContribution(kFirst, Empty(5, true), 0) == Outcome::kTaken);
  REQUIRE(slice.OnContribution(kSecond, Source(5, 2), 0) == Outcome::kTaken);
  slice.Forget(kSecond);
  CHECK(slice.kind() == wire::RoundKind::kCopy);
  REQUIRE(slice.OnContribution(kSecond, Source(5, 0), 0) == Outcome::kTaken);
  REQUIRE(slice.OnContribution(MemberIndex{2}, Empty(5, true), 0) == Outcome::kCompleted);
  CHECK(slice.kind() == wire::RoundKind::kCopy);
  slice.StartSum();
  slice.OnSummed(Epoch{9}, 64);
  CHECK(slice.standing().sum_epoch == Epoch{9});
}

TEST_CASE("SliceRound: what is combined and what is copied do not mix, also when sent again",
          "[aggregation]") {
  SliceRound slice(2, 2);
  REQUIRE(slice.OnContribution(kFirst, Sum(5), 0) == Outcome::kTaken);
  CHECK(slice.OnContribution(kFirst, Source(5, 2), 0) == Outcome::kWrongMode);
  CHECK(slice.OnContribution(kSecond, Empty(5, true), 0) == Outcome::kWrongMode);
  REQUIRE(slice.OnContribution(kSecond, Sum(5), 0) == Outcome::kCompleted);
  slice.StartSum();
  slice.OnSummed(Epoch{9}, 64);
  CHECK(slice.OnContribution(kFirst, Source(5, 2), 0) == Outcome::kWrongMode);
  CHECK(slice.OnContribution(kFirst, Sum(5), 0) == Outcome::kServeAgain);
  // A round of copies takes both kinds of them again.
  REQUIRE(slice.OnContribution(kFirst, Source(6, 2), 0) == Outcome::kTaken);
  REQUIRE(slice.OnContribution(kSecond, Empty(6, true), 0) == Outcome::kCompleted);
  slice.StartSum();
  slice.OnSummed(Epoch{9}, 64);
  CHECK(slice.OnContribution(kSecond, Empty(6, true), 0) == Outcome::kServeAgain);
  CHECK(slice.OnContribution(kFirst, Sum(6), 0) == Outcome::kWrongMode);
}

TEST_CASE("SliceRound: a copy without a source does not complete", "[aggregation]") {
  SliceRound slice(2, 2);
  CHECK(slice.OnContribution(kFirst, Empty(5, true), 0) == Outcome::kTaken);
  CHECK(slice.OnContribution(kSecond, Empty(5, true), 0) == Outcome::kWrongMode);
  CHECK(slice.OnContribution(kSecond, Source(5, 2), 0) == Outcome::kCompleted);
  CHECK(SliceRound(1, 1).OnContribution(
            kFirst, {.round = Round{1}, .mode = wire::Mode::kSum, .form = wire::Form::kEmpty}, 0) ==
        Outcome::kWrongMode);
}

}  // namespace
}  // namespace talweg::aggregation
