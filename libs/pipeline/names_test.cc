// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/names.h"

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::MakeView;
using testing::Spec;

TEST_CASE("Listed: it names eight, and counts the others", "[pipeline]") {
  CHECK(Listed({}) == "");
  CHECK(Listed({"a"}) == "a");
  CHECK(Listed({"a", "b", "c", "d", "e", "f", "g", "h"}) == "a, b, c, d, e, f, g, h");
  CHECK(Listed({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}) ==
        "a, b, c, d, e, f, g, h and 2 more");
}

TEST_CASE("RanksOfNode: it names the node's ranks that take part in the tensor", "[pipeline]") {
  const view::View view = MakeView(1, {2, 3, 1}, 1);
  TensorSpec spec = Spec("w", 10);
  CHECK(RanksOfNode(&view, spec, NodeRank{1}) == "ranks 2, 3, 4 of node 1");
  CHECK(RanksOfNode(&view, spec, NodeRank{2}) == "rank 5 of node 2");
  spec.ranks = {Rank{0}, Rank{3}};
  CHECK(RanksOfNode(&view, spec, NodeRank{1}) == "rank 3 of node 1");
  SECTION("It names only the node where it knows of no ranks") {
    CHECK(RanksOfNode(&view, spec, NodeRank{2}) == "node 2");
    CHECK(RanksOfNode(&view, spec, NodeRank{7}) == "node 7");
    CHECK(RanksOfNode(nullptr, spec, NodeRank{1}) == "node 1");
  }
}

}  // namespace
}  // namespace talweg::pipeline
