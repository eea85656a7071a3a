// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_UNSENT_H_
#define TALWEG_SERVICES_SCHEDULER_UNSENT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "libs/membership/effects.h"

// What the scheduler's core has said to streams, and has not been sent yet. One owner thread.
namespace talweg::scheduler {

// Returns the size of a message's texts.
size_t TextBytes(const membership::MemberMessage& message);
size_t TextBytes(const membership::AggregatorMessage& message);

// Returns whether a message may make older ones needless.
bool Replaces(const membership::MemberMessage& newer);
bool Replaces(const membership::AggregatorMessage& newer);
// Returns whether `newer` makes it needless to send `older`, which was said before it.
bool IsReplacedBy(const membership::MemberMessage& newer, const membership::MemberMessage& older);
bool IsReplacedBy(const membership::AggregatorMessage& newer,
                  const membership::AggregatorMessage& older);

// Returns whether many streams are told the same, each with a text of its own.
bool HasText(const membership::MemberMessage& message);
bool HasText(const membership::AggregatorMessage& message);

// A message that waits for one or more streams. Adds its size to a total while it lives.
template <typename Message>
class Kept {
 public:
  Kept(Message message, uint64_t* total)
      : message_(std::move(message)), bytes_(sizeof *this + TextBytes(message_)), total_(total) {
    *total_ += bytes_;
  }
  ~Kept() { *total_ -= bytes_; }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  const Message& message() const { return message_; }

 private:
  const Message message_;
  const uint64_t bytes_;
  uint64_t* const total_;
};

// Keeps messages. Streams that are told the same, one after another, share it.
template <typename Message>
class Keeper {
 public:
  // The size of all that is kept is added to `total`, which outlives every message.
  explicit Keeper(uint64_t* total) : total_(total) {}

  std::shared_ptr<const Kept<Message>> Keep(const Message& message) {
    if (!HasText(message)) return std::make_shared<const Kept<Message>>(message, total_);
    std::shared_ptr<const Kept<Message>> kept = last_.lock();
    if (kept == nullptr || !(kept->message() == message)) {
      kept = std::make_shared<const Kept<Message>>(message, total_);
      last_ = kept;
    }
    return kept;
  }

 private:
  uint64_t* const total_;
  std::weak_ptr<const Kept<Message>> last_;  // One with a text.
};

// The messages that one stream has not been sent, in order.
template <typename Message>
class Unsent {
 public:
  using Pointer = std::shared_ptr<const Kept<Message>>;

  explicit Unsent(uint64_t* total) : total_(total) {}
  ~Unsent() { *total_ -= messages_.size() * sizeof(Pointer); }
  Unsent(const Unsent&) = delete;
  Unsent& operator=(const Unsent&) = delete;

  // Drops those that it replaces.
  void Push(Pointer kept) {
    if (Replaces(kept->message())) {
      *total_ -= sizeof(Pointer) * std::erase_if(messages_, [&](const Pointer& older) {
                   return IsReplacedBy(kept->message(), older->message());
                 });
    }
    messages_.push_back(std::move(kept));
    *total_ += sizeof(Pointer);
  }
  Pointer Pop() {
    Pointer first = std::move(messages_.front());
    messages_.pop_front();
    *total_ -= sizeof(Pointer);
    return first;
  }
  const Message& front() const { return messages_.front()->message(); }
  size_t size() const { return messages_.size(); }

 private:
  std::deque<Pointer> messages_;
  uint64_t* const total_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_UNSENT_H_
