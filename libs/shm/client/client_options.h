// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CLIENT_OPTIONS_H_
#define TALWEG_LIBS_SHM_CLIENT_CLIENT_OPTIONS_H_

#include <cstdint>
#include <string_view>

#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// How a rank connects. A value; the texts are borrowed.
struct ClientOptions {
  const char* socket_path = nullptr;
  uint32_t wanted_local_rank = kAnyLocalRank;
  int64_t timeout_ns = 0;
  int64_t agent_wait_ns = 0;
  int64_t spin_ns = -1;  // Negative: chosen by the number of CPUs.
  // How much of the last-level cache the buffers of all ranks may take; 0: half of what the machine
  // says.
  uint64_t cache_bytes = 0;
  std::string_view client_name;
  bool standby = false;  // kHelloStandby.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CLIENT_OPTIONS_H_
