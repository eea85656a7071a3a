// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "libs/base/check.h"
#include "tests/sim/ledger.h"

namespace talweg::internal {

// A mutated core ends its life, not the test.
void CheckFailed(const char* file, int line, const char* expression) {
  throw sim::Violation{std::string(file) + ":" + std::to_string(line) +
                       ": broken invariant: " + expression};
}

}  // namespace talweg::internal
