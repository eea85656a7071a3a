// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "clients/c/talweg.h"

namespace {

uint64_t DigestOf(const std::string& content, uint64_t seed) {
  return talweg_digest(content.data(), content.size(), seed);
}

TEST_CASE("talweg_digest: a flipped bit, another seed or longer content gives another digest",
          "[talweg]") {
  for (const size_t size : {1, 8, 63, 64, 65, 300, 3000}) {
    CAPTURE(size);
    std::string content(size, 'x');
    std::set<uint64_t> seen{DigestOf(content, 7), DigestOf(content, 8),
                            DigestOf(content + std::string(1, '\0'), 7)};
    CHECK(seen.size() == 3);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      content[bit / 8] ^= static_cast<char>(1 << bit % 8);
      CHECK(seen.insert(DigestOf(content, 7)).second);
      content[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
    CHECK(seen.contains(DigestOf(content, 7)));
  }
}

TEST_CASE("talweg_digest: the order of pieces counts, and nothing may be empty", "[talweg]") {
  CHECK(DigestOf("one", DigestOf("other", 0)) != DigestOf("other", DigestOf("one", 0)));
  CHECK(talweg_digest(nullptr, 0, 1) == DigestOf("", 1));
}

// Ranks with different versions of the library may be in one job.
TEST_CASE("talweg_digest: it is XXH3 with 64 bits", "[talweg]") {
  CHECK(DigestOf("", 0) == 0x2d06800538d394c2u);
  CHECK(DigestOf(std::string(1000, 'x'), 1) == 0x91720b7c9dd4e0d1u);
}

}  // namespace
