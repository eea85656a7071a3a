// SPDX-License-Identifier: Apache-2.0
#include "services/agent/memory_thread.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::agent {
namespace {

// Memory that is given when the test says so.
class SlowPlace final : public shm::BackedLater {
 public:
  shm::Outcome<bool> Back(uint64_t /*begin*/, uint64_t end) override {
    std::unique_lock lock(mutex_);
    asked_ = end;
    changed_.notify_all();
    changed_.wait(lock, [this, end] { return end <= given_; });
    if (!refusal_.empty()) return shm::Failure{shm::RankStatus::kOutOfMemory, refusal_};
    return true;
  }
  void BackAhead() override {
    const std::lock_guard lock(mutex_);
    is_ahead_ = true;
    changed_.notify_all();
  }

  void Give(uint64_t end, const std::string& refusal = "") {
    const std::lock_guard lock(mutex_);
    given_ = end;
    refusal_ = refusal;
    changed_.notify_all();
  }
  void AwaitAsked(uint64_t end) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, end] { return asked_ == end; });
  }
  void AwaitAhead() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_ahead_; });
  }
  bool is_ahead() {
    const std::lock_guard lock(mutex_);
    return is_ahead_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t asked_ = 0;
  uint64_t given_ = 0;
  std::string refusal_;
  bool is_ahead_ = false;
};

// What the thread has said.
class Answers {
 public:
  MemoryThread::OnFilled Take() {
    return [this](OrderNumber number, absl::Status status) {
      const std::lock_guard lock(mutex_);
      answers_.emplace_back(number, std::move(status));
      changed_.notify_all();
    };
  }
  std::vector<std::pair<OrderNumber, absl::Status>> Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, count] { return answers_.size() >= count; });
    return answers_;
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return answers_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<OrderNumber, absl::Status>> answers_;
};

MemoryOrder OrderOf(const std::shared_ptr<SlowPlace>& place, uint64_t end) {
  MemoryOrder order;
  order.Add(shm::UnbackedMemory(place, 0, end));
  return order;
}

TEST_CASE("MemoryThread: orders are filled one after another, and the next is prepared at the end",
          "[agent]") {
  const auto place = std::make_shared<SlowPlace>();
  Answers answers;
  MemoryThread thread(answers.Take());
  thread.Ask(1, OrderOf(place, 10));
  thread.Ask(2, OrderOf(place, 20));
  place->AwaitAsked(10);
  CHECK(answers.count() == 0);
  place->Give(10);
  place->AwaitAsked(20);
  CHECK_FALSE(place->is_ahead());  // While an order waits, nothing else is asked for.
  place->Give(20, "no memory");
  const auto said = answers.Await(2);
  CHECK(said[0].first == 1);
  CHECK(said[0].second.ok());
  CHECK(said[1].first == 2);
  CHECK(said[1].second.code() == absl::StatusCode::kResourceExhausted);
  CHECK(said[1].second.message() == "no memory");
  place->AwaitAhead();
}

TEST_CASE("MemoryThread: it ends while orders wait, and forgets them", "[agent]") {
  const auto place = std::make_shared<SlowPlace>();
  Answers answers;
  auto thread = std::make_unique<MemoryThread>(answers.Take());
  thread->Ask(1, OrderOf(place, 10));
  thread->Ask(2, OrderOf(place, 20));
  place->AwaitAsked(10);
  std::thread ends([&thread] { thread.reset(); });
  place->Give(20);  // The second may have its turn before the end is asked for.
  ends.join();
  CHECK(answers.count() >= 1);
}

TEST_CASE("MemoryThread: memory that was given back is not asked for", "[agent]") {
  const auto place = std::make_shared<SlowPlace>();
  auto dropped = std::make_shared<SlowPlace>();
  auto pages = std::make_shared<PrivatePages>(4096);
  MemoryOrder late;
  late.Add(shm::UnbackedMemory(dropped, 0, 30));
  late.Add(pages);
  Answers answers;
  MemoryThread thread(answers.Take());
  thread.Ask(1, OrderOf(place, 10));
  thread.Ask(2, late);
  place->AwaitAsked(10);
  dropped.reset();
  pages.reset();
  place->Give(10);
  CHECK(answers.Await(2)[1].second.ok());
}

// Keeps what it is asked for.
class LateSource final : public MemorySource {
 public:
  void Ask(OrderNumber number, MemoryOrder /*order*/) override { numbers.push_back(number); }
  std::vector<OrderNumber> numbers;
};

TEST_CASE("MemoryOrders: an answer comes once, and not to who has forgotten", "[agent]") {
  LateSource source;
  MemoryOrders orders(&source);
  const auto place = std::make_shared<SlowPlace>();
  std::vector<std::string> said;
  const auto then = [&said](const absl::Status& status) { said.emplace_back(status.message()); };
  orders.Place(MemoryOrder{}, then);
  CHECK(said.size() == 1);  // There was nothing to ask for.
  orders.Place(OrderOf(place, 10), then);
  orders.Place(OrderOf(place, 20), then);
  REQUIRE(source.numbers.size() == 2);
  CHECK(said.size() == 1);
  orders.OnFilled(source.numbers[0], absl::ResourceExhaustedError("none"));
  orders.OnFilled(source.numbers[0], absl::OkStatus());
  CHECK(said == std::vector<std::string>{"", "none"});
  orders.Forget();
  orders.OnFilled(source.numbers[1], absl::OkStatus());
  CHECK(said.size() == 2);
  CHECK(orders.waiting_count() == 0);
}

}  // namespace
}  // namespace talweg::agent
