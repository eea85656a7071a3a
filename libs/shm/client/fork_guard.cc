// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/fork_guard.h"

#include <sys/mman.h>

#include <new>

#include "libs/shm/layout/control.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace talweg::shm {

ForkGuard::~ForkGuard() {
  if (page_ != nullptr) ::munmap(page_, kPageBytes);
}

void ForkGuard::Begin() {
  pid_ = ::getpid();
  void* guard =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (guard == MAP_FAILED) return;
  if (::madvise(guard, kPageBytes, MADV_WIPEONFORK) == 0) {
    page_ = new (guard) std::atomic<uint32_t>(kAlive);
  } else {
    ::munmap(guard, kPageBytes);
  }
}

}  // namespace talweg::shm
