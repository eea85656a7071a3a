// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_TIMELINE_H_
#define TALWEG_TESTS_SIM_TIMELINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "libs/base/random.h"

namespace talweg::sim {

inline constexpr int64_t kMicrosecond = 1'000;
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

// Virtual time, the events that wait for it, and the only source of chance in a life.
class Timeline {
 public:
  explicit Timeline(uint64_t seed) : random_(seed) {}

  int64_t now_ns() const { return now_ns_; }
  Random& random() { return random_; }

  void At(int64_t at_ns, std::function<void()> event) {
    events_.push({at_ns < now_ns_ ? now_ns_ : at_ns, next_sequence_++, std::move(event)});
  }
  void After(int64_t delay_ns, std::function<void()> event) {
    At(now_ns_ + delay_ns, std::move(event));
  }

  // Runs the next event, if it is due by `end_ns`. Returns whether there was one.
  bool RunOne(int64_t end_ns) {
    if (events_.empty() || events_.top().at_ns > end_ns) return false;
    // The queue gives const access only. The event that is moved out is popped at once.
    Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now_ns_ = event.at_ns;
    event.run();
    return true;
  }

 private:
  struct Event {
    int64_t at_ns;
    uint64_t sequence;
    std::function<void()> run;

    bool operator<(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };

  Random random_;
  int64_t now_ns_ = 0;
  uint64_t next_sequence_ = 0;
  std::priority_queue<Event> events_;
};

// The record of a life: the points of coverage.h that it has reached, and, in a replay, a text of
// everything.
class Trace {
 public:
  explicit Trace(bool on) : on_(on) {}
  // `point` outlives the trace.
  void Reached(const char* point, uint64_t times = 1) { reached_[point] += times; }
  bool HasReached(const char* point) const { return reached_.contains(point); }
  const std::map<std::string, uint64_t>& reached() const { return reached_; }
  bool on() const { return on_; }
  void Add(int64_t now_ns, const std::string& who, const std::string& what);
  // Sets the name of the process that logs from now on.
  void SetSpeaker(const std::string* name) { speaker_ = name; }
  void AddLog(int64_t now_ns, const std::string& text);
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  bool on_;
  const std::string* speaker_ = nullptr;
  std::map<std::string, uint64_t> reached_;
  std::vector<std::string> lines_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_TIMELINE_H_
