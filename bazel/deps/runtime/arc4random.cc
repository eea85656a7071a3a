// SPDX-License-Identifier: Apache-2.0
// std::random_device's source, in place of glibc's. glibc has it from 2.36 on only, and a program
// that names it does not start on an older system (Ubuntu 22.04 has 2.35).
#include <sys/random.h>

#include <cstdint>

extern "C" uint32_t arc4random() noexcept {
  uint32_t value = 0;
  // The system gives so few bytes whole. Only its first moments interrupt the call.
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}
