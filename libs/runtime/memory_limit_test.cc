// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/memory_limit.h"

#include <unistd.h>

#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "libs/runtime/fake_control_groups.h"

namespace talweg::runtime {
namespace {

constexpr uint64_t kNone = UINT64_MAX;

uint64_t LimitAt(const FakeControlGroups& mount, const std::string& proc_cgroup) {
  return MemoryLimitBytesOf(ControlGroupsOf(proc_cgroup, mount.path(), "memory"));
}

TEST_CASE("MemoryLimit: it is never more than the machine has", "[runtime]") {
  CHECK(MemoryLimitBytes() > 0);
  CHECK(MemoryLimitBytes() <=
        static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(getpagesize()));
}

TEST_CASE("MemoryLimit: it is the lowest of a group and the groups above it", "[runtime]") {
  const FakeControlGroups mount;
  mount.Write("batch/job/memory.max", "max");
  mount.Write("batch/memory.max", "2000000");
  CHECK(LimitAt(mount, "0::/batch/job\n") == 2'000'000);
  mount.Write("batch/job/memory.max", "1000000");
  CHECK(LimitAt(mount, "0::/batch/job\n") == 1'000'000);
  mount.Write("memory.max", "500000");
  CHECK(LimitAt(mount, "0::/batch/job\n") == 500'000);
}

TEST_CASE("MemoryLimit: a container sees its own group at the top", "[runtime]") {
  const FakeControlGroups mount;
  mount.Write("memory.max", "750000");
  CHECK(LimitAt(mount, "0::/\n") == 750'000);
  CHECK(LimitAt(mount, "0::/../../elsewhere\n") == 750'000);
}

TEST_CASE("MemoryLimit: in version 1 only the memory controller counts", "[runtime]") {
  const FakeControlGroups mount;
  mount.Write("memory/docker/5f/memory.limit_in_bytes", "300000");
  mount.Write("memory/memory.limit_in_bytes", "9223372036854771712");
  const std::string groups = "9:cpu,memory:/docker/5f\n8:memoryless:/x\n1:name=systemd:/y\n0::/\n";
  CHECK(LimitAt(mount, groups) == 300'000);
}

TEST_CASE("MemoryLimit: a missing limit, missing files and nonsense mean no limit", "[runtime]") {
  const FakeControlGroups mount;
  CHECK(LimitAt(mount, "0::/nowhere\n") == kNone);
  mount.Write("memory.max", "max");
  CHECK(LimitAt(mount, "0::/\n") == kNone);
  mount.Write("x/memory.max", "12MB");
  CHECK(LimitAt(mount, "0::/x\n") == kNone);
  CHECK(LimitAt(mount, "") == kNone);
  CHECK(LimitAt(mount, "nonsense\n::\n") == kNone);
}

}  // namespace
}  // namespace talweg::runtime
