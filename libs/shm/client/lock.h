// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_LOCK_H_
#define TALWEG_LIBS_SHM_CLIENT_LOCK_H_

#include <pthread.h>

namespace talweg::shm {

// A mutex that needs libc only: std::mutex may throw, which would bring the C++ runtime into the
// client.
class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  ~Mutex() { ::pthread_mutex_destroy(&mutex_); }
  void Lock() { ::pthread_mutex_lock(&mutex_); }
  void Unlock() { ::pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class [[nodiscard]] MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) : mutex_(mutex) { mutex_.Lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() { mutex_.Unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_LOCK_H_
