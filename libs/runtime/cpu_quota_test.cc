// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/cpu_quota.h"

#include <string>

#include <catch2/catch.hpp>

#include "libs/runtime/fake_control_groups.h"

namespace talweg::runtime {
namespace {

std::optional<double> QuotaAt(const FakeControlGroups& mount, const std::string& proc_cgroup) {
  return CpuQuotaOf(ControlGroupsOf(proc_cgroup, mount.path(), "cpu"));
}

TEST_CASE("CpuQuota: it is the lowest of a group and the groups above it", "[runtime]") {
  const FakeControlGroups mount;
  mount.Write("pod/cpu.max", "150000 100000");
  mount.Write("pod/container/cpu.max", "max 100000");
  CHECK(QuotaAt(mount, "0::/pod/container\n") == 1.5);
  mount.Write("pod/container/cpu.max", "50000 100000");
  CHECK(QuotaAt(mount, "0::/pod/container\n") == 0.5);
}

TEST_CASE("CpuQuota: in version 1 only the CPU controller counts", "[runtime]") {
  const FakeControlGroups mount;
  mount.Write("cpu/docker/5f/cpu.cfs_quota_us", "200000");
  mount.Write("cpu/docker/5f/cpu.cfs_period_us", "100000");
  mount.Write("cpu/cpu.cfs_quota_us", "-1");
  mount.Write("cpu/cpu.cfs_period_us", "100000");
  CHECK(QuotaAt(mount, "9:cpu,cpuacct:/docker/5f\n8:cpuset:/x\n") == 2.0);
  CHECK_FALSE(QuotaAt(mount, "9:cpu,cpuacct:/\n"));
}

TEST_CASE("CpuQuota: a missing quota, missing files and nonsense mean no quota", "[runtime]") {
  const FakeControlGroups mount;
  CHECK_FALSE(QuotaAt(mount, "0::/nowhere\n"));
  for (const char* text : {"max 100000", "", "100000", "100000 0", "-1 100000", "much 100000"}) {
    INFO(text);
    mount.Write("x/cpu.max", text);
    CHECK_FALSE(QuotaAt(mount, "0::/x\n"));
  }
}

}  // namespace
}  // namespace talweg::runtime
