// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"

namespace talweg::runtime {
namespace {

constexpr uint64_t kNone = UINT64_MAX;

// A directory with files like the kernel's for control groups.
class FakeMount {
 public:
  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = directory_.Path(file);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const std::string& path() const { return directory_.path(); }

 private:
  TestDirectory directory_;
};

TEST_CASE("MemoryLimit: it is never more than the machine has", "[runtime]") {
  CHECK(MemoryLimitBytes() > 0);
  CHECK(MemoryLimitBytes() <=
        static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(getpagesize()));
}

TEST_CASE("MemoryLimit: it is the lowest of a group and the groups above it", "[runtime]") {
  const FakeMount mount;
  mount.Write("batch/job/memory.max", "max");
  mount.Write("batch/memory.max", "2000000");
  CHECK(ControlGroupLimitBytes("0::/batch/job\n", mount.path()) == 2'000'000);
  mount.Write("batch/job/memory.max", "1000000");
  CHECK(ControlGroupLimitBytes("0::/batch/job\n", mount.path()) == 1'000'000);
  mount.Write("memory.max", "500000");
  CHECK(ControlGroupLimitBytes("0::/batch/job\n", mount.path()) == 500'000);
}

TEST_CASE("MemoryLimit: a container sees its own group at the top", "[runtime]") {
  const FakeMount mount;
  mount.Write("memory.max", "750000");
  CHECK(ControlGroupLimitBytes("0::/\n", mount.path()) == 750'000);
  CHECK(ControlGroupLimitBytes("0::/../../elsewhere\n", mount.path()) == 750'000);
}

TEST_CASE("MemoryLimit: in version 1 only the memory controller counts", "[runtime]") {
  const FakeMount mount;
  mount.Write("memory/docker/5f/memory.limit_in_bytes", "300000");
  mount.Write("memory/memory.limit_in_bytes", "9223372036854771712");
  const std::string groups = "9:cpu,memory:/docker/5f\n8:memoryless:/x\n1:name=systemd:/y\n0::/\n";
  CHECK(ControlGroupLimitBytes(groups, mount.path()) == 300'000);
}

TEST_CASE("MemoryLimit: a missing limit, missing files and nonsense mean no limit", "[runtime]") {
  const FakeMount mount;
  CHECK(ControlGroupLimitBytes("0::/nowhere\n", mount.path()) == kNone);
  mount.Write("memory.max", "max");
  CHECK(ControlGroupLimitBytes("0::/\n", mount.path()) == kNone);
  mount.Write("x/memory.max", "12MB");
  CHECK(ControlGroupLimitBytes("0::/x\n", mount.path()) == kNone);
  CHECK(ControlGroupLimitBytes("", mount.path()) == kNone);
  CHECK(ControlGroupLimitBytes("nonsense\n::\n", mount.path()) == kNone);
}

}  // namespace
}  // namespace talweg::runtime
