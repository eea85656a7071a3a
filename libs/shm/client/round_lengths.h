// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ROUND_LENGTHS_H_
#define TALWEG_LIBS_SHM_CLIENT_ROUND_LENGTHS_H_

#include <algorithm>
#include <cstdint>

#include "libs/shm/layout/parts.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {

// How long the parts of one round are. The tables with the lengths are borrowed. Others may write
// them at any time, so each length is read once and checked.
class RoundLengths {
 public:
  RoundLengths() = default;
  // All parts are full.
  explicit RoundLengths(const BufferShape& shape) : shape_(shape) {}
  // One table has the lengths of all parts.
  RoundLengths(const BufferShape& shape, const uint32_t* table) : shape_(shape) {
    std::fill(tables_, tables_ + kSummingRanksMax, table);
  }
  // Each part's length is in the table of the rank that gives it.
  RoundLengths(const BufferShape& shape, Share gives, uint32_t rank_count, uint32_t root)
      : shape_(shape), gives_(gives), rank_count_(rank_count), root_(root) {}
  // null: all that `rank` gives is full.
  void SetTable(uint32_t rank, const uint32_t* table) { tables_[rank] = table; }

  // Returns false if it is not a length that a part can have.
  bool Get(uint32_t part, uint64_t* bytes) const {
    const uint32_t* table =
        tables_[rank_count_ == 0 ? 0 : GiverOf(gives_, part, rank_count_, root_)];
    *bytes =
        table == nullptr ? shape_.part_bytes : static_cast<const volatile uint32_t&>(table[part]);
    return shape_.IsLength(*bytes);
  }

 private:
  BufferShape shape_;
  Share gives_ = Share::kUnspecified;
  uint32_t rank_count_ = 0;  // 0: the first table has all lengths.
  uint32_t root_ = 0;
  const uint32_t* tables_[kSummingRanksMax] = {};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ROUND_LENGTHS_H_
