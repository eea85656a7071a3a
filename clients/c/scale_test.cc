// SPDX-License-Identifier: Apache-2.0

// What talweg_scale refuses. libs/reduce tests its arithmetic.

#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/talweg.h"

namespace {

using Catch::Matchers::Contains;

TEST_CASE("talweg_scale: it multiplies into other memory and in place", "[talweg]") {
  const std::vector<float> in = {1, -2, 3};
  std::vector<float> out(3);
  REQUIRE(talweg_scale(TALWEG_F32, 0.5, in.data(), out.data(), 3) == TALWEG_OK);
  CHECK(out == std::vector<float>{0.5F, -1, 1.5F});
  std::vector<int32_t> numbers = {7, -7};
  REQUIRE(talweg_scale(TALWEG_I32, 0.5, numbers.data(), numbers.data(), 2) == TALWEG_OK);
  CHECK(numbers == std::vector<int32_t>{3, -3});
  CHECK(talweg_scale(TALWEG_F64, 2, nullptr, nullptr, 0) == TALWEG_OK);
}

TEST_CASE("talweg_scale: it refuses bools, dtypes that do not exist, and overlaps", "[talweg]") {
  std::vector<float> values(8, 1);
  for (const talweg_dtype dtype :
       {TALWEG_BOOL, static_cast<talweg_dtype>(15), static_cast<talweg_dtype>(256 + TALWEG_F32)}) {
    CHECK(talweg_scale(dtype, 2, values.data(), values.data(), 8) == TALWEG_INVALID_ARGUMENT);
    CHECK_THAT(talweg_last_error(), Contains("neither a float nor an integer"));
  }
  CHECK(talweg_scale(TALWEG_F32, 2, values.data(), values.data() + 3, 4) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("overlap"));
  CHECK(talweg_scale(TALWEG_F32, 2, values.data(), values.data(), UINT64_MAX) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_scale(TALWEG_F32, 2, nullptr, values.data(), 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(values == std::vector<float>(8, 1));
}

}  // namespace
