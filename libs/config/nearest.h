// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_NEAREST_H_
#define TALWEG_LIBS_CONFIG_NEAREST_H_

#include <string>
#include <vector>

namespace talweg::config {

// Returns the name in `known` that `name` most likely means, or "" if none is near.
std::string NearestName(const std::string& name, const std::vector<std::string>& known);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_NEAREST_H_
