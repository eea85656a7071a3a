// SPDX-License-Identifier: Apache-2.0
#include "libs/config/config.h"

#include <catch2/catch.hpp>

namespace talweg::config {
namespace {

TEST_CASE("deploy/config: the daemons accept the examples", "[deploy]") {
  const auto scheduler = LoadSchedulerConfig({"--config=deploy/config/scheduler.textproto"}, {});
  REQUIRE(scheduler.status().message() == "");
  CHECK(scheduler->listen.port_first == 7447);
  const auto aggregator = LoadAggregatorConfig({"--config=deploy/config/aggregator.textproto"}, {});
  REQUIRE(aggregator.status().message() == "");
  CHECK(aggregator->listen == ListenAddress{"0.0.0.0", 7460, 7469});
  const auto agent = LoadAgentConfig({"--config=deploy/config/agent.textproto"}, {});
  REQUIRE(agent.status().message() == "");
  CHECK(agent->socket_mode == 0660);
  CHECK(agent->max_members == 4);
}

}  // namespace
}  // namespace talweg::config
