// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_MAILBOX_H_
#define TALWEG_LIBS_RUNTIME_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "libs/runtime/event_loop.h"

namespace talweg::runtime {

// How other threads talk to the owner of an EventLoop. They post messages, and the owner drains
// them in the order of the posts. Any thread posts; only the owner drains.
//
// A mailbox takes any number of messages. A thread that posts without waiting for an answer must
// bound its posts, by size() or by its own count.
template <typename Message>
class Mailbox {
 public:
  // `loop` outlives the mailbox. Every post wakes it. Null: the owner polls.
  explicit Mailbox(EventLoop* loop) : loop_(loop) {}

  void Post(Message message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
      size_.store(messages_.size(), std::memory_order_release);
    }
    if (loop_ != nullptr) loop_->Wake();
  }

  // Hands every message posted before the call to `on_message(Message)`. Returns how many. Cheap
  // when there are none. Call it from a Poller of the loop.
  template <typename OnMessage>
  int Drain(OnMessage&& on_message) {
    if (size() == 0) return 0;
    std::vector<Message> messages;
    {
      const std::lock_guard lock(mutex_);
      messages.swap(messages_);
      size_.store(0, std::memory_order_release);
    }
    for (Message& message : messages) on_message(std::move(message));
    return static_cast<int>(messages.size());
  }

  size_t size() const { return size_.load(std::memory_order_acquire); }

 private:
  EventLoop* const loop_;
  std::mutex mutex_;
  std::vector<Message> messages_;
  std::atomic<size_t> size_{0};
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_MAILBOX_H_
