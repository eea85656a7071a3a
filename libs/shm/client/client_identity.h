// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CLIENT_IDENTITY_H_
#define TALWEG_LIBS_SHM_CLIENT_CLIENT_IDENTITY_H_

#include <cstdint>

#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// Who a rank is in its job. Written before the caller gets the client. A rank that follows a view
// (steps.h) gets other numbers then.
struct ClientIdentity {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t number = 0;  // The rank's number in declarations: `rank`, except for a standby.
  bool is_standby = false;
  uint32_t local_rank = 0;
  uint32_t local_size = 0;
  uint32_t node_rank = 0;
  uint32_t node_count = 0;
  char job_name[kJobNameBytesMax + 1] = "";
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CLIENT_IDENTITY_H_
