// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_EVENT_WATCHER_H_
#define TALWEG_LIBS_GPU_FAKE_EVENT_WATCHER_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "libs/gpu/fake/shared_files.h"

namespace talweg::gpu::fake {

// Writes to a descriptor when events are done. A file cannot report that, so a thread of its own,
// which starts with the first event, looks at the files now and then. Any thread may call it.
class EventWatcher {
 public:
  // `descriptor`: an eventfd that outlives the watcher.
  explicit EventWatcher(int descriptor) : descriptor_(descriptor) {}
  ~EventWatcher();
  EventWatcher(const EventWatcher&) = delete;
  EventWatcher& operator=(const EventWatcher&) = delete;

  void Watch(std::shared_ptr<SharedFile> event);

 private:
  void Run();

  const int descriptor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<SharedFile>> events_;  // Not done yet.
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_EVENT_WATCHER_H_
