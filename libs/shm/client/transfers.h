// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_TRANSFERS_H_
#define TALWEG_LIBS_SHM_CLIENT_TRANSFERS_H_

#include <cstdint>

#include "libs/base/collective.h"

namespace talweg::shm {

// What a push says about its round. A value.
struct PushedParts {
  const uint64_t* lengths = nullptr;  // Bytes of each part that the rank gives; null: all are full.
  RoundSignature signature = 0;
  const void* const* places = nullptr;  // Where each part lies; null: one after another.
  // Where the caller's result has the part that this rank gives to itself: it is copied there at
  // once. null: it is taken with the others.
  void* own = nullptr;
};

// What a wait wants. A value.
struct Taking {
  void* out = nullptr;  // Where the parts that the rank gets go; null: they are not copied.
  uint64_t out_bytes = UINT64_MAX;  // The room there.
  uint64_t* lengths = nullptr;      // Where the lengths of those parts go; null: nowhere.
  // Where each of several parts goes, and the room there; null: one after another.
  void* const* places = nullptr;
  const uint64_t* rooms = nullptr;
  bool takes = true;  // Otherwise a round that has a result stays open.
  // `out` still has what an earlier wait for this round copied before it timed out.
  bool again = false;

  bool NeedsLengths() const {
    return out != nullptr || out_bytes != UINT64_MAX || lengths != nullptr || places != nullptr;
  }
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_TRANSFERS_H_
