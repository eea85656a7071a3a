// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/arriving_result.h"

#include <algorithm>

#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {
namespace {

// A sleeping thread is woken for at least this many bytes, and for at least a sixteenth of the
// tensor: a wake-up costs as much as copying 100 KiB.
constexpr uint64_t kStepBytesMin = kMiB;
constexpr uint64_t kStepsMax = 16;

}  // namespace

ArrivingResult::ArrivingResult(const std::byte* line, uint64_t bytes, uint64_t round,
                               const std::byte* result, std::byte* out, bool streaming)
    : line_(reinterpret_cast<const ArrivalsLine*>(line)),
      arrivals_(reinterpret_cast<const Arrival*>(line + sizeof(ArrivalsLine))),
      bytes_(bytes),
      round_(round),
      result_(result),
      out_(out),
      streaming_(streaming) {
  AwaitMore();
}

void ArrivingResult::GoOnBehind(const Copied& copied) {
  if (line_ == nullptr || copied.round != round_ || copied.out != out_) return;
  copied_ = copied.arrivals;
  copied_bytes_ = copied.bytes;
  AwaitMore();
}

void ArrivingResult::AwaitMore() {
  const uint64_t step = std::max(kStepBytesMin, bytes_ / kStepsMax);
  awaited_bytes_ = copied_bytes_ + step;
  // If little would be left after that step, it is copied when the round is complete.
  if (awaited_bytes_ + step / 2 > bytes_) awaited_bytes_ = 0;
}

uint64_t ArrivingResult::Arrivals() const {
  if (line_->round.load(std::memory_order_acquire) != round_) return 0;
  const uint64_t count = line_->count.load(std::memory_order_acquire);
  // A later round's count is stored after that round's number.
  if (line_->round.load(std::memory_order_relaxed) != round_) return 0;
  return std::min(count, ArrivalsCapacity(bytes_));
}

void ArrivingResult::CopyUpTo(uint64_t bytes_max) {
  const uint64_t count = Arrivals();
  const uint64_t end = bytes_copied_ + bytes_max;
  for (; copied_ < count && bytes_copied_ < end; ++copied_) {
    const Arrival& arrival = arrivals_[copied_];
    const uint64_t offset = arrival.offset_bytes.load(std::memory_order_relaxed);
    const uint64_t length = arrival.length_bytes.load(std::memory_order_relaxed);
    if (length > bytes_ || offset > bytes_ - length) {
      copied_bytes_ = bytes_ + 1;  // The agent made a mistake: never whole.
      return;
    }
    Copy(out_ + offset, result_ + offset, length, streaming_);
    copied_bytes_ += length;
    bytes_copied_ += length;
  }
}

void ArrivingResult::CopyNew() {
  const uint64_t before = copied_;
  CopyUpTo(kCopyBytesMax);
  if (copied_ == before || copied_bytes_ > bytes_) {
    // Bytes that no arrival covers, or that come twice, are no reason to look again.
    awaited_bytes_ = 0;
  } else if (copied_ == Arrivals()) {
    AwaitMore();  // Otherwise there is more already, and Ready() stays true.
  }
}

uint64_t ArrivingResult::ToldBytes() const {
  uint64_t bytes = copied_bytes_;
  const uint64_t count = Arrivals();
  for (uint64_t i = copied_; i < count && bytes <= bytes_; ++i) {
    const uint64_t length = arrivals_[i].length_bytes.load(std::memory_order_relaxed);
    bytes += std::min(length, bytes_ + 1);
  }
  return bytes;
}

bool ArrivingResult::Finish() {
  // Do not copy more if the arrivals are not exactly the whole: all of it is then copied again.
  if (copied_ == 0 || ToldBytes() != bytes_) return false;
  CopyUpTo(bytes_);
  return copied_bytes_ == bytes_ && copied_ < ArrivalsCapacity(bytes_);
}

}  // namespace talweg::shm
