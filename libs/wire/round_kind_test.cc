// SPDX-License-Identifier: Apache-2.0
#include "libs/wire/round_kind.h"

#include <catch2/catch.hpp>

namespace talweg::wire {
namespace {

TEST_CASE("RoundKind: a contribution's mode and the epoch of its sum tell the kind", "[wire]") {
  CHECK(KindOf(Contribute{.mode = Mode::kSum}) == RoundKind::kSum);
  CHECK(KindOf(Contribute{.mode = Mode::kCopy}) == RoundKind::kCopy);
  CHECK(KindOf(Contribute{.mode = Mode::kCopy, .sum_epoch = Epoch{4}}) == RoundKind::kFinish);
  // What is combined is no Finish, whatever epoch a peer names.
  CHECK(KindOf(Contribute{.mode = Mode::kSum, .sum_epoch = Epoch{4}}) == RoundKind::kSum);
}

TEST_CASE("RoundKind: rounds of a collective copy if each part has one giver", "[wire]") {
  for (const CollectiveRow& row : kCollectives) {
    INFO(row.name);
    const RoundKind kind = KindOf(Collective{.gives = row.gives, .gets = row.gets});
    CHECK(kind == (row.gives == Share::kWhole ? RoundKind::kSum : RoundKind::kCopy));
  }
}

TEST_CASE("RoundKind: copies and Finishes travel in copy mode", "[wire]") {
  CHECK(ModeOf(RoundKind::kSum) == Mode::kSum);
  CHECK(ModeOf(RoundKind::kCopy) == Mode::kCopy);
  CHECK(ModeOf(RoundKind::kFinish) == Mode::kCopy);
  CHECK_FALSE(Copies(RoundKind::kSum));
  CHECK(Copies(RoundKind::kCopy));
  CHECK(Copies(RoundKind::kFinish));
}

TEST_CASE("RoundKind: only a Finish travels plain if the tensor is encoded", "[wire]") {
  const Collective encoded{.encoding = Encoding::kRuns};
  CHECK(EncodingOf(RoundKind::kSum, encoded) == Encoding::kRuns);
  CHECK(EncodingOf(RoundKind::kCopy, encoded) == Encoding::kRuns);
  CHECK(EncodingOf(RoundKind::kFinish, encoded) == Encoding::kPlain);
  CHECK(EncodingOf(RoundKind::kSum, Collective{}) == Encoding::kPlain);
}

}  // namespace
}  // namespace talweg::wire
