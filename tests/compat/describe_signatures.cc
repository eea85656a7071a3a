// SPDX-License-Identifier: Apache-2.0
//
// Prints what the daemons say about each signature that it is given, one line each, for
// signatures_test.py.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "libs/base/collective.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const talweg::RoundSignature signature = std::strtoull(argv[i], nullptr, 10);
    std::puts(talweg::DescribeSignature(signature).c_str());
  }
  return 0;
}
