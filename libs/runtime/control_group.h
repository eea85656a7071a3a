// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_CONTROL_GROUP_H_
#define TALWEG_LIBS_RUNTIME_CONTROL_GROUP_H_

#include <string>
#include <vector>

namespace talweg::runtime {

// A control group of a process, or one above it. Its limits hold for the process.
struct ControlGroup {
  std::string directory;  // It may not exist, and then says nothing.
  bool is_v2 = true;      // The version says how its files are named.
};

// The groups that limit what `controller` ("memory", "cpu") gives to a process with this text in
// /proc/<pid>/cgroup. Control groups, of version 2 or 1, are mounted at `mount`. In a container the
// mount may show only a part of a group's path, and its top is then the container's own group.
std::vector<ControlGroup> ControlGroupsOf(const std::string& proc_cgroup, const std::string& mount,
                                          const std::string& controller);

// The same for this process.
std::vector<ControlGroup> OwnControlGroups(const std::string& controller);

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_CONTROL_GROUP_H_
