// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_COMPAT_GOLDEN_H_
#define TALWEG_TESTS_COMPAT_GOLDEN_H_

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace talweg {

// Named byte strings, to be compared with those that a released version made.
//
// golden/<file>.txt holds them as text: a line `== name`, then lines of `offset: 16 bytes in hex`.
// Bytes are all zero where no line is. To write new ones (never for what has been released):
//   TALWEG_GOLDEN_OUT=$PWD/tests/compat/golden bazel run //tests/compat:<test>
class Golden {
 public:
  explicit Golden(std::string file) : file_(std::move(file)) {}

  void Add(const std::string& name, std::span<const std::byte> bytes);

  // The byte strings of a file.
  static std::map<std::string, std::vector<std::byte>> Load(const std::string& file);

  // Checks all that was added against the file, both ways; or writes it.
  void Check() const;

 private:
  std::string file_;
  std::map<std::string, std::string> texts_;  // By name.
};

}  // namespace talweg

#endif  // TALWEG_TESTS_COMPAT_GOLDEN_H_
