// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_TABLE_H_
#define TALWEG_CLIENTS_CLI_TABLE_H_

#include <string>
#include <vector>

namespace talweg::cli {

// A text table. Cells may come from peers, so control characters in them become '?'.
class Table {
 public:
  Table(std::string indent, std::vector<std::string> header)
      : indent_(std::move(indent)), rows_{std::move(header)} {}

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string Text() const;

 private:
  const std::string indent_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns the text with control characters as '?'.
std::string Plain(const std::string& text);

// Returns "950 us", "12.0 ms", "3.4 s", "12 min".
std::string FormatSeconds(double seconds);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_TABLE_H_
