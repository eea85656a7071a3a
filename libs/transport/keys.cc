// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/keys.h"

#include <sys/random.h>

#include <utility>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

namespace talweg::transport {

uint64_t SystemRandom64() {
  uint64_t value = 0;
  // getrandom is never short for so few bytes. It fails only where the call does not exist.
  TALWEG_CHECK(getrandom(&value, sizeof(value), 0) == static_cast<ssize_t>(sizeof(value)));
  return value;
}

uint64_t KeySource::Draw() {
  if (seed_ != 0) return Fingerprint64(seed_, ++count_);
  if (drawn_left_ == 0) {
    // getrandom is never short up to 256 bytes.
    TALWEG_CHECK(getrandom(drawn_.data(), sizeof(drawn_), 0) ==
                 static_cast<ssize_t>(sizeof(drawn_)));
    drawn_left_ = drawn_.size();
  }
  return std::exchange(drawn_[--drawn_left_], 0);
}

uint64_t KeySource::Next(int bits) {
  const uint64_t mask = bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  uint64_t key = 0;
  while (key == 0) key = Draw() & mask;
  return key;
}

}  // namespace talweg::transport
