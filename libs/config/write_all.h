// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_WRITE_ALL_H_
#define TALWEG_LIBS_CONFIG_WRITE_ALL_H_

#include <absl/status/status.h>

#include <string>
#include <string_view>

namespace talweg::config {

// Writes the text to a descriptor. An error names `what`.
absl::Status WriteAll(int descriptor, std::string_view text, const std::string& what);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_WRITE_ALL_H_
