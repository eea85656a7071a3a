// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "libs/base/check.h"
#include "tests/sim/ledger.h"

namespace talweg::internal {

// In a mutated core, a broken invariant ends the life, not the test.
void CheckFailed(const char* file, int line, const char* expression) {
  throw sim::Violation{std::string(file) + ":" + std::to_string(line) +
                       ": broken invariant: " + expression};
}

}  // namespace talweg::internal
