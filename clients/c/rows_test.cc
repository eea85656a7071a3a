// SPDX-License-Identifier: Apache-2.0

// What talweg_add_rows refuses. libs/reduce tests its sums.

#include <array>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/talweg_exchange.h"

namespace {

using Catch::Matchers::Contains;

talweg_row_sum Sum(talweg_dtype dtype = TALWEG_F32, uint32_t divisor = 1) {
  return {sizeof(talweg_row_sum), 8, dtype, 1, divisor};
}

struct Out {
  std::array<int64_t, 8> numbers = {};
  std::array<float, 8> values = {};
  uint64_t count = 99;
};

talweg_status Add(const talweg_row_sum& sum, const std::vector<talweg_rows>& parts, Out& out) {
  return talweg_add_rows(&sum, parts.data(), static_cast<uint32_t>(parts.size()),
                         out.numbers.data(), out.values.data(), &out.count);
}

TEST_CASE("talweg_add_rows: it adds rows with the same number, and divides", "[talweg]") {
  const std::array<int64_t, 2> first = {3, 9}, second = {1, 9};
  const std::array<float, 2> a = {1, 2}, b = {4, 6};
  Out out;
  REQUIRE(Add(Sum(TALWEG_F32, 2),
              {{first.data(), a.data(), 2}, {nullptr, nullptr, 0}, {second.data(), b.data(), 2}},
              out) == TALWEG_OK);
  REQUIRE(out.count == 3);
  CHECK(out.numbers[0] == 1);
  CHECK(out.numbers[1] == 3);
  CHECK(out.numbers[2] == 9);
  CHECK(out.values[0] == 2);
  CHECK(out.values[1] == 0.5F);
  CHECK(out.values[2] == 4);
  REQUIRE(Add(Sum(), {}, out) == TALWEG_OK);
  CHECK(out.count == 0);
}

TEST_CASE("talweg_add_rows: it adds rows that a part has several times", "[talweg]") {
  const std::array<int64_t, 6> numbers = {3, 3, 3, 3, 3, 9};
  const std::array<float, 6> values = {1, 2, 4, 8, 16, 5};
  Out out;
  REQUIRE(Add(Sum(), {{numbers.data(), values.data(), 6}}, out) == TALWEG_OK);
  REQUIRE(out.count == 2);
  CHECK(out.numbers[0] == 3);
  CHECK(out.values[0] == 31);
  CHECK(out.numbers[1] == 9);
  CHECK(out.values[1] == 5);
}

TEST_CASE("talweg_add_rows: it refuses what makes no sense, and writes no count", "[talweg]") {
  const std::array<int64_t, 2> numbers = {3, 2};
  const std::array<float, 2> values = {1, 2};
  const talweg_rows rows = {numbers.data(), values.data(), 2};
  Out out;
  CHECK(Add(Sum(), {rows}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("do not ascend"));
  CHECK(out.count == 0);
  CHECK(Add(Sum(TALWEG_I32, 2), {rows}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK(Add(Sum(TALWEG_BOOL), {rows}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK(Add(Sum(static_cast<talweg_dtype>(99)), {rows}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK(Add(Sum(TALWEG_F32, 0), {rows}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("`divisor`"));
  talweg_row_sum odd = Sum();
  odd.number_bytes = 2;
  CHECK(Add(odd, {rows}, out) == TALWEG_INVALID_ARGUMENT);
  odd = Sum();
  odd.struct_bytes = 0;
  CHECK(Add(odd, {rows}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK(Add(Sum(), {{nullptr, values.data(), 1}}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("NULL"));
  const talweg_rows most = {numbers.data(), values.data(), ~uint64_t{0}};
  CHECK(Add(Sum(), {most, most}, out) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("64 bits"));
  CHECK(Add(Sum(), {most}, out) == TALWEG_OUT_OF_MEMORY);
}

}  // namespace
