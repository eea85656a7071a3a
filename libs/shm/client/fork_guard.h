// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_FORK_GUARD_H_
#define TALWEG_LIBS_SHM_CLIENT_FORK_GUARD_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace talweg::shm {

// Tells a client that it runs in a forked child of its process (docs/shared_memory.md, "Forks").
// Call Begin first; then any thread may ask.
class ForkGuard {
 public:
  ForkGuard() = default;
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

  void Begin();
  bool Forked() const {
    if (page_ != nullptr) return page_->load(std::memory_order_relaxed) != kAlive;
    return ::getpid() != pid_;
  }
  // The process that the client belongs to.
  pid_t pid() const { return pid_; }

 private:
  static constexpr uint32_t kAlive = 0x76697661;

  // A page that holds kAlive. The kernel zeroes it in a forked child. Null: the kernel cannot do
  // that, so Forked() compares pids.
  std::atomic<uint32_t>* page_ = nullptr;
  pid_t pid_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_FORK_GUARD_H_
