// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <iterator>
#include <string>

#include <catch2/catch.hpp>

#include "libs/config/config.h"

namespace talweg::config {
namespace {

TEST_CASE("docs/configuration.md: it is what libs/config generates", "[docs]") {
  std::ifstream file("docs/configuration.md");
  REQUIRE(file);
  const std::string page(std::istreambuf_iterator<char>(file), {});
  INFO("bazel run //libs/config:configuration_page > docs/configuration.md");
  CHECK(page == ConfigurationPage());
}

}  // namespace
}  // namespace talweg::config
