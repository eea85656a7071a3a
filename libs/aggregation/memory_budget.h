// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_MEMORY_BUDGET_H_
#define TALWEG_LIBS_AGGREGATION_MEMORY_BUDGET_H_

#include <cstdint>

#include "libs/base/check.h"
#include "libs/view/job_quota.h"

namespace talweg::aggregation {

// How many bytes the jobs of one aggregator may take for slots and results. One owner thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Returns false, and takes nothing, if less than `bytes` is left.
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

// How much a job, or all jobs of a tenant, have placed at one aggregator. The limit may change,
// even to less than is used. One owner thread.
class PlaceBudget {
 public:
  enum class Verdict : uint8_t { kFits, kTooManyBytes, kTooManyTensors };

  explicit PlaceBudget(const view::PlaceLimit& limit = {}) : limit_(limit) {}

  Verdict Judge(uint64_t bytes) const {
    if (used_tensors_ >= limit_.tensors_max) return Verdict::kTooManyTensors;
    const bool fits =
        used_bytes_ <= limit_.memory_bytes_max && bytes <= limit_.memory_bytes_max - used_bytes_;
    return fits ? Verdict::kFits : Verdict::kTooManyBytes;
  }
  void Take(uint64_t bytes, uint64_t tensors) {
    used_bytes_ += bytes;
    used_tensors_ += tensors;
  }
  void Give(uint64_t bytes, uint64_t tensors) {
    TALWEG_CHECK(bytes <= used_bytes_ && tensors <= used_tensors_);
    used_bytes_ -= bytes;
    used_tensors_ -= tensors;
  }

  void set_limit(const view::PlaceLimit& limit) { limit_ = limit; }
  const view::PlaceLimit& limit() const { return limit_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t used_tensors() const { return used_tensors_; }

 private:
  view::PlaceLimit limit_;
  uint64_t used_bytes_ = 0;
  uint64_t used_tensors_ = 0;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_MEMORY_BUDGET_H_
