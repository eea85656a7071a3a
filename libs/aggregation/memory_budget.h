// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_MEMORY_BUDGET_H_
#define TALWEG_LIBS_AGGREGATION_MEMORY_BUDGET_H_

#include <cstdint>

#include "libs/base/check.h"

namespace talweg::aggregation {

// Bytes that the jobs of one aggregator may take for slots and results. One owner thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // False, and nothing taken, when less than `bytes` is left.
  bool Reserve(uint64_t bytes) {
    if (bytes > limit_bytes_ - used_bytes_) return false;
    used_bytes_ += bytes;
    return true;
  }
  void Release(uint64_t bytes) {
    TALWEG_CHECK(bytes <= used_bytes_);
    used_bytes_ -= bytes;
  }

  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  uint64_t limit_bytes_;
  uint64_t used_bytes_ = 0;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_MEMORY_BUDGET_H_
