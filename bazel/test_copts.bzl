# SPDX-License-Identifier: Apache-2.0
"""How tests are compiled."""

load("//bazel/precompiled:precompiled.bzl", "PRECOMPILED_COPTS")

# For a test's own code, mostly Catch2's macros: g++ takes a third less time than for -O2. The code
# under test is compiled as it is delivered.
TEST_COPTS = ["-Og"]

# What a file that uses Catch2 begins with.
CATCH2_COPTS = TEST_COPTS + PRECOMPILED_COPTS + [
    "-include",
    "bazel/deps/catch2/precompiled.hpp",
]
