// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/affinity.h"

#include <sched.h>

#include <string>
#include <thread>

#include <catch2/catch.hpp>

namespace talweg::runtime {
namespace {

TEST_CASE("RunOnCpu: the calling thread runs on that CPU, and no other thread is moved",
          "[runtime]") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &before)) --last;
  std::thread([last] {
    CHECK(RunOnCpu(static_cast<uint32_t>(last)).ok());
    CHECK(sched_getcpu() == last);
    cpu_set_t own;
    CHECK(sched_getaffinity(0, sizeof own, &own) == 0);
    CHECK(CPU_COUNT(&own) == 1);
  }).join();
  cpu_set_t after;
  REQUIRE(sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
}

TEST_CASE("RunOnCpu: the error names a CPU that is not there", "[runtime]") {
  CHECK(std::string(RunOnCpu(4095).message()).find("CPU 4095") != std::string::npos);
  CHECK(std::string(RunOnCpu(1023).message()).find("CPU 1023") != std::string::npos);
}

}  // namespace
}  // namespace talweg::runtime
