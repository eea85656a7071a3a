// SPDX-License-Identifier: Apache-2.0
#include "libs/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace talweg::internal {

void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace talweg::internal
