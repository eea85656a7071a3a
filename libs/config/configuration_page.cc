// SPDX-License-Identifier: Apache-2.0
// Prints docs/configuration.md:
//   bazel run //libs/config:configuration_page > docs/configuration.md
#include <cstdio>

#include "libs/config/config.h"

int main() {
  std::fputs(talweg::config::ConfigurationPage().c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}
