// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_OPEN_BYTES_H_
#define TALWEG_LIBS_SHM_CLIENT_OPEN_BYTES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace talweg::shm {

// How many bytes the open rounds of a rank take at once. That many pass through the caches between
// the writing of a byte and its reading.
//
// A burst is the time between two moments without an open round, such as a training step. The first
// rounds of a burst do not tell how large it becomes. Therefore the largest burst counts until as
// many bytes have gone in smaller ones. A single value that is pushed between two steps changes
// nothing.
class OpenBytes {
 public:
  void Begin(uint64_t bytes) {
    if (open_ == 0) EndBurst();
    open_ += bytes;
    burst_bytes_ += bytes;
    burst_peak_ = std::max(burst_peak_, open_);
    at_once_.store(std::max(burst_peak_, largest_), std::memory_order_relaxed);
  }
  void End(uint64_t bytes) { open_ -= bytes; }

  // Any thread may call AtOnce. One thread at a time may call Begin or End.
  uint64_t AtOnce() const { return at_once_.load(std::memory_order_relaxed); }

 private:
  void EndBurst() {
    since_ += burst_bytes_;
    since_peak_ = std::max(since_peak_, burst_peak_);
    if (burst_peak_ >= largest_ || since_ >= largest_) {
      largest_ = since_peak_;
      since_ = since_peak_ = 0;
    }
    burst_peak_ = burst_bytes_ = 0;
  }

  uint64_t open_ = 0;
  uint64_t burst_peak_ = 0;
  uint64_t burst_bytes_ = 0;
  uint64_t largest_ = 0;  // The largest peak of a burst before this one.
  uint64_t since_ = 0;    // Bytes of the bursts after that one, and the largest peak of these.
  uint64_t since_peak_ = 0;
  std::atomic<uint64_t> at_once_{0};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_OPEN_BYTES_H_
