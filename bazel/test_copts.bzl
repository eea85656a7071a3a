# SPDX-License-Identifier: Apache-2.0
"""How tests, and files that begin with a precompiled header, are compiled."""

# For a test's own code, mostly Catch2's macros: g++ takes a fifth less time than for -O2. The code
# under test is compiled as it is delivered.
TEST_COPTS = ["-O1"]

# g++ 12 does not know a precompiled header's system headers as such. So it warns of what it wrongly
# suspects in the code of std::string.
PRECOMPILED_COPTS = [
    "-Wno-array-bounds",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
]

# What a file that uses Catch2 begins with.
CATCH2_COPTS = TEST_COPTS + PRECOMPILED_COPTS + [
    "-include",
    "bazel/deps/catch2/precompiled.hpp",
]
