// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/lanes.h"

#include <atomic>
#include <filesystem>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/runtime/host_id.h"
#include "services/aggregator/aggregator_fixture.h"

namespace talweg::aggregator {
namespace {

config::AggregatorConfig ThreeLanes() {
  config::AggregatorConfig config = TestConfig();
  config.lanes = 3;
  config.memory_bytes_max = 24 * kMiB;
  return config;
}

TEST_CASE("LaneConfig: a lane has names, ports and sockets of its own, and a part of the memory",
          "[aggregator]") {
  config::AggregatorConfig config = ThreeLanes();
  config.listen = {.host = "::1", .port_first = 7000, .port_last = 7000};
  config.admin_listen = {.path = "/run/agg.sock"};
  const config::AggregatorConfig first = LaneConfig(config, 0);
  CHECK(first.name == "agg");
  CHECK(first.listen.ToString() == "[::1]:7000");
  CHECK(first.admin_listen.path == "/run/agg.sock");
  CHECK(first.memory_bytes_max == 8 * kMiB);
  const config::AggregatorConfig last = LaneConfig(config, 2);
  CHECK(last.name == "agg/2");
  CHECK(last.listen.ToString() == "[::1]:7002");
  CHECK(last.admin_listen.path == "/run/agg.sock.2");
  CHECK(last.memory_bytes_max == 8 * kMiB);
  CHECK(last.lanes == 1);

  // Each lane takes a free port.
  config.listen = {.host = "::1", .port_first = 7000, .port_last = 7010};
  CHECK(LaneConfig(config, 2).listen.ToString() == "[::1]:7000-7010");
  config.listen = {.host = "::1"};
  CHECK(LaneConfig(config, 2).listen.ToString() == "[::1]:0");
  config.name = "";
  CHECK(LaneConfig(config, 1).name == runtime::HostName() + "/1");
  config.memory_bytes_max = 0;
  CHECK(LaneConfig(config, 1).memory_bytes_max > 0);
}

TEST_CASE("Lanes: each lane is an aggregator of its own, and all end together", "[aggregator]") {
  const runtime::MonotonicClock clock;
  auto lanes = Lanes::Create(ThreeLanes(), Incarnation{77}, &clock, "", nullptr);
  REQUIRE(lanes.ok());
  std::atomic<int> ended = 0;
  (*lanes)->Start([&ended] { ++ended; });
  const std::map<std::string, std::string> addresses = (*lanes)->addresses();
  CHECK(addresses.size() == 6);
  std::set<std::string> names;
  std::set<std::string> data;
  for (const char* suffix : {"", "/1", "/2"}) {
    rpc::AggregatorAdminClient client(addresses.at(std::string("admin") + suffix), kTimeoutNs);
    const auto status = client.GetStatus({});
    REQUIRE(status.ok());
    names.insert(status->name());
    data.insert(addresses.at(std::string("data") + suffix));
    CHECK(status->data_address() == addresses.at(std::string("data") + suffix));
    CHECK(status->memory_bytes_max() == 8 * kMiB);
  }
  CHECK(names == std::set<std::string>{"agg", "agg/1", "agg/2"});
  CHECK(data.size() == 3);
  SECTION("They end after a signal") { (*lanes)->Shutdown("the test is over"); }
  SECTION("They are stopped") {}
  CHECK((*lanes)->Join().ok());
  CHECK(ended == 3);
}

TEST_CASE("Lanes: the error names a lane that cannot be opened, and nothing stays open",
          "[aggregator]") {
  const TestDirectory directory;
  const runtime::MonotonicClock clock;
  config::AggregatorConfig config = ThreeLanes();
  config.admin_listen = {.path = directory.Path("admin")};
  std::filesystem::create_directory(directory.Path("admin.1"));
  const auto lanes = Lanes::Create(config, Incarnation{77}, &clock, "", nullptr);
  REQUIRE_FALSE(lanes.ok());
  CHECK(std::string(lanes.status().message()).find("lane 1") != std::string::npos);
}

TEST_CASE("Lanes: a CPU that is not there ends all lanes, and the error names it", "[aggregator]") {
  const runtime::MonotonicClock clock;
  config::AggregatorConfig config = ThreeLanes();
  config.cpus = {0, 4095};
  auto lanes = Lanes::Create(config, Incarnation{77}, &clock, "", nullptr);
  REQUIRE(lanes.ok());
  std::atomic<int> ended = 0;
  (*lanes)->Start([&ended] { ++ended; });
  while (ended == 0) std::this_thread::yield();
  const absl::Status served = (*lanes)->Join();
  CHECK(std::string(served.message()).find("CPU 4095") != std::string::npos);
}

}  // namespace
}  // namespace talweg::aggregator
