// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>

namespace talweg::runtime {
namespace {

int Policy() {
  int mode = -1;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 ? mode : -1;
}

TEST_CASE("PreferNumaNode: a node is preferred until the object is gone", "[runtime]") {
  const int before = Policy();
  if (before < 0) {
    WARN("skipped: this kernel, or container, has no memory policies");
    return;
  }
  {
    const PreferNumaNode near(0);
    CHECK(Policy() == MPOL_PREFERRED);
  }
  CHECK(Policy() == before);
}

TEST_CASE("PreferNumaNode: no node, or a node that does not exist, changes nothing", "[runtime]") {
  const int before = Policy();
  const auto node = GENERATE(std::optional<uint32_t>(), std::optional<uint32_t>(1023),
                             std::optional<uint32_t>(~0u));
  const PreferNumaNode near(node);
  CHECK(Policy() == before);
}

}  // namespace
}  // namespace talweg::runtime
