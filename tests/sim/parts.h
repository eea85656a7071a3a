// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_PARTS_H_
#define TALWEG_TESTS_SIM_PARTS_H_

#include <cstdint>
#include <cstdlib>
#include <fstream>

namespace talweg::sim {

// Bazel runs a long test in parts (shard_count), with a process for each. Returns whether this
// process does the work of that number. A test without parts does all.
inline bool IsOfThisPart(uint64_t number) {
  const auto value = [](const char* name, uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  // Tells Bazel that the test supports parts.
  if (const char* const file = std::getenv("TEST_SHARD_STATUS_FILE")) std::ofstream{file};
  return number % value("TEST_TOTAL_SHARDS", 1) == value("TEST_SHARD_INDEX", 0);
}

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_PARTS_H_
