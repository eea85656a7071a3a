// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SCALE_TIME_H_
#define TALWEG_TESTS_SIM_SCALE_TIME_H_

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>
#include <queue>
#include <utility>

#include "libs/runtime/clock.h"
#include "tests/sim/scale.h"

// Virtual time in which each message has a stated cost.
namespace talweg::sim {

inline double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class CpuTimer {
 public:
  explicit CpuTimer(double* into) : into_(into), began_(CpuSeconds()) {}
  ~CpuTimer() { *into_ += CpuSeconds() - began_; }
  CpuTimer(const CpuTimer&) = delete;
  CpuTimer& operator=(const CpuTimer&) = delete;

 private:
  double* const into_;
  const double began_;
};

// A process: it handles one message after another.
struct Station {
  StationCost cost;
  int64_t free_at_ns = 0;
};

// Delivers messages between processes, when these and the network have had time for them.
class VirtualTime final : public runtime::Clock {
 public:
  explicit VirtualTime(const ScaleOptions& options) : options_(options) {}

  int64_t NowNs() const override { return now_ns_; }

  void Send(Station& from, Station& to, uint64_t bytes, std::function<void()> deliver) {
    const int64_t cost_ns =
        options_.message_ns + static_cast<int64_t>(bytes) * options_.byte_ps / 1000;
    ++from.cost.out.messages;
    from.cost.out.bytes += bytes;
    from.free_at_ns = std::max(now_ns_, from.free_at_ns) + cost_ns;
    At(from.free_at_ns + options_.delay_ns,
       [this, &to, bytes, cost_ns, deliver = std::move(deliver)]() mutable {
         ++to.cost.in.messages;
         to.cost.in.bytes += bytes;
         to.free_at_ns = std::max(now_ns_, to.free_at_ns) + cost_ns;
         At(to.free_at_ns, std::move(deliver));
       });
  }
  // Runs until nothing is under way.
  void Run() {
    while (!events_.empty()) {
      Event event = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      now_ns_ = event.at_ns;
      event.run();
    }
  }

 private:
  struct Event {
    int64_t at_ns = 0;
    uint64_t number = 0;
    std::function<void()> run;
    friend bool operator<(const Event& a, const Event& b) {
      return std::pair(a.at_ns, a.number) > std::pair(b.at_ns, b.number);
    }
  };
  void At(int64_t at_ns, std::function<void()> run) {
    events_.push({.at_ns = at_ns, .number = ++numbers_, .run = std::move(run)});
  }

  const ScaleOptions options_;
  int64_t now_ns_ = 1'000'000'000;
  uint64_t numbers_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SCALE_TIME_H_
