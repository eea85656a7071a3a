// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_COMPLETION_LOOP_H_
#define TALWEG_CLIENTS_C_COMPLETION_LOOP_H_

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "clients/c/talweg.h"

namespace talweg::c {

// For the kernels of frameworks: one thread that polls a client's descriptor, and calls back for
// each round that is over. The thread starts with the first Watch, so an unused loop costs nothing.
// Header only; needs a C++17 library, libc and libtalweg.
//
//   CompletionLoop loop(client);
//   talweg_push_pull(client, tensor, gradient, TALWEG_DECLARED_PRIORITY, -1, &round);
//   loop.Watch(tensor, round, [=](talweg_status told) {
//     if (told == TALWEG_OK) told = talweg_wait(client, tensor, round, gradient, -1);
//     done(told, talweg_last_error());
//   });
//
// Any thread may call Watch. Destroy the loop after all calls and before talweg_free, but not in a
// callback. Each loop has a descriptor of its own, until talweg_free: make one loop for a client.
class CompletionLoop {
 public:
  // Called once. Must not throw. TALWEG_OK: the round is over, and talweg_wait says how, without
  // waiting for other ranks' pushes; it sums or copies on the thread that calls it. Else the loop
  // does not know when the round is over, and a wait for it needs a time limit: TALWEG_CLOSED, the
  // loop has ended; TALWEG_LIMIT, no descriptor or thread is left; TALWEG_FORKED. Callbacks block
  // the loop's thread, so long work belongs on another one.
  using Callback = std::function<void(talweg_status told)>;

  explicit CompletionLoop(talweg_client* client) : client_(client) {}
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  // Calls back for rounds that are not over with TALWEG_CLOSED, on this thread.
  ~CompletionLoop() {
    if (IsInherited()) return;
    if (runs_) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(stop_fd_, &one, sizeof(one));
      ::pthread_join(thread_, nullptr);
    }
    if (stop_fd_ >= 0) ::close(stop_fd_);
    std::unordered_map<uint64_t, Callback> left;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      left.swap(callbacks_);
    }
    for (auto& [tag, callback] : left) callback(TALWEG_CLOSED);
  }

  // Has the loop's thread call `callback` when this pushed round is over. If the round cannot be
  // watched, calls `callback` at once, on this thread: with TALWEG_OK if the client's health has
  // ended, so that talweg_wait does not wait.
  void Watch(talweg_tensor tensor, talweg_round round, Callback callback) {
    uint64_t tag = 0;
    talweg_status status = TALWEG_FORKED;
    if (!IsInherited()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      status = Start();
      if (status == TALWEG_OK) {
        tag = next_tag_++;
        callbacks_.emplace(tag, std::move(callback));
      }
    }
    if (status != TALWEG_OK) {
      callback(status);  // NOLINT(bugprone-use-after-move): not moved unless `status` is TALWEG_OK.
      return;
    }
    // Without the lock: the loop's thread takes this lock after the client's own.
    if (talweg_watch_by(client_, fd_, tensor, round, tag) == TALWEG_OK) return;
    // talweg_wait says why.
    if (Callback refused = Take(tag)) refused(TALWEG_OK);
  }

 private:
  static constexpr size_t kTagsAtOnce = 64;

  // In a forked child the thread does not exist, and another thread may have held the lock.
  bool IsInherited() const {
    const pid_t pid = pid_.load();
    return pid != 0 && pid != ::getpid();
  }

  // With the lock.
  talweg_status Start() {
    if (runs_) return TALWEG_OK;
    const talweg_status status = fd_ >= 0 ? TALWEG_OK : talweg_another_completion_fd(client_, &fd_);
    if (status != TALWEG_OK) return status;
    if (stop_fd_ < 0) stop_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd_ < 0) return TALWEG_LIMIT;
    // The loop's thread blocks signals, so that the program's own threads get them.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    runs_ = ::pthread_create(&thread_, nullptr, &CompletionLoop::Run, this) == 0;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pid_.store(::getpid());
    return runs_ ? TALWEG_OK : TALWEG_LIMIT;
  }

  // Returns an empty function if no callback has that tag any more.
  Callback Take(uint64_t tag) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = callbacks_.find(tag);
    if (found == callbacks_.end()) return nullptr;
    Callback callback = std::move(found->second);
    callbacks_.erase(found);
    return callback;
  }

  static void* Run(void* loop) {
    static_cast<CompletionLoop*>(loop)->Run();
    return nullptr;
  }
  void Run() {
    std::array<pollfd, 2> polled{pollfd{fd_, POLLIN, 0}, pollfd{stop_fd_, POLLIN, 0}};
    std::array<uint64_t, kTagsAtOnce> tags;
    for (;;) {
      if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // Interrupted by a debugger.
      if (polled[1].revents != 0) return;
      size_t count = 0;
      do {
        // The client's health has ended, and all tags were given.
        if (talweg_completed_by(client_, fd_, tags.data(), tags.size(), &count) != TALWEG_OK)
          return;
        for (size_t i = 0; i < count; ++i) {
          if (Callback callback = Take(tags[i])) callback(TALWEG_OK);
        }
      } while (count == tags.size());
    }
  }

  talweg_client* const client_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Callback> callbacks_;
  uint64_t next_tag_ = 1;
  int fd_ = -1;
  int stop_fd_ = -1;
  bool runs_ = false;
  std::atomic<pid_t> pid_{0};  // The process that started the thread.
  pthread_t thread_{};
};

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_COMPLETION_LOOP_H_
