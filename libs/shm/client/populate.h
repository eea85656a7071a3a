// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_POPULATE_H_
#define TALWEG_LIBS_SHM_CLIENT_POPULATE_H_

#include "libs/shm/client/rank_tensor.h"

namespace talweg::shm {

// Has the kernel back the pages of a tensor's buffers, once. Any thread. Returns false if there is
// no memory for this rank's contributions; errno says why, and the next call tries again.
bool Populate(RankTensor& tensor);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_POPULATE_H_
