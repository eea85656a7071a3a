// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_TIMELINE_H_
#define TALWEG_SERVICES_AGENT_TIMELINE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "libs/pipeline/effects.h"
#include "libs/telemetry/trace_file.h"

namespace talweg::agent {

using telemetry::TracePhase;

struct TimelineEvent {
  TracePhase phase = TracePhase::kUnknown;
  const std::string* tensor = nullptr;  // The tensor's name. The Timeline owns it.
  Round round;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t bytes = 0;
};

// Records when the rounds of tensors were pushed, reduced, sent, summed and visible. Records rounds
// 1 to `rounds_max`, and all rounds while recording is on. Drops the oldest events when there are
// too many. Costs one branch per call while nothing is recorded. Owned by the data thread.
class Timeline {
 public:
  explicit Timeline(uint32_t rounds_max) : rounds_max_(rounds_max) {}

  // Begins to record all rounds, after it drops the events it has; or ends that.
  void Record(bool enabled, size_t events_max);
  bool recording() const { return recording_; }
  // Returns whether the timeline records any round, now or later.
  bool records() const { return recording_ || rounds_max_ > 0; }
  bool Wants(Round round) const {
    return recording_ || (round.value() > 0 && round.value() <= rounds_max_);
  }

  void OnPushed(pipeline::TensorIndex tensor, Round round, bool by_all, int64_t now_ns);
  void OnReduced(pipeline::TensorIndex tensor, Round round, int64_t begin_ns, int64_t end_ns);
  void OnSent(pipeline::TensorIndex tensor, Round round, int64_t now_ns);
  void OnWriteDone(pipeline::TensorIndex tensor, int64_t now_ns);
  void OnResult(pipeline::TensorIndex tensor, Round round, int64_t now_ns);
  // The round is over: its times become events.
  void OnVisible(pipeline::TensorIndex tensor, const std::string& name, Round round, uint64_t bytes,
                 int64_t now_ns);

  // Forgets the open rounds, whose tensors are gone.
  void ForgetOpen() { open_.clear(); }

  // The numbers of the first event that is kept, and of the one after the last. Numbers count from
  // when recording began.
  uint64_t first() const { return dropped_; }
  uint64_t end() const { return dropped_ + events_.size(); }
  const TimelineEvent& event(uint64_t number) const { return events_[number - dropped_]; }

  // Returns trace event JSON, which ui.perfetto.dev and chrome://tracing open. It has one process
  // for the agent, and one row per tensor. Times are from this host's monotonic clock.
  std::string Json(const std::string& process_name, uint32_t process_number) const;

 private:
  struct Times {
    Round round;
    int64_t first_push = 0, all_pushed = 0;
    int64_t reduce_begin = 0, reduce_end = 0;
    int64_t first_sent = 0, last_sent = 0;
    int64_t first_result = 0, last_result = 0;
  };
  Times* At(pipeline::TensorIndex tensor, Round round);
  void Add(TracePhase phase, const std::string* tensor, Round round, int64_t begin_ns,
           int64_t end_ns, uint64_t bytes);

  const uint32_t rounds_max_;
  bool recording_ = false;
  size_t events_max_ = 1 << 20;
  std::map<pipeline::TensorIndex, Times> open_;
  std::set<std::string> names_;
  std::deque<TimelineEvent> events_;
  uint64_t dropped_ = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_TIMELINE_H_
