// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_SUMMER_H_
#define TALWEG_SERVICES_AGGREGATOR_SUMMER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/dtype.h"

namespace talweg::aggregator {

// One slice's sum, as reduce::LastHop and reduce::Reduce need it.
struct SliceSum {
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;        // Never kCopy.
  std::vector<float> rank_counts;  // By input.
  uint32_t rank_count_total = 0;
  std::vector<const std::byte*> inputs;
  std::byte* output = nullptr;
  size_t length_bytes = 0;  // Each input's length.
};

// Combines contributions. The simulation has its own, for memory that does not hold numbers.
class Summer {
 public:
  virtual ~Summer() = default;
  virtual void Sum(const SliceSum& sum) const = 0;
};

// The kernels of libs/reduce.
const Summer& KernelSummer();

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SUMMER_H_
