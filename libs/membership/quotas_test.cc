// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/quotas.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::membership {
namespace {

Quotas Read(const std::string& text) {
  auto parsed = Quotas::Parse(text);
  if (const auto* problem = std::get_if<std::string>(&parsed)) FAIL(*problem);
  return std::get<Quotas>(std::move(parsed));
}

TEST_CASE("Quotas: without rules there is no limit", "[membership]") {
  CHECK(Quotas().For("any", "") == Quota());
  CHECK(Read("# nothing\n\n").empty());
  CHECK(Quotas().For("any", "t").share.tenant == "t");
}

TEST_CASE("Quotas: each setting comes from the most exact rule that has it", "[membership]") {
  const Quotas quotas = Read(
      "job * members_max=32 weight=2\n"
      "job vision-* tenant=vision weight=3   # All of theirs.\n"
      "job vision-big weight=5 priority=high memory_bytes_max=8GiB tensors_max=10\n"
      "tenant * jobs_max=4 members_max=64\n"
      "tenant vision jobs_max=2 weight=7 memory_bytes_max=1024 tensors_max=20\n");
  const Quota big = quotas.For("vision-big", "");
  CHECK(big.share == view::JobQuota{.tenant = "vision",
                                    .priority = view::Priority::kHigh,
                                    .weight = 5,
                                    .tenant_weight = 7,
                                    .limit = {8 * kGiB, 10},
                                    .tenant_limit = {1024, 20}});
  CHECK(big.members_max == 32);
  CHECK(big.tenant_jobs_max == 2);
  CHECK(big.tenant_members_max == 64);
  CHECK(quotas.For("vision-2", "").share.weight == 3);
  CHECK(quotas.For("vision", "").share.weight == 2);
}

TEST_CASE("Quotas: a rule's tenant counts, not the one that agents name", "[membership]") {
  const Quotas quotas = Read("job a tenant=x\ntenant x jobs_max=1\n");
  CHECK(quotas.For("a", "y").share.tenant == "x");
  CHECK(quotas.For("a", "y").tenant_of_rule == "x");
  CHECK(quotas.For("b", "x").tenant_jobs_max == 1);
  CHECK(quotas.For("b", "x").tenant_of_rule.empty());
  // Without a tenant, no tenant's rule applies, and others see the job's own weight.
  CHECK(Read("tenant * jobs_max=1\njob * weight=3\n").For("b", "").tenant_jobs_max ==
        view::kNoLimit);
  CHECK(Read("job * weight=3\n").For("b", "").share.tenant_weight == 3);
}

TEST_CASE("Quotas: an error names the line, the value and the remedy", "[membership]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\nuser a weight=1", "line 2 begins with 'user'; a rule is 'job NAME SETTING=VALUE ...'"},
      {"job", "line 1 names no job"},
      {"job a", "line 1 has no setting"},
      {"job a*b weight=1", "'*' inside the name 'a*b'; it may stand at the end alone"},
      {"job a weight=1\njob a priority=low", "line 2 is a second rule of job 'a'"},
      {"job a weight=0", "weight is '0'; give a number from 1 to 1000"},
      {"job a weight=1001", "weight is '1001'; give a number from 1 to 1000"},
      {"job a weight", "'weight', which is not SETTING=VALUE"},
      {"job a priority=top", "priority is 'top'; give low, normal or high"},
      {"job a memory_bytes_max=lots", "memory_bytes_max is 'lots'; give a number of bytes"},
      {"job a memory_bytes_max=0", "memory_bytes_max is '0'"},
      {"job a members_max=-1", "members_max is '-1'"},
      {"job a tensors_max=1x", "tensors_max is '1x'"},
      {"job a jobs_max=1", "'jobs_max' is not a setting of a job; there are tenant, priority"},
      {"tenant a priority=low", "'priority' is not a setting of a tenant; there are weight"},
      {"job a tenant=b*", "tenant is 'b*'; give one whole name"},
      {"job " + std::string(1025, 'a') + " weight=1", "a name of 1025 bytes; at most 1024"},
  };
  for (const auto& [text, wanted] : cases) {
    CAPTURE(text);
    const auto parsed = Quotas::Parse(text);
    REQUIRE(std::holds_alternative<std::string>(parsed));
    CHECK_THAT(std::get<std::string>(parsed), Catch::Matchers::Contains(wanted));
  }
}

}  // namespace
}  // namespace talweg::membership
