// SPDX-License-Identifier: Apache-2.0
#include "libs/base/shown_address.h"

#include <algorithm>

namespace talweg {

std::string ShownAddress(const std::string& data_address) {
  std::string shown;
  for (size_t begin = 0; begin < data_address.size();) {
    const size_t end = std::min(data_address.find(',', begin), data_address.size());
    std::string part = data_address.substr(begin, end - begin);
    const size_t host = part.find("://");
    const size_t secret = host == std::string::npos ? part.find(':') : part.find('/', host + 3);
    part.resize(std::min(secret, part.size()));
    shown += (shown.empty() ? "" : ",") + part;
    begin = end + 1;
  }
  return shown;
}

}  // namespace talweg
