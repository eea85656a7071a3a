// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/segment_error.h"

#include <fcntl.h>
#include <unistd.h>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

namespace talweg::shm {

const char* SegmentError(int fd, uint64_t bytes) {
  if (::lseek(fd, 0, SEEK_END) != static_cast<off_t>(bytes)) {
    return "a segment is not as long as the agent says";
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return "a segment is not sealed against shrinking";
  return nullptr;
}

}  // namespace talweg::shm
