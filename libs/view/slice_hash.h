// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_SLICE_HASH_H_
#define TALWEG_LIBS_VIEW_SLICE_HASH_H_

#include <cstdint>
#include <span>

#include "libs/base/dealing.h"
#include "libs/base/ids.h"

namespace talweg::view {

// The key that a hash deals by: the tensor's number, and the slice's place in the tensor. The
// number is the low half of the tensor's key, because processes agree on names and not on numbers.
uint64_t SliceKey(TensorKey tensor, uint64_t slice);

// A dealing's hash of a slice's key; 0 for kStriped.
uint64_t HashOf(const Dealing& dealing, uint64_t slice_key);

// Returns which of several owners, by its place, gets the slice. `weights` has one weight for each
// owner; it is not empty, and no weight is 0.
size_t OwnerOf(const Dealing& dealing, uint64_t slice_key, std::span<const uint32_t> weights);

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_SLICE_HASH_H_
