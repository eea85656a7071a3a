// SPDX-License-Identifier: Apache-2.0
#include "libs/base/bytes.h"

#include <cctype>
#include <charconv>
#include <cstdio>

namespace talweg {

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024.0 && unit < 6) {
    value /= 1024.0;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, value == static_cast<uint64_t>(value) ? "%.0f %s" : "%.1f %s",
                value, kUnits[unit]);
  return text;
}

std::optional<uint64_t> ParseBytes(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*c))));
  }
  static constexpr struct {
    char letter;
    int shift;
  } kUnits[] = {{'k', 10}, {'m', 20}, {'g', 30}, {'t', 40}};
  if (unit.empty() || unit == "b") return value;
  for (const auto& [letter, shift] : kUnits) {
    const std::string_view tail = std::string_view(unit).substr(1);
    if (unit[0] != letter || !(tail.empty() || tail == "b" || tail == "ib")) continue;
    if (value > (UINT64_MAX >> shift)) return std::nullopt;
    return value << shift;
  }
  return std::nullopt;
}

}  // namespace talweg
