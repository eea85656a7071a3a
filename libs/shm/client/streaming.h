// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_STREAMING_H_
#define TALWEG_LIBS_SHM_CLIENT_STREAMING_H_

#include <cstdint>

#include "libs/base/bytes.h"
#include "libs/shm/client/open_bytes.h"

namespace talweg::shm {

// Whether a rank's copies and sums go around the caches. Call Begin before all else. Any thread may
// call Streams; one thread at a time may call OpenRound or EndRound.
class Streaming {
 public:
  // `cache_bytes`: how much of the last-level cache the buffers of all `ranks` may take; 0: half of
  // what the machine says.
  void Begin(uint64_t cache_bytes, uint32_t ranks);

  // A round takes `bytes` of buffers and callers' memory, from its push to the end of its wait.
  void OpenRound(uint64_t bytes) { open_bytes_.Begin(bytes); }
  void EndRound(uint64_t bytes) { open_bytes_.End(bytes); }

  // Whether a copy or a sum of `bytes` goes around the caches. It does if the buffers of all ranks'
  // open rounds, with their callers' memory, do not fit into the cache: bytes that are written now
  // would be gone from it before they are read.
  bool Streams(uint64_t bytes) const {
    return bytes >= kStreamBytesMin && open_bytes_.AtOnce() * ranks_ > cache_bytes_;
  }

 private:
  // For fewer bytes a store around the caches costs more than it saves.
  static constexpr uint64_t kStreamBytesMin = 64 * kKiB;

  OpenBytes open_bytes_;
  uint64_t cache_bytes_ = 0;
  uint32_t ranks_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_STREAMING_H_
