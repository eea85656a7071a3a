// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_UNBACKED_MEMORY_H_
#define TALWEG_LIBS_SHM_DAEMON_UNBACKED_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "libs/shm/daemon/outcome.h"

namespace talweg::shm {

// A place for buffers that gets its memory later. Back... are called by one thread at a time, in
// the order of the buffers.
class BackedLater {
 public:
  virtual ~BackedLater() = default;
  // Has the kernel set memory aside, so that a later write cannot fail. Takes the time that the
  // kernel needs. kOutOfMemory if it has none.
  virtual Outcome<bool> Back(uint64_t begin, uint64_t end) = 0;
  // Prepares for the next buffers. Takes time likewise.
  virtual void BackAhead() = 0;
};

// A buffer's memory, as far as the kernel has still to set it aside. Nobody touches the buffer
// before that. Copyable.
class UnbackedMemory {
 public:
  UnbackedMemory() = default;  // Nothing is left to do.
  UnbackedMemory(std::weak_ptr<BackedLater> place, uint64_t begin, uint64_t end)
      : place_(std::move(place)), begin_(begin), end_(end) {}

  bool empty() const { return begin_ == end_; }
  // Any thread, but one at a time for all buffers of an agent, in the order of their allocation.
  // Does nothing if the memory was given back meanwhile.
  Outcome<bool> Back() const {
    const std::shared_ptr<BackedLater> place = place_.lock();
    return place == nullptr ? Outcome<bool>(true) : place->Back(begin_, end_);
  }
  void BackAhead() const {
    if (const std::shared_ptr<BackedLater> place = place_.lock()) place->BackAhead();
  }

 private:
  std::weak_ptr<BackedLater> place_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_UNBACKED_MEMORY_H_
