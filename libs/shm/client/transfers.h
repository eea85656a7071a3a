// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_TRANSFERS_H_
#define TALWEG_LIBS_SHM_CLIENT_TRANSFERS_H_

#include <cstdint>

#include "libs/base/collective.h"

namespace talweg::shm {

// What a push says of its round. A value.
struct PushedParts {
  const uint64_t* lengths = nullptr;  // Bytes of each part that the rank gives; null: all are full.
  RoundSignature signature = 0;
  const void* const* places = nullptr;  // Where each of them lies; null: one after another.
  // Where the caller's result has the part that this rank gives itself: it goes there at once.
  // null: it is taken with the others.
  void* own = nullptr;
};

// What a wait is for. A value.
struct Taking {
  void* out = nullptr;  // Where the parts go that the rank gets; null: they are not copied.
  uint64_t out_bytes = UINT64_MAX;  // The room there.
  uint64_t* lengths = nullptr;      // Where the lengths go of those parts; null: nowhere.
  // Where each of several parts goes, and the room there; null: one after another.
  void* const* places = nullptr;
  const uint64_t* rooms = nullptr;
  bool takes = true;  // Else a round that has a result stays open.
  // What a wait of this round has copied to `out`, before it timed out, is still there.
  bool again = false;

  bool NeedsLengths() const {
    return out != nullptr || out_bytes != UINT64_MAX || lengths != nullptr || places != nullptr;
  }
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_TRANSFERS_H_
