// SPDX-License-Identifier: Apache-2.0

// What talweg_compress takes and refuses. libs/compress tests the compressors.

#include <array>
#include <limits>

#include <catch2/catch.hpp>

#include "clients/c/talweg_exchange.h"

namespace {

using Catch::Matchers::Contains;

talweg_compression Compression(talweg_compressor compressor, double k = 1) {
  talweg_compression compression = {};
  compression.struct_bytes = sizeof(compression);
  compression.compressor = compressor;
  compression.k = k;
  compression.error_scale = 1;
  return compression;
}

TEST_CASE("talweg_compress: it compresses in place, and remembers what it took away", "[talweg]") {
  const talweg_compression c = Compression(TALWEG_TOP_K);
  std::array<float, 3> values = {1, -3, 2}, error = {0, 0, 5};
  REQUIRE(talweg_compress(&c, values.data(), error.data(), nullptr, 3) == TALWEG_OK);
  CHECK(values == std::array<float, 3>{0, 0, 7});
  CHECK(error == std::array<float, 3>{1, -3, 0});
  REQUIRE(talweg_compress(&c, nullptr, nullptr, nullptr, 0) == TALWEG_OK);
}

TEST_CASE("talweg_compress: flags and factors arrive where they belong", "[talweg]") {
  talweg_compression c = Compression(TALWEG_ONE_BIT);
  std::array<float, 2> values = {1, -5};
  REQUIRE(talweg_compress(&c, values.data(), nullptr, nullptr, 2) == TALWEG_OK);
  CHECK(values == std::array<float, 2>{1, -1});
  c.flags = TALWEG_COMPRESS_SCALING;
  c.error_scale = 0.5F;
  c.mu = 0.5F;
  values = {1, -5};
  std::array<float, 2> error = {2, 0}, momentum = {4, 0};
  REQUIRE(talweg_compress(&c, values.data(), error.data(), momentum.data(), 2) == TALWEG_OK);
  CHECK(momentum == std::array<float, 2>{3, -5});
  CHECK(values == std::array<float, 2>{5.5F, -5.5F});  // The mean of 1 + 1.5 + 1, and 5 + 2.5.
  CHECK(error == std::array<float, 2>{-2, -2});
  c = Compression(TALWEG_DITHERING, 2);
  c.flags = TALWEG_COMPRESS_NATURAL | TALWEG_COMPRESS_L2;
  values = {3, -4};  // Levels 0, 2.5 and 5.
  REQUIRE(talweg_compress(&c, values.data(), nullptr, nullptr, 2) == TALWEG_OK);
  CHECK((values[0] == 2.5F || values[0] == 5));
  CHECK((values[1] == -2.5F || values[1] == -5));
  c = Compression(TALWEG_TOP_K);
  c.partition = 1;
  values = {3, -4};
  REQUIRE(talweg_compress(&c, values.data(), nullptr, nullptr, 2) == TALWEG_OK);
  CHECK(values == std::array<float, 2>{3, -4});
}

TEST_CASE("talweg_compress: it refuses what it does not know", "[talweg]") {
  std::array<float, 1> values = {1};
  const auto run = [&](const talweg_compression& c) {
    return talweg_compress(&c, values.data(), nullptr, nullptr, 1);
  };
  CHECK(talweg_compress(nullptr, values.data(), nullptr, nullptr, 1) == TALWEG_INVALID_ARGUMENT);
  talweg_compression c = Compression(TALWEG_TOP_K);
  c.struct_bytes = 8;
  CHECK(run(c) == TALWEG_INVALID_ARGUMENT);
  for (const int number : {0, 5, 257}) {
    CHECK(run(Compression(static_cast<talweg_compressor>(number))) == TALWEG_INVALID_ARGUMENT);
    CHECK_THAT(talweg_last_error(), Contains("no such compressor"));
  }
  CHECK(run(Compression(TALWEG_RANDOM_K, 0)) == TALWEG_INVALID_ARGUMENT);
  CHECK(run(Compression(TALWEG_DITHERING, 128)) == TALWEG_INVALID_ARGUMENT);
  c = Compression(TALWEG_TOP_K);
  c.error_scale = std::numeric_limits<float>::infinity();
  CHECK(run(c) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("error_scale"));
  c = Compression(TALWEG_TOP_K);
  CHECK(talweg_compress(&c, nullptr, nullptr, nullptr, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(values[0] == 1);
}

}  // namespace
