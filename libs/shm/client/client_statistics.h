// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CLIENT_STATISTICS_H_
#define TALWEG_LIBS_SHM_CLIENT_CLIENT_STATISTICS_H_

#include <atomic>
#include <cstdint>

namespace talweg::shm {

// The numbers that talweg_get_statistics returns. Any thread counts.
struct ClientStatistics {
  std::atomic<uint64_t> tensors{0};
  std::atomic<uint64_t> pushes{0};
  std::atomic<uint64_t> bytes_pushed{0};
  std::atomic<uint64_t> bytes_copied{0};
  std::atomic<uint64_t> waits{0};
  std::atomic<uint64_t> waits_slept{0};
  std::atomic<uint64_t> wait_ns{0};
  std::atomic<uint64_t> ring_full{0};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CLIENT_STATISTICS_H_
