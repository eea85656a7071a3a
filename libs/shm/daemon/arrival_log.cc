// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/arrival_log.h"

#include <atomic>

namespace talweg::shm {

ArrivalLog::ArrivalLog(std::span<std::byte> memory) {
  if (memory.size() < sizeof(ArrivalsLine)) return;
  line_ = reinterpret_cast<ArrivalsLine*>(memory.data());
  arrivals_ = {reinterpret_cast<Arrival*>(memory.data() + sizeof(ArrivalsLine)),
               (memory.size() - sizeof(ArrivalsLine)) / sizeof(Arrival)};
}

void ArrivalLog::Begin(Round round) {
  round_ = round;
  count_ = bytes_ = 0;
  if (line_ == nullptr) return;
  // A rank that sees the round's number sees nothing of the round before.
  line_->bytes.store(0, std::memory_order_relaxed);
  line_->count.store(0, std::memory_order_relaxed);
  line_->round.store(round.value(), std::memory_order_release);
}

uint64_t ArrivalLog::Add(Round round, uint64_t offset_bytes, uint64_t length_bytes) {
  if (line_ == nullptr) return 0;
  if (round_ != round) Begin(round);
  if (count_ == arrivals_.size()) return bytes_;
  Arrival& arrival = arrivals_[count_];
  arrival.offset_bytes.store(offset_bytes, std::memory_order_relaxed);
  arrival.length_bytes.store(length_bytes, std::memory_order_relaxed);
  bytes_ += length_bytes;
  line_->count.store(++count_, std::memory_order_release);
  // Sequentially consistent, as the later look at whether a rank sleeps for these bytes.
  line_->bytes.store(bytes_, std::memory_order_seq_cst);
  return bytes_;
}

}  // namespace talweg::shm
