// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_SEGMENT_ERROR_H_
#define TALWEG_LIBS_SHM_CLIENT_SEGMENT_ERROR_H_

#include <cstdint>

namespace talweg::shm {

// Returns why `fd`, which the agent gives as a segment of `bytes`, cannot be mapped without a risk
// of SIGBUS; null if it can.
const char* SegmentError(int fd, uint64_t bytes);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_SEGMENT_ERROR_H_
