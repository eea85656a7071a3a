// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_COUNTED_H_
#define TALWEG_LIBS_BASE_COUNTED_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace talweg {

// "1 member", "2 members". `noun` is a singular whose plural ends in "s".
inline std::string Counted(uint64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + " ";
  text += noun;
  if (count != 1) text += 's';
  return text;
}

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_COUNTED_H_
