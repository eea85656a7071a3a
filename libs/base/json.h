// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_JSON_H_
#define TALWEG_LIBS_BASE_JSON_H_

#include <string>
#include <string_view>

namespace talweg {

// UTF-8 text as a JSON string, in its quotes.
std::string JsonString(std::string_view text);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_JSON_H_
