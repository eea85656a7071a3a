// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ARRIVING_RESULT_H_
#define TALWEG_LIBS_SHM_CLIENT_ARRIVING_RESULT_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/layout/arrivals.h"

namespace talweg::shm {

// Copies one round's result while it arrives (docs/shared_memory.md, "Taking what has come"). When
// the last bytes arrive, the others have been copied already. One thread uses it, for one wait.
class ArrivingResult {
 public:
  // Copies nothing early, because nothing is told.
  ArrivingResult() = default;
  // `line` and the arrivals after it belong to a tensor of `bytes`. The round's result lies at
  // `result` and is copied to `out`, which must not be where it was contributed from.
  ArrivingResult(const std::byte* line, uint64_t bytes, uint64_t round, const std::byte* result,
                 std::byte* out, bool streaming);

  // How much has been copied, and where to.
  struct Copied {
    uint64_t round = 0;
    const std::byte* out = nullptr;
    uint64_t arrivals = 0;
    uint64_t bytes = 0;
  };
  Copied copied() const { return {round_, out_, copied_, copied_bytes_}; }
  // Goes on after `copied`, if that is of this round and buffer.
  void GoOnBehind(const Copied& copied);

  // How many bytes must have arrived before CopyNew is worth a call; 0: all.
  uint64_t awaited_bytes() const { return awaited_bytes_; }
  // Whether that many have arrived.
  bool Ready() const {
    return awaited_bytes_ != 0 && line_->round.load(std::memory_order_acquire) == round_ &&
           line_->bytes.load(std::memory_order_seq_cst) >= awaited_bytes_;
  }
  // Copies what has arrived since the last call: whole arrivals, until kCopyBytesMax are copied.
  // The caller can then look at what else has happened.
  static constexpr uint64_t kCopyBytesMax = 4 * kMiB;
  void CopyNew();
  // Call it when the round is complete. Copies the rest. Returns false if the arrivals are not
  // exactly the whole result: then something came twice and may have been copied too early. Copy
  // the whole result in that case.
  bool Finish();
  // Since this object was made.
  uint64_t bytes_copied() const { return bytes_copied_; }

 private:
  void AwaitMore();
  void CopyUpTo(uint64_t bytes_max);
  // How many arrivals there are now; 0 if the log belongs to another round.
  uint64_t Arrivals() const;
  // The bytes of all arrivals; copied_bytes_ of them are copied.
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
