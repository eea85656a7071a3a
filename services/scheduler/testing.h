// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_TESTING_H_
#define TALWEG_SERVICES_SCHEDULER_TESTING_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

#include <catch2/catch.hpp>

#include "libs/rpc/scheduler_client.h"

// Shared by the scheduler's tests.
namespace talweg::scheduler {

inline constexpr int64_t kSecond = 1'000'000'000;
// Ends a test that hangs. Not a limit for speed.
inline constexpr auto kPatience = std::chrono::seconds(30);

// Keeps events until they are asked for.
template <typename Event>
class Events {
 public:
  void Put(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  // Waits for the next event of this kind, and drops the events before it.
  template <typename Kind>
  Kind Next() {
    std::unique_lock lock(mutex_);
    while (true) {
      const bool some = changed_.wait_for(lock, kPatience, [this] { return !events_.empty(); });
      REQUIRE(some);
      Event event = std::move(events_.front());
      events_.pop_front();
      if (auto* kind = std::get_if<Kind>(&event)) return std::move(*kind);
      if (auto* refused = std::get_if<1>(&event)) {
        FAIL("refused: " << refused->status.ToString());
      }
    }
  }
  template <typename Kind>
  bool Has() {
    const std::lock_guard lock(mutex_);
    for (const Event& event : events_) {
      if (std::holds_alternative<Kind>(event)) return true;
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
};

inline rpc::SchedulerLinkOptions Link(const std::string& address) {
  return {.address = address, .backoff_max_ns = kSecond / 10, .seed = 1};
}

inline rpc::JoinSpec Spec(uint32_t node, uint32_t min, uint32_t max,
                          membership::LossPolicy policy = membership::LossPolicy::kFailJob) {
  return {.job_name = "mnist",
          .spec = {.min_members = min, .max_members = max, .loss_policy = policy},
          .member = {.id = {NodeRank{node}, Incarnation{100 + node}},
                     .rank_count = 2,
                     .name = "host-" + std::to_string(node)}};
}

struct TestMember {
  TestMember(rpc::SchedulerLinkOptions link, rpc::JoinSpec spec, bool ranks_attached = true)
      : client(std::make_unique<rpc::SchedulerClient>(
            std::move(link), [this](rpc::MemberEvent event) { events.Put(std::move(event)); })) {
    client->SetRanksAttached(ranks_attached);
    client->JoinJob(std::move(spec));
  }
  absl::Status Refusal() { return events.Next<rpc::JoinRefused>().status; }

  Events<rpc::MemberEvent> events;
  std::unique_ptr<rpc::SchedulerClient> client;
};

struct TestAggregator {
  TestAggregator(const std::string& address, const std::string& name, uint64_t incarnation,
                 const std::string& data_address = "fi:tcp://127.0.0.1:1/0123456789abcdef",
                 uint32_t weight = 1)
      : client(std::make_unique<rpc::AggregatorRegistration>(
            Link(address), [this](rpc::AggregatorEvent event) { events.Put(std::move(event)); })) {
    client->Register({.incarnation = Incarnation{incarnation},
                      .name = name,
                      .weight = weight,
                      .data_address = data_address,
                      .host_id = "h"});
  }

  Events<rpc::AggregatorEvent> events;
  std::unique_ptr<rpc::AggregatorRegistration> client;
};

inline bool Contains(const std::string& text, const std::string& part) {
  UNSCOPED_INFO("text: " << text);
  return text.find(part) != std::string::npos;
}

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_TESTING_H_
