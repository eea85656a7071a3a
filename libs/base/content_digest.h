// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_CONTENT_DIGEST_H_
#define TALWEG_LIBS_BASE_CONTENT_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace talweg {

// A 64-bit digest of bytes, as fast as memory is read; the same on every machine and in every
// process. It tells whether copies that should be equal are: it resists no adversary.
//
// `seed` may be the digest of what comes before, so that several pieces give one digest.
//
// Words of 64 bits go by turns into eight lanes. What a lane does with a word is a bijection of the
// lane for every word, and of the word for every lane; so is how the lanes make the digest. So
// contents of one length that differ in one word alone never have one digest. Others do with a
// probability of about 2^-64.
uint64_t ContentDigest(std::span<const std::byte> content, uint64_t seed);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_CONTENT_DIGEST_H_
