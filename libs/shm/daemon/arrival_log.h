// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_ARRIVAL_LOG_H_
#define TALWEG_LIBS_SHM_DAEMON_ARRIVAL_LOG_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/base/ids.h"
#include "libs/shm/layout/arrivals.h"

namespace talweg::shm {

// The agent's side of libs/shm/layout/arrivals.h: tells ranks which bytes of a round's result have
// arrived. One owner thread. It writes the memory that ranks see, and never reads it back.
class ArrivalLog {
 public:
  ArrivalLog() = default;
  // `memory` outlives this: ArrivalsBytes of the tensor, aligned to 64, zeroed. If it is empty,
  // nothing is told.
  explicit ArrivalLog(std::span<std::byte> memory);

  bool valid() const { return line_ != nullptr; }

  // These bytes of the round's result have arrived, perhaps not for the first time. Returns how
  // many bytes have been told of in this round.
  uint64_t Add(Round round, uint64_t offset_bytes, uint64_t length_bytes);

 private:
  void Begin(Round round);

  ArrivalsLine* line_ = nullptr;
  std::span<Arrival> arrivals_;
  Round round_;
  uint64_t count_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_ARRIVAL_LOG_H_
