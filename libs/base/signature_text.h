// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_SIGNATURE_TEXT_H_
#define TALWEG_LIBS_BASE_SIGNATURE_TEXT_H_

#include <cstddef>

#include "libs/base/collective.h"

namespace talweg {

inline constexpr size_t kSignatureTextBytes = 96;

// Writes what DescribeSignature says, cut to fit and ended with NUL. For libtalweg, which needs
// libc alone and so has no std::string.
void PrintSignature(RoundSignature signature, char* out, size_t bytes_max);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_SIGNATURE_TEXT_H_
