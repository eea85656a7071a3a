// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/turn_thread.h"

#include <pthread.h>

#include <utility>

namespace talweg::runtime {

TurnThread::TurnThread(const char* name) : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

TurnThread::~TurnThread() {
  {
    std::deque<Work> forgotten;  // Destroyed without the lock.
    const std::lock_guard lock(mutex_);
    ends_ = true;
    forgotten.swap(waiting_);
  }
  changed_.notify_one();
  thread_.join();
}

void TurnThread::Add(Work work) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void TurnThread::Run() {
  std::function<void()> when_idle;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (waiting_.empty() && when_idle == nullptr) {
      changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
      continue;
    }
    if (waiting_.empty()) {
      const std::function<void()> idle = std::exchange(when_idle, nullptr);
      lock.unlock();
      idle();
    } else {
      const Work next = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      next.run();
      when_idle = next.when_idle;
    }
    lock.lock();
  }
}

}  // namespace talweg::runtime
