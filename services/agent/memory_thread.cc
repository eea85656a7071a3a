// SPDX-License-Identifier: Apache-2.0
#include "services/agent/memory_thread.h"

#include <pthread.h>

namespace talweg::agent {

MemoryThread::MemoryThread(OnFilled on_filled)
    : on_filled_(std::move(on_filled)), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "talweg-memory");
}

MemoryThread::~MemoryThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    asked_.clear();
  }
  changed_.notify_one();
  thread_.join();
}

void MemoryThread::Ask(OrderNumber number, MemoryOrder order) {
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back({number, std::move(order)});
  }
  changed_.notify_one();
}

void MemoryThread::Run() {
  MemoryOrder last;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (asked_.empty()) {
      const MemoryOrder prepares = std::exchange(last, {});
      if (prepares.empty()) {
        changed_.wait(lock, [this] { return ends_ || !asked_.empty(); });
        continue;
      }
      lock.unlock();
      prepares.FillAhead();
      lock.lock();
      continue;
    }
    const Asked next = std::move(asked_.front());
    asked_.pop_front();
    lock.unlock();
    on_filled_(next.number, next.order.Fill());
    last = next.order;
    lock.lock();
  }
}

}  // namespace talweg::agent
