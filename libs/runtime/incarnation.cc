// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/incarnation.h"

#include <sys/random.h>

namespace talweg::runtime {

Incarnation NewIncarnation() {
  uint64_t drawn = 0;
  while (drawn == 0) {
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) drawn = 0;  // A signal.
  }
  return Incarnation{drawn};
}

}  // namespace talweg::runtime
