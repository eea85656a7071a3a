// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

namespace talweg::runtime {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;

// "max", and anything that is no number, is no limit.
uint64_t NumberIn(const std::string& path) {
  std::string text;
  std::ifstream(path) >> text;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : kNoLimit;
}

}  // namespace

uint64_t MemoryLimitBytesOf(const std::vector<ControlGroup>& groups) {
  uint64_t lowest = kNoLimit;
  for (const ControlGroup& group : groups) {
    const char* const file = group.is_v2 ? "/memory.max" : "/memory.limit_in_bytes";
    lowest = std::min(lowest, NumberIn(group.directory + file));
  }
  return lowest;
}

uint64_t MemoryLimitBytes() {
  const uint64_t machine_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(getpagesize());
  return std::min(machine_bytes, MemoryLimitBytesOf(OwnControlGroups("memory")));
}

}  // namespace talweg::runtime
