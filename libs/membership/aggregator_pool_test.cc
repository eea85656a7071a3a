// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/aggregator_pool.h"

#include <catch2/catch.hpp>

#include "libs/membership/parts_fixture.h"

namespace talweg::membership {
namespace {

struct Pool : PartsFixture {
  Answer Register(uint64_t incarnation, const std::string& name, Turn& turn) {
    return pool.Register(
        {.incarnation = Incarnation{incarnation}, .name = name, .data_address = "here"}, {}, turn);
  }
  AggregatorState StateOf(uint64_t incarnation) const {
    return pool.all().at(Incarnation{incarnation}).record.state;
  }
};

TEST_CASE("AggregatorPool: a name is held by one live incarnation", "[membership]") {
  Pool f;
  f.AddAggregator(1, "a");
  Turn turn(0);
  CHECK(f.Register(2, "a", turn).code == Code::kHeld);
  CHECK(f.Register(2, "b", turn).ok());
  // The holder has not opened its stream, so another may take its place.
  CHECK(f.Register(3, "b", turn).ok());
  CHECK(f.StateOf(2) == AggregatorState::kLost);
  CHECK(turn.lost_aggregators == std::set{Incarnation{2}});
  CHECK(turn.dirty_aggregators == std::set{Incarnation{2}, Incarnation{3}});
  CHECK(f.Register(2, "c", turn).code == Code::kRefused);
}

TEST_CASE("AggregatorPool: a name is kept for a lease after a restart of the scheduler",
          "[membership]") {
  Pool f;
  Snapshot snapshot;
  snapshot.aggregators = {
      {.aggregator = {.incarnation = Incarnation{1}, .name = "a", .data_address = "here"}}};
  AggregatorPool pool(f.config, snapshot, 0, &f.leases, &f.streams);
  const view::ViewAggregator next{
      .incarnation = Incarnation{2}, .name = "a", .data_address = "here"};
  Turn turn(0);
  CHECK(pool.Register(next, {}, turn).code == Code::kNotYet);
  Turn later(f.config.lease_ns + 1);
  pool.ExpireLeases(later);
  CHECK(pool.Register(next, {}, later).ok());
}

TEST_CASE("AggregatorPool: no more aggregators register than the limit allows", "[membership]") {
  Pool f;
  AggregatorPool pool({.aggregators_max = 1}, {}, 0, &f.leases, &f.streams);
  Turn turn(0);
  const view::ViewAggregator first{
      .incarnation = Incarnation{1}, .name = "a", .data_address = "here"};
  const view::ViewAggregator second{
      .incarnation = Incarnation{2}, .name = "b", .data_address = "here"};
  CHECK(pool.Register(first, {}, turn).ok());
  CHECK(pool.Register(second, {}, turn).code == Code::kFull);
  LiveAggregator* known = nullptr;
  REQUIRE(pool.FindFor({Incarnation{1}}, known).ok());
  pool.Lose(*known, "is gone", turn);
  CHECK(pool.Register(second, {}, turn).ok());
}

TEST_CASE("AggregatorPool: an aggregator that is silent loses its lease, and an event renews it",
          "[membership]") {
  Pool f;
  f.AddAggregator(1, "a");
  f.AddAggregator(2, "b");
  CHECK(f.pool.Renew({Incarnation{1}}, 5 * f.kSecond).ok());
  Turn turn(f.config.lease_ns);
  f.pool.ExpireLeases(turn);
  CHECK(f.StateOf(1) == AggregatorState::kLive);
  CHECK(f.StateOf(2) == AggregatorState::kLost);
  CHECK(f.pool.Find(Incarnation{2})->record.text ==
        "aggregator b (incarnation 2) was silent for 10 s (its lease has lapsed)");
  // The lost aggregator's stream has ended with it.
  CHECK_FALSE(f.streams.Break(StreamId{202}));
  CHECK(f.streams.Break(StreamId{201}));
}

TEST_CASE("AggregatorPool: a broken stream is a loss if it counts", "[membership]") {
  Pool f;
  f.AddAggregator(1, "a");
  f.AddAggregator(2, "b");
  Turn turn(0);
  f.pool.OnStreamBroken(Incarnation{1}, false, "it is revoked", turn);
  CHECK(f.StateOf(1) == AggregatorState::kLive);
  CHECK(f.pool.Find(Incarnation{1})->shut_out == "it is revoked");
  CHECK_FALSE(f.pool.Find(Incarnation{1})->stream);
  f.pool.OnStreamBroken(Incarnation{2}, true, "", turn);
  CHECK(f.StateOf(2) == AggregatorState::kLost);
  // Nobody is told, because neither has a stream.
  turn.effects.clear();
  f.pool.Tell(JobClosed{JobId{1}, "over"}, turn);
  CHECK(turn.effects.empty());
}

TEST_CASE("AggregatorPool: a request that shows another secret is refused", "[membership]") {
  Pool f;
  f.AddAggregator(1, "a");
  SecretHash other;
  other.bytes.fill(1);
  CHECK(f.pool.Renew({Incarnation{1}, other}, 0).code == Code::kUnproven);
  CHECK(f.pool.Renew({Incarnation{9}, other}, 0).code == Code::kUnknown);
}

TEST_CASE("AggregatorPool: the oldest are forgotten when many are lost", "[membership]") {
  Pool f;
  Turn turn(0);
  for (uint64_t id = 1; id <= 258; ++id) {
    f.pool.Lose(f.AddAggregator(id, "a" + std::to_string(id)), "is gone", turn);
  }
  f.pool.Collect(turn);
  CHECK(turn.write.aggregators_removed == std::vector{Incarnation{1}, Incarnation{2}});
  CHECK(f.pool.Find(Incarnation{2}) == nullptr);
  CHECK(f.pool.Find(Incarnation{3}) != nullptr);
}

}  // namespace
}  // namespace talweg::membership
