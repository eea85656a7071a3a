// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/table.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdio>

namespace talweg::cli {
namespace {

// Cells are UTF-8. Each byte that does not continue a character takes a column.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string Plain(const std::string& text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    // U+0080 to U+009F in UTF-8: terminals take them for escape sequences.
    const bool is_late = c == '\xc2' && i + 1 < text.size() && (text[i + 1] & 0xe0) == 0x80;
    if (is_late) ++i;
    plain += is_late || static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return plain;
}

std::string Table::Text() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    text += indent_;
    for (size_t i = 0; i < row.size(); ++i) {
      text += Plain(row[i]);
      if (i + 1 < row.size()) text += std::string(widths[i] - Width(row[i]) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1e3);
  if (seconds < 120) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  return absl::StrFormat("%.1f h", seconds / 3600);
}

}  // namespace talweg::cli
