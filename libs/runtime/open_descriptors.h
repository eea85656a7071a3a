// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_OPEN_DESCRIPTORS_H_
#define TALWEG_LIBS_RUNTIME_OPEN_DESCRIPTORS_H_

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace talweg::runtime {

// How many descriptors this process has open. Compare before and after an action that keeps none.
inline size_t OpenDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  // One of them is this directory's.
  return static_cast<size_t>(std::distance(begin(open), end(open))) - 1;
}

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_OPEN_DESCRIPTORS_H_
