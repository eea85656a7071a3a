// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator.h"

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/runtime/clock.h"
#include "services/aggregator/aggregator_fixture.h"

namespace talweg::aggregator {
namespace {

TEST_CASE("Aggregator: it answers admin calls and ends, with a scheduler or without",
          "[aggregator]") {
  const runtime::MonotonicClock clock;
  auto aggregator = Aggregator::Create(TestConfig(), Incarnation{77}, &clock);
  REQUIRE(aggregator.ok());
  CHECK((*aggregator)->data_address().find("fi:tcp://127.0.0.1:") == 0);
  CHECK((*aggregator)->data_address().find(",local:") != std::string::npos);
  // The address that people and other processes see would not let them connect.
  const std::string shown = (*aggregator)->public_data_address();
  CHECK(shown.rfind('/') == std::string("fi:tcp:/").size());
  CHECK(shown.substr(shown.find(',')) == ",local");
  std::thread data([&] { (void)(*aggregator)->Run(); });

  rpc::AggregatorAdminClient client((*aggregator)->admin_address(), kTimeoutNs);
  const auto status = client.GetStatus({});
  const absl::Status health = rpc::CheckHealth((*aggregator)->admin_address(),
                                               "talweg.aggregator.v1.AdminService", kTimeoutNs);
  (*aggregator)->Shutdown("the test is over");
  data.join();
  REQUIRE(status.ok());
  CHECK(health.ok());
  CHECK(status->name() == "agg");
  CHECK(status->data_address() == (*aggregator)->public_data_address());
  CHECK(status->memory_bytes_max() == 8 * kMiB);
  CHECK(status->jobs_size() == 0);
  CHECK_FALSE(status->scheduler_reachable());
  CHECK_FALSE(status->scheduler_text().empty());
  CHECK(status->refused_by_reason().count("wrong_round") == 1);
  CHECK(status->counters().count("sums") == 1);
}

TEST_CASE("Aggregator: on Unix sockets it uses shared memory, and no network", "[aggregator]") {
  const TestDirectory directory;
  const runtime::MonotonicClock clock;
  config::AggregatorConfig config = TestConfig();
  config.listen = {.path = directory.Path("data.sock")};
  config.admin_listen = {.path = directory.Path("admin.sock")};
  config.provider = "none of libfabric's";  // This is not looked up.
  auto aggregator = Aggregator::Create(config, Incarnation{77}, &clock);
  INFO(aggregator.status().ToString());
  REQUIRE(aggregator.ok());
  CHECK((*aggregator)->data_address().starts_with("local:" + config.listen.path + "#"));
  CHECK((*aggregator)->public_data_address() == "local");
  CHECK((*aggregator)->admin_address() == "unix:" + config.admin_listen.path);
  CHECK(std::filesystem::is_socket(config.listen.path));
}

TEST_CASE("Aggregator: the error names an address that cannot be bound", "[aggregator]") {
  const runtime::MonotonicClock clock;
  config::AggregatorConfig config = TestConfig();
  SECTION("The address is the data plane's") { config.listen.host = "203.0.113.7"; }
  SECTION("The address is the admin service's") { config.admin_listen.host = "203.0.113.7"; }
  const auto aggregator = Aggregator::Create(config, Incarnation{77}, &clock);
  REQUIRE_FALSE(aggregator.ok());
  CHECK(std::string(aggregator.status().message()).find("203.0.113.7") != std::string::npos);
}

TEST_CASE("Aggregator: the error names a port that is taken", "[aggregator]") {
  const runtime::MonotonicClock clock;
  auto first = Aggregator::Create(TestConfig(), Incarnation{77}, &clock);
  REQUIRE(first.ok());
  const std::string address = (*first)->public_data_address();
  const std::string network = address.substr(0, address.find(','));
  const std::string port = network.substr(network.rfind(':') + 1);
  config::AggregatorConfig config = TestConfig();
  config.listen.port_first = config.listen.port_last = static_cast<uint16_t>(std::stoi(port));
  const auto second = Aggregator::Create(config, Incarnation{78}, &clock);
  REQUIRE_FALSE(second.ok());
  CHECK(std::string(second.status().message()).find(port) != std::string::npos);
}

}  // namespace
}  // namespace talweg::aggregator
