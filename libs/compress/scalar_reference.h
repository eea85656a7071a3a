// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_COMPRESS_SCALAR_REFERENCE_H_
#define TALWEG_LIBS_COMPRESS_SCALAR_REFERENCE_H_

#include <vector>

#include "libs/compress/compress.h"

namespace talweg::compress {

// What a tensor is and remembers: vectors of one length, or empty ones for memories it lacks.
struct Tensor {
  std::vector<float> values;
  std::vector<float> error;
  std::vector<float> momentum;
};

// Does the same as Compress(), to the last bit. It sorts, and takes one element at a time.
void CompressByRules(const Spec& spec, const Memory& factors, Tensor& tensor);

}  // namespace talweg::compress

#endif  // TALWEG_LIBS_COMPRESS_SCALAR_REFERENCE_H_
