// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_PLACE_H_
#define TALWEG_LIBS_GPU_FAKE_PLACE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "libs/gpu/fake/world.h"

namespace talweg::gpu::fake {

// Bytes of a piece of memory that work reads or writes.
struct Place {
  std::shared_ptr<Memory> memory;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  std::byte* data() const { return memory->data + offset; }
};

// Writes poison, so that a read of bytes that are being written is noticed.
inline void Poison(const Place& place) {
  std::memset(place.data(), static_cast<int>(kPoison), place.bytes);
}

struct Access {
  Place place;
  AccessKind kind;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_PLACE_H_
