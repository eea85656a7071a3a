// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/layout/parts.h"

#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {
namespace {

std::vector<uint32_t> List(const Parts& parts) {
  std::vector<uint32_t> list;
  for (uint32_t i = 0; i < parts.count; ++i) list.push_back(parts[i]);
  return list;
}

TEST_CASE("A rank's parts are those that the collective says, in ascending order") {
  for (const CollectiveRow& row : kCollectives) {
    const Collective collective = {.dtype = DType::kF32, .gives = row.gives, .gets = row.gets};
    for (uint32_t ranks = 1; ranks <= 5; ++ranks) {
      const uint32_t root = ranks / 2;
      const uint32_t parts = collective.part_count(ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        CAPTURE(row.name, ranks, rank);
        std::vector<uint32_t> given;
        std::vector<uint32_t> got;
        for (uint32_t part = 0; part < parts; ++part) {
          if (collective.Gives(part, rank, ranks, root)) given.push_back(part);
          if (collective.Gets(part, rank, ranks, root)) got.push_back(part);
        }
        CHECK(List(Parts::Of(row.gives, rank, ranks, root, parts)) == given);
        CHECK(List(Parts::Of(row.gets, rank, ranks, root, parts)) == got);
        for (const uint32_t part : given) {
          if (collective.copies()) CHECK(GiverOf(row.gives, part, ranks, root) == rank);
        }
      }
    }
  }
}

TEST_CASE("A buffer's table lies after its parts, on a cache line of its own") {
  const Collective gather = {DType::kF32, Op::kCopy, Share::kOwn, Share::kWhole, 5};
  const BufferShape shape = BufferShape::Of(gather, 3);
  CHECK(shape.part_count == 3);
  CHECK(shape.part_offset(2) == 128);
  CHECK(shape.data_bytes == gather.bytes(3));
  CHECK(shape.table_offset() == 192);
  CHECK(shape.total_bytes() == 192 + 3 * 4);
  CHECK(shape.IsLength(20));
  CHECK(shape.IsLength(0));
  CHECK_FALSE(shape.IsLength(24));
  CHECK_FALSE(shape.IsLength(18));
  const BufferShape single = BufferShape::Of(Collective::Of(DType::kU8, Op::kSum, 65), 3);
  CHECK(single.data_bytes == 65);
  CHECK(single.table_offset() == 128);
  const BufferShape empty = BufferShape::Of(Collective::Of(DType::kU8, Op::kSum, 0), 3);
  CHECK(empty.data_bytes == 0);
  CHECK(empty.total_bytes() == 4);
}

TEST_CASE("A shape that is too large for a buffer does not fit, and overflows nothing") {
  const auto fits = [](Share gives, Share gets, uint64_t count, uint32_t ranks) {
    return BufferShape::Fits({DType::kF32, Op::kCopy, gives, gets, count}, ranks);
  };
  constexpr uint64_t kMost = kTensorBytesMax / sizeof(float);
  CHECK(fits(Share::kRoot, Share::kWhole, kMost, 100'000));
  CHECK_FALSE(fits(Share::kRoot, Share::kWhole, kMost + 1, 1));
  CHECK_FALSE(fits(Share::kRoot, Share::kWhole, UINT64_MAX, 1));
  CHECK(fits(Share::kOwn, Share::kWhole, kMost / 4 - 16, 4));
  CHECK_FALSE(fits(Share::kOwn, Share::kWhole, kMost / 4, 5));
  CHECK(fits(Share::kRow, Share::kColumn, 1, 10'000));
  CHECK_FALSE(fits(Share::kRow, Share::kColumn, 1, 65'536));
  CHECK_FALSE(fits(Share::kRow, Share::kColumn, 1'000'000, 10'000));
  CHECK_FALSE(fits(Share::kOwn, Share::kWhole, 1, 0));
  CHECK_FALSE(BufferShape::Fits({.element_count = 1}, 1));  // There is no dtype.
  CHECK(BufferShape::Of(Collective::Of(DType::kF32, Op::kSum, 1 << 20), 1).has_lengths());
  CHECK_FALSE(BufferShape::Of(Collective::Of(DType::kF32, Op::kSum, 1 << 30), 1).has_lengths());
}

TEST_CASE("Where ranks sum, older versions find everything at its old place") {
  const BufferShape shape = BufferShape::Of(Collective::Of(DType::kU8, Op::kSum, 3'000'000), 3);
  const bool in_place = GENERATE(false, true);
  const RankSumShape now = RankSumShape::Of(shape, 3, in_place);
  const RankSumShape before = RankSumShape::Of(shape, 3, in_place, kCollectivesMinor - 1);
  CHECK(now.buffer_offset(1) == before.buffer_offset(1));
  CHECK(now.line_offset() == before.line_offset());
  CHECK(now.share_bytes == before.share_bytes);
  CHECK(now.sums_offset() == before.sums_offset());
  CHECK(now.pushed_offset() == before.pushed_offset());
  CHECK(now.table_offset(1) >= before.pushed_offset() + sizeof(PushedLine));
  CHECK(now.table_offset(1) + shape.table_bytes() <= now.bytes());
  CHECK(now.table_offset(3) == now.table_offset(1));
  CHECK(now.table_offset(0) + shape.table_bytes() <= now.table_offset(1));
}

TEST_CASE("Where ranks sum, a buffer has room for the parts that its rank gives") {
  constexpr uint32_t kRanks = 3;
  const auto shape_of = [](Share gives, Share gets, uint16_t minor) {
    const Op op = gives == Share::kWhole ? Op::kSum : Op::kCopy;
    const BufferShape buffer = BufferShape::Of({DType::kU8, op, gives, gets, 100}, kRanks);
    return RankSumShape::Of(buffer, kRanks, false, minor);
  };
  struct Row {
    Share gives;
    Share gets;
    uint32_t held;
  };
  for (const Row& row : {Row{Share::kOwn, Share::kWhole, 1}, Row{Share::kOwn, Share::kRoot, 1},
                         Row{Share::kRow, Share::kColumn, 3}, Row{Share::kRoot, Share::kOwn, 3},
                         Row{Share::kRoot, Share::kWhole, 1}, Row{Share::kWhole, Share::kOwn, 3},
                         Row{Share::kWhole, Share::kWhole, 1}}) {
    const RankSumShape now = shape_of(row.gives, row.gets, kOwnPartsMinor);
    const RankSumShape before = shape_of(row.gives, row.gets, kOwnPartsMinor - 1);
    CHECK(now.parts_held == row.held);
    CHECK(before.parts_held == now.buffer.part_count);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const Parts parts = Parts::Of(row.gives, rank, kRanks, 0, now.buffer.part_count);
      for (uint32_t i = 0; i < parts.count; ++i) {
        CHECK(before.part_offset(parts[i], rank) == parts[i] * 128);
        CHECK(now.part_offset(parts[i], rank) == i * 128);
        CHECK(now.part_offset(parts[i], rank) + 100 <= now.stride);
      }
    }
    CHECK(now.stride <= before.stride);
    CHECK(now.table_offset(1) + now.buffer.table_bytes() <= now.bytes());
  }
}

}  // namespace
}  // namespace talweg::shm
