// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/comparison.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::jax {
namespace {

using Bytes = std::vector<unsigned char>;

// Returns what a rank gives that is about to make that call.
Bytes Said(const std::string& call) {
  Bytes said(60);
  std::copy(call.begin(), call.end(), said.begin());
  const uint32_t digest = WordsDigest(said);
  said.resize(said.size() + sizeof(digest));
  std::memcpy(said.data() + said.size() - sizeof(digest), &digest, sizeof(digest));
  const size_t half = said.size();
  for (size_t at = 0; at < half; ++at) said.push_back(static_cast<unsigned char>(~said[at]));
  return said;
}

Bytes MaximaOf(const std::vector<Bytes>& given) {
  Bytes maxima = given.front();
  for (const Bytes& each : given) {
    for (size_t at = 0; at < maxima.size(); ++at) maxima[at] = std::max(maxima[at], each[at]);
  }
  return maxima;
}

}  // namespace

TEST_CASE("WordsDigest: it is the digest that Python computes", "[jax]") {
  const std::string text = "foobar";
  CHECK(WordsDigest(Bytes(text.begin(), text.end())) == 0xbf9cf968);
}

TEST_CASE("Differences: there are none where all ranks say the same", "[jax]") {
  const Bytes said = Said("all_reduce sum of float32[3]");
  CHECK(Differences(said, MaximaOf({said, said, said})).empty());
}

TEST_CASE("Differences: each side learns what the other calls", "[jax]") {
  const Bytes one = Said("all_reduce sum of float32[3]");
  const Bytes other = Said("all_gather root 0 of int8[rows]");
  const Bytes maxima = MaximaOf({one, other, one, other});
  CHECK(Differences(one, maxima) ==
        "calls without a name differ: this rank calls all_reduce sum of float32[3], another "
        "all_gather root 0 of int8[rows]: have all ranks make the same calls in the same order, or "
        "give each call a name");
  CHECK(Differences(other, maxima)
            .find("this rank calls all_gather root 0 of int8[rows], another "
                  "all_reduce sum of float32[3]:") != std::string::npos);
}

TEST_CASE("Differences: with three kinds of calls, no text is made up", "[jax]") {
  const std::vector<Bytes> said{Said("all_reduce sum of float32[3]"),
                                Said("broadcast root 0 of float32[4]"),
                                Said("broadcast root 1 of float16[5]")};
  const Bytes maxima = MaximaOf(said);
  for (const Bytes& each : said) {
    CHECK(Differences(each, maxima).find("others several other things") != std::string::npos);
  }
}

TEST_CASE("Differences: another last letter, or a longer text, is a difference", "[jax]") {
  const Bytes maxima = MaximaOf({Said("f32[3]"), Said("f32[33]")});
  CHECK(Differences(Said("f32[3]"), maxima).find("f32[3], another f32[33]:") != std::string::npos);
  CHECK(Differences(Said("f32[33]"), maxima).find("f32[33], another f32[3]:") != std::string::npos);
}

}  // namespace talweg::jax
