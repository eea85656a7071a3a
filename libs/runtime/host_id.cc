// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/host_id.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace talweg::runtime {

std::string HostId() {
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  struct stat network_namespace {};
  if (boot_id.empty() || stat("/proc/self/ns/net", &network_namespace) != 0) return "";
  return boot_id + "/" + std::to_string(network_namespace.st_ino) + "/" + std::to_string(geteuid());
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name) == 0 ? name : "unknown";
}

}  // namespace talweg::runtime
