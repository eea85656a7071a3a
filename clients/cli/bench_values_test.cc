// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/bench_values.h"

#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::cli {
namespace {

using Catch::Matchers::Contains;

template <typename T>
T First(talweg_dtype dtype, uint64_t number) {
  std::vector<char> data(sizeof(T));
  FillWith(dtype, number, data);
  T value;
  std::memcpy(&value, data.data(), sizeof value);
  return value;
}

TEST_CASE("bench values: numbers are written in every dtype", "[cli]") {
  CHECK(First<float>(TALWEG_F32, 6) == 6.0f);
  CHECK(First<double>(TALWEG_F64, 6) == 6.0);
  CHECK(First<uint16_t>(TALWEG_F16, 0) == 0);
  CHECK(First<uint16_t>(TALWEG_F16, 1) == 0x3c00);
  CHECK(First<uint16_t>(TALWEG_F16, 3) == 0x4200);
  CHECK(First<uint16_t>(TALWEG_F16, 127) == 0x57f0);
  CHECK(First<uint16_t>(TALWEG_BF16, 1) == 0x3f80);
  CHECK(First<uint16_t>(TALWEG_BF16, 3) == 0x4040);
  CHECK(First<int8_t>(TALWEG_I8, 127) == 127);
  CHECK(First<uint8_t>(TALWEG_U8, 10) == 10);
  CHECK(First<int32_t>(TALWEG_I32, 10) == 10);
  CHECK(First<int64_t>(TALWEG_I64, 10) == 10);
}

TEST_CASE("bench values: a wrong element is found at either end and in the middle", "[cli]") {
  for (const talweg_dtype dtype : {TALWEG_F32, TALWEG_F16, TALWEG_I8, TALWEG_I64}) {
    std::vector<char> data(8 * 101);
    FillWith(dtype, 3, data);
    CHECK(CheckHolds(dtype, 3, data).ok());
    CHECK(CheckHolds(dtype, 4, data).code() == absl::StatusCode::kDataLoss);
    for (const size_t at : {size_t{0}, data.size() / 2, data.size() - 1}) {
      std::vector<char> wrong = data;
      wrong[at] ^= 1;
      CHECK_FALSE(CheckHolds(dtype, 3, wrong).ok());
    }
  }
  CHECK(CheckHolds(TALWEG_I8, 128, std::vector<char>(4)).ok());
}

TEST_CASE("bench values: what travels rounded may be off by a little", "[cli]") {
  std::vector<char> data(4 * 101);
  FillWith(TALWEG_F32, 100, data);
  CHECK_FALSE(CheckHolds(TALWEG_F32, 99, data).ok());
  setenv("TALWEG_ENCODING", "int8", 1);
  CHECK(CheckHolds(TALWEG_F32, 99, data).ok());
  CHECK_FALSE(CheckHolds(TALWEG_F32, 96, data).ok());
  FillWith(TALWEG_I32, 100, data);
  CHECK_FALSE(CheckHolds(TALWEG_I32, 99, data).ok());
  unsetenv("TALWEG_ENCODING");
}

TEST_CASE("bench values: every dtype has a name", "[cli]") {
  CHECK(ParseDType("bf16").value() == TALWEG_BF16);
  CHECK(ParseDType("i64").value() == TALWEG_I64);
  CHECK_THAT(std::string(ParseDType("float").status().message()),
             Contains("'float'") && Contains("f32, f64, f16, bf16"));
}

}  // namespace
}  // namespace talweg::cli
