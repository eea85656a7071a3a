// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ARRIVING_RESULT_H_
#define TALWEG_LIBS_SHM_CLIENT_ARRIVING_RESULT_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/layout/arrivals.h"

namespace talweg::shm {

// One round's result, copied while it comes (docs/shared_memory.md, "Taking what has come"): by the
// time its last bytes are there the others are where they belong. One thread's, for one wait.
class ArrivingResult {
 public:
  // Nothing is told, so nothing is copied early.
  ArrivingResult() = default;
  // `line` and what follows it is of a tensor of `bytes`; the round's result lies at `result` and
  // goes to `out`, which must not be where it was contributed from.
  ArrivingResult(const std::byte* line, uint64_t bytes, uint64_t round, const std::byte* result,
                 std::byte* out, bool streaming);

  // What has been copied where.
  struct Copied {
    uint64_t round = 0;
    const std::byte* out = nullptr;
    uint64_t arrivals = 0;
    uint64_t bytes = 0;
  };
  Copied copied() const { return {round_, out_, copied_, copied_bytes_}; }
  // Goes on from there, if it is of this round and buffer.
  void GoOnBehind(const Copied& copied);

  // How many bytes must have come before it is worth looking again; 0: all.
  uint64_t awaited_bytes() const { return awaited_bytes_; }
  // Whether they have.
  bool Ready() const {
    return awaited_bytes_ != 0 && line_->round.load(std::memory_order_acquire) == round_ &&
           line_->bytes.load(std::memory_order_seq_cst) >= awaited_bytes_;
  }
  // Copies what has come since, kCopyBytesMax and an arrival of it at most: then it is time to look
  // at what else may have happened.
  static constexpr uint64_t kCopyBytesMax = 4 * kMiB;
  void CopyNew();
  // When the round is complete: copies the rest. False: what has come is not exactly the whole, so
  // that something came twice and may have been copied too early; copy the result.
  bool Finish();
  // Since it was made.
  uint64_t bytes_copied() const { return bytes_copied_; }

 private:
  void AwaitMore();
  void CopyUpTo(uint64_t bytes_max);
  // Arrivals that there are by now; none when the log is another round's.
  uint64_t Arrivals() const;
  // How long they are together, of which copied_bytes_ are copied.
  uint64_t ToldBytes() const;

  const ArrivalsLine* line_ = nullptr;
  const Arrival* arrivals_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t round_ = 0;
  const std::byte* result_ = nullptr;
  std::byte* out_ = nullptr;
  bool streaming_ = false;
  uint64_t copied_ = 0;  // Arrivals.
  uint64_t copied_bytes_ = 0;
  uint64_t awaited_bytes_ = 0;
  uint64_t bytes_copied_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ARRIVING_RESULT_H_
