// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/comparison.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace talweg::jax {
namespace {

constexpr size_t kDigestBytes = sizeof(uint32_t);
constexpr char kRemedy[] =
    ": have all ranks make the same calls in the same order, or give each call a name";

// Words are padded with zeros.
std::string TextOf(std::span<const unsigned char> words) {
  const auto* const text = reinterpret_cast<const char*>(words.data());
  return {text, strnlen(text, words.size())};
}

}  // namespace

uint32_t WordsDigest(std::span<const unsigned char> words) {
  uint32_t digest = 2166136261;
  for (const unsigned char each : words) {
    digest = (digest ^ each) * 16777619;
  }
  return digest;
}

std::string Differences(std::span<const unsigned char> given,
                        std::span<const unsigned char> maxima) {
  const size_t half = given.size() / 2;
  if (half <= kDigestBytes || maxima.size() != given.size()) {
    return "";
  }
  bool differ = false;
  // What the other ranks have given, if all that differ from this rank have given the same.
  std::vector<unsigned char> theirs(half);
  for (size_t at = 0; at < half; ++at) {
    const unsigned char most = maxima[at];
    const auto least = static_cast<unsigned char>(~maxima[half + at]);
    differ = differ || most != least;
    theirs[at] = given[at] == most ? least : most;
  }
  if (!differ) {
    return "";
  }
  const size_t words_bytes = half - kDigestBytes;
  const auto words = std::span(theirs).first(words_bytes);
  const uint32_t digest = WordsDigest(words);
  const bool told = std::memcmp(&digest, theirs.data() + words_bytes, kDigestBytes) == 0;
  return "calls without a name differ: this rank calls " + TextOf(given.first(words_bytes)) +
         (told ? ", another " + TextOf(words) : ", others several other things") + kRemedy;
}

}  // namespace talweg::jax
