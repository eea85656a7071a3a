// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_WATCHES_H_
#define TALWEG_LIBS_SHM_CLIENT_WATCHES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libs/base/descriptor.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/pushed_rounds.h"
#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// The rounds that a client watches through one descriptor. The descriptor becomes readable when one
// of them may be over (docs/shared_memory.md, "A descriptor that tells of rounds"). Needs libc
// only. Any thread may call any function; some need mutex() locked, as their comments say.
class Watches {
 public:
  // One round, and the caller's tag for it.
  struct Watch {
    uint32_t tensor = 0;
    uint64_t round = 0;
    uint64_t tag = 0;
    bool on_device = false;
    PushedRounds others;
  };

  Watches() = default;
  ~Watches();

  // Makes the descriptor. It is readable when `socket` is, after Signal, and every `tick_ns` while
  // something is watched (0: never). A second call does nothing. kLimit: no descriptor is left.
  // Call with mutex() locked.
  RankStatus Open(int socket, int64_t tick_ns, ErrorText& error);
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  int fd() const { return epoll_.get(); }

  // Makes the descriptor readable until the next Drain. Does nothing before Open.
  void Signal() const;
  // Makes the descriptor unreadable until something new happens.
  void Drain();

  // The watches of the client's next descriptor; null if this is the last.
  Watches* next() const { return next_.load(std::memory_order_acquire); }
  // Appends to the last one.
  void Append(Watches* watches) { next_.store(watches, std::memory_order_release); }

  Mutex& mutex() { return mutex_; }
  // Call the rest with mutex() locked.
  bool empty() const { return count_ == 0; }
  // Returns false if there is no memory.
  bool Add(const Watch& watch);
  // Whether a watch is over.
  template <typename IsOver>
  bool Any(const IsOver& is_over) const {
    for (size_t i = 0; i < count_; ++i) {
      if (is_over(watches_[i])) return true;
    }
    return false;
  }
  // Ends the watches that are over, at most `capacity`, and writes their tags in the order in which
  // they were added. *more: others are over as well. Returns how many it has ended.
  template <typename IsOver>
  size_t Take(const IsOver& is_over, uint64_t* tags, size_t capacity, bool* more) {
    size_t taken = 0;
    size_t kept = 0;
    *more = false;
    for (size_t i = 0; i < count_; ++i) {
      const bool over = !*more && is_over(watches_[i]);
      if (over && taken < capacity) {
        tags[taken++] = watches_[i].tag;
        continue;
      }
      *more = *more || over;
      watches_[kept++] = watches_[i];
    }
    count_ = kept;
    if (count_ == 0) Rest();
    return taken;
  }

 private:
  void SetTimer(int64_t every_ns) const;
  // Nothing is watched any more. Stops a timer that has run meanwhile; most watches therefore cost
  // no system call for it.
  void Rest();

  Mutex mutex_;
  std::atomic<Watches*> next_{nullptr};
  std::atomic<bool> is_open_{false};
  Descriptor epoll_;
  Descriptor event_;
  Descriptor timer_;
  int64_t tick_ns_ = 0;
  bool ticks_ = false;
  std::atomic<bool> ticked_{false};
  Watch* watches_ = nullptr;
  size_t count_ = 0;
  size_t capacity_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_WATCHES_H_
