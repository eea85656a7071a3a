// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_COMPARISON_H_
#define TALWEG_CLIENTS_JAX_COMPARISON_H_

// Compares in one round what ranks are about to call, before they call it.
//
// Each rank gives its words and their complements, and the round takes the maximum of each byte. So
// a rank learns each byte's maximum and minimum over all ranks. The round's length does not depend
// on how many ranks there are. If there are two different words, each rank can tell the other's.
//
//   0       words_bytes   words_bytes + 4    twice that
//   +-------+-------------+------------------+
//   | words | their digest| complement of it |
//   +-------+-------------+------------------+

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace talweg::jax {

// FNV-1a, 32 bits.
uint32_t WordsDigest(std::span<const unsigned char> words);

// Says how the ranks' calls differ; "" if they do not. `given`: this rank's part of the round.
// `maxima`: the round's result. Both have the same length.
std::string Differences(std::span<const unsigned char> given,
                        std::span<const unsigned char> maxima);

}  // namespace talweg::jax

#endif  // TALWEG_CLIENTS_JAX_COMPARISON_H_
