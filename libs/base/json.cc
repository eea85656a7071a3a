// SPDX-License-Identifier: Apache-2.0
#include "libs/base/json.h"

namespace talweg {

std::string JsonString(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
    } else {
      json += c;
    }
  }
  return json + '"';
}

}  // namespace talweg
