// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/incarnation.h"

#include <random>

namespace talweg {

Incarnation NewIncarnation() {
  std::random_device random;
  uint64_t drawn = 0;
  while (drawn == 0) drawn = uint64_t{random()} << 32 | random();
  return Incarnation{drawn};
}

}  // namespace talweg
