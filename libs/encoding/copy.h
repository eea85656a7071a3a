// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_COPY_H_
#define TALWEG_LIBS_ENCODING_COPY_H_

#include <algorithm>
#include <cstddef>
#include <span>

// How data travels that an encoding does not make shorter.
namespace talweg::encoding {

inline size_t CopyTo(std::span<const std::byte> from, std::span<std::byte> to) {
  std::copy(from.begin(), from.end(), to.begin());
  return from.size();
}

// Whether `from` is as long as `to`; then it is copied.
inline bool CopiedWhole(std::span<const std::byte> from, std::span<std::byte> to) {
  return from.size() == to.size() && CopyTo(from, to) == to.size();
}

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_COPY_H_
