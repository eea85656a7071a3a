// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/event_watcher.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "libs/base/check.h"

namespace talweg::gpu::fake {

EventWatcher::~EventWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void EventWatcher::Watch(std::shared_ptr<SharedFile> event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.notify_one();
}

void EventWatcher::Run() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    const auto is_done = [](const auto& event) { return StateOf(*event).IsDone(); };
    if (std::erase_if(events_, is_done) > 0) {
      const uint64_t one = 1;
      TALWEG_CHECK(write(descriptor_, &one, sizeof one) == sizeof one);
    }
    if (events_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
  }
}

}  // namespace talweg::gpu::fake
