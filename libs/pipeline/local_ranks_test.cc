// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/local_ranks.h"

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::MakeView;

constexpr LocalRank kFirst{0};
constexpr LocalRank kSecond{1};

// Two ranks of node 1. Node 0 has three.
struct TwoRanks {
  ViewState views{{NodeRank{1}, Incarnation{101}}, 2};
  LocalRanks ranks{2, &views};
};

TEST_CASE("LocalRanks: no other process takes the place of a rank that has left", "[pipeline]") {
  TwoRanks t;
  CHECK_FALSE(t.ranks.Leave(kFirst));  // It has not joined.
  CHECK(t.ranks.Join(kFirst, 77));
  CHECK_FALSE(t.ranks.HasLeft(kFirst));
  CHECK(t.ranks.Leave(kFirst));
  CHECK(t.ranks.HasLeft(kFirst));
  CHECK_FALSE(t.ranks.Leave(kFirst));
  CHECK_FALSE(t.ranks.Join(kFirst, 78));
  CHECK_FALSE(t.ranks.HasLeft(kSecond));
  CHECK_FALSE(t.ranks.Has(LocalRank{2}));
  CHECK_FALSE(t.ranks.Leave(LocalRank{2}));
}

TEST_CASE("LocalRanks: a rank that has not joined is waited for, unless the job has failed",
          "[pipeline]") {
  TwoRanks t;
  t.ranks.Join(kFirst, 77);
  CHECK_FALSE(t.ranks.AreDone());
  t.ranks.Leave(kFirst);
  CHECK_FALSE(t.ranks.AreDone());
  SECTION("It joins and leaves") {
    t.ranks.Join(kSecond, 78);
    CHECK_FALSE(t.ranks.AreDone());
    t.ranks.Leave(kSecond);
    CHECK(t.ranks.AreDone());
  }
  SECTION("It has not come when the job fails") {
    t.views.Fail("why");
    CHECK(t.ranks.AreDone());
  }
  SECTION("It has joined when the job fails") {
    t.ranks.Join(kSecond, 78);
    t.views.Fail("why");
    CHECK_FALSE(t.ranks.AreDone());
  }
}

TEST_CASE("LocalRanks: a text names the rank by its number in the job, its node and its process",
          "[pipeline]") {
  TwoRanks t;
  CHECK(t.ranks.Text(kSecond) == "rank 1 (local rank 1 of node 1)");  // There is no view yet.
  t.views.Enter(MakeView(1, {3, 2}, 1));
  CHECK(t.ranks.Text(kSecond) == "rank 4 (local rank 1 of node 1)");
  t.ranks.Join(kSecond, 78);
  CHECK(t.ranks.Text(kSecond) == "rank 4 (local rank 1 of node 1, pid 78)");
  CHECK(t.ranks.Text(LocalRank{9}) == "rank 12 (local rank 9 of node 1)");
}

}  // namespace
}  // namespace talweg::pipeline
