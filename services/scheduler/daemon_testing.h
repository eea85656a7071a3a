// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_DAEMON_TESTING_H_
#define TALWEG_SERVICES_SCHEDULER_DAEMON_TESTING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/store/store.h"
#include "services/scheduler/scheduler.h"

namespace talweg::scheduler {

// A scheduler on a thread of its own.
class Daemon {
 public:
  explicit Daemon(std::unique_ptr<store::Store> store, SchedulerOptions options = {}) {
    auto loop = runtime::EventLoop::Create(&clock_, {.spin_ns_max = 0});
    REQUIRE(loop.ok());
    loop_ = *std::move(loop);
    auto scheduler = Scheduler::Start(options, std::move(store), &clock_, loop_.get(),
                                      [this](const absl::Status&) { loop_->Stop(); });
    INFO(scheduler.status().ToString());
    REQUIRE(scheduler.ok());
    scheduler_ = *std::move(scheduler);
    thread_ = std::thread([this] {
      loop_->Run();
      scheduler_->Shutdown();
    });
  }
  ~Daemon() {
    loop_->Stop();
    thread_.join();
  }
  std::string address() const { return scheduler_->address(); }
  uint16_t port() const {
    return static_cast<uint16_t>(std::stoi(address().substr(address().rfind(':') + 1)));
  }

 private:
  runtime::MonotonicClock clock_;
  std::unique_ptr<runtime::EventLoop> loop_;
  std::unique_ptr<Scheduler> scheduler_;
  std::thread thread_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_DAEMON_TESTING_H_
