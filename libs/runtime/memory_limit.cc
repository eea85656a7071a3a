// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "libs/runtime/kernel_file.h"

namespace talweg::runtime {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;

// "max", and anything that is no number, is no limit.
uint64_t NumberIn(const std::string& path) {
  std::string text;
  std::ifstream(path) >> text;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : kNoLimit;
}

// The lowest limit of the group and of those above it. In a container the mount may show only a
// part of the path. A missing part says nothing, and the mount's top is then the container's own
// group.
uint64_t LowestOf(const std::string& mount, std::string group, const std::string& file) {
  uint64_t lowest = kNoLimit;
  while (true) {
    lowest = std::min(lowest, NumberIn(mount + group + "/" + file));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return lowest;
    group.resize(slash);
  }
}

}  // namespace

uint64_t ControlGroupLimitBytes(const std::string& proc_cgroup, const std::string& mount) {
  uint64_t lowest = kNoLimit;
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {
    // "0::/system.slice/x.service", "9:cpuset,memory:/docker/5f3c"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      lowest = std::min(lowest, LowestOf(mount, group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      lowest = std::min(lowest, LowestOf(mount + "/memory", group, "memory.limit_in_bytes"));
    }
  }
  return lowest;
}

uint64_t MemoryLimitBytes() {
  const uint64_t machine_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(getpagesize());
  return std::min(machine_bytes,
                  ControlGroupLimitBytes(ReadKernelFile("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

}  // namespace talweg::runtime
