// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/streams.h"

#include <catch2/catch.hpp>

namespace talweg::membership {
namespace {

const Streams::MemberOfJob kMember{JobId{1}, {NodeRank{2}, Incarnation{3}}};

TEST_CASE("Streams: a broken stream leads to its owner, once", "[membership]") {
  Streams streams;
  std::optional<StreamId> of_member;
  std::optional<StreamId> of_aggregator;
  streams.Open(StreamId{7}, kMember, of_member);
  streams.Open(StreamId{8}, Incarnation{9}, of_aggregator);
  CHECK(of_member == StreamId{7});
  CHECK(of_aggregator == StreamId{8});

  const auto member = streams.Break(StreamId{7});
  REQUIRE(member);
  CHECK(std::get<Streams::MemberOfJob>(*member).id == kMember.id);
  const auto aggregator = streams.Break(StreamId{8});
  REQUIRE(aggregator);
  CHECK(std::get<Incarnation>(*aggregator) == Incarnation{9});
  CHECK_FALSE(streams.Break(StreamId{7}));
  CHECK_FALSE(streams.Break(StreamId{99}));
}

TEST_CASE("Streams: a stream that was ended has no owner, and its peer is told why",
          "[membership]") {
  Streams streams;
  std::optional<StreamId> owned;
  Turn turn(0);
  const Answer why{.code = Code::kReplaced, .text = "newer"};
  streams.End(owned, why, turn);
  CHECK(turn.effects.empty());

  streams.Open(StreamId{7}, kMember, owned);
  streams.End(owned, why, turn);
  CHECK_FALSE(owned);
  CHECK(turn.effects == std::vector<Effect>{CloseStream{StreamId{7}, why}});
  CHECK_FALSE(streams.Break(StreamId{7}));
}

}  // namespace
}  // namespace talweg::membership
