// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/control_group.h"

#include <sstream>

#include "libs/runtime/kernel_file.h"

namespace talweg::runtime {

std::vector<ControlGroup> ControlGroupsOf(const std::string& proc_cgroup, const std::string& mount,
                                          const std::string& controller) {
  std::vector<ControlGroup> found;
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {
    // "0::/system.slice/x.service", "9:cpuset,memory:/docker/5f3c"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string top = is_v2 ? mount : mount + "/" + controller;
    std::string group = line.substr(second + 1);
    while (true) {
      found.push_back({top + group, is_v2});
      const size_t slash = group.rfind('/');
      if (slash == std::string::npos) break;
      group.resize(slash);
    }
  }
  return found;
}

std::vector<ControlGroup> OwnControlGroups(const std::string& controller) {
  return ControlGroupsOf(ReadKernelFile("/proc/self/cgroup"), "/sys/fs/cgroup", controller);
}

}  // namespace talweg::runtime
