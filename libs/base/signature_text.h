// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_SIGNATURE_TEXT_H_
#define TALWEG_LIBS_BASE_SIGNATURE_TEXT_H_

#include <cstddef>

#include "libs/base/collective.h"

namespace talweg {

inline constexpr size_t kSignatureTextBytes = 96;

// A rank that has no more data signs the zeros that it gives to a reduction with this
// (clients/python/talweg/_joining.py): they fit what any other rank says. No collective has this
// signature.
inline constexpr RoundSignature kFitsAll = 0x7A65726F73;

// Whether two ranks of one round have said things that fit together.
constexpr bool Fit(RoundSignature one, RoundSignature other) {
  return one == other || one == kFitsAll || other == kFitsAll;
}

// Writes DescribeSignature's text, cut to fit and ended with NUL. For libtalweg, which needs libc
// alone and so has no std::string.
void PrintSignature(RoundSignature signature, char* out, size_t bytes_max);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_SIGNATURE_TEXT_H_
