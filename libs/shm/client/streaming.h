// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_STREAMING_H_
#define TALWEG_LIBS_SHM_CLIENT_STREAMING_H_

#include <cstdint>

#include "libs/base/bytes.h"
#include "libs/shm/client/open_bytes.h"

namespace talweg::shm {

// Whether a rank's copies and sums go around the caches. Begin comes before all else; Streams may
// be called by any thread, OpenRound and EndRound by one at a time.
class Streaming {
 public:
  // `cache_bytes`: what of the last cache the buffers of all `ranks` may take; 0: half of what the
  // machine says.
  void Begin(uint64_t cache_bytes, uint32_t ranks);

  // A round takes `bytes` from its push to the end of its wait: buffers, and callers' memory.
  void OpenRound(uint64_t bytes) { open_bytes_.Begin(bytes); }
  void EndRound(uint64_t bytes) { open_bytes_.End(bytes); }

  // Whether a copy or a sum of `bytes` goes around the caches: the ranks' buffers of the rounds
  // that are open at once, and their callers', do not fit there, so that what is written now is
  // gone before it is read.
  bool Streams(uint64_t bytes) const {
    return bytes >= kStreamBytesMin && open_bytes_.AtOnce() * ranks_ > cache_bytes_;
  }

 private:
  // A store around the caches costs more than it spares where so little is written.
  static constexpr uint64_t kStreamBytesMin = 64 * kKiB;

  OpenBytes open_bytes_;
  uint64_t cache_bytes_ = 0;
  uint32_t ranks_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_STREAMING_H_
