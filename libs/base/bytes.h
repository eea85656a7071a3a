// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_BYTES_H_
#define TALWEG_LIBS_BASE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace talweg {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr size_t kCacheLineBytes = 64;

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// "4 MiB", "1.5 GiB", "17 bytes": for people.
std::string FormatBytes(uint64_t bytes);

// Reads "4096", "64K", "4MiB", "1g" (powers of 1024). nullopt for anything else or past 2^64.
std::optional<uint64_t> ParseBytes(std::string_view text);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_BYTES_H_
