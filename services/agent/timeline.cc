// SPDX-License-Identifier: Apache-2.0
#include "services/agent/timeline.h"

#include <algorithm>
#include <utility>

namespace talweg::agent {

void Timeline::Record(bool enabled, size_t events_max) {
  if (enabled && !recording_) {
    events_.clear();
    open_.clear();
    dropped_ = 0;
  }
  recording_ = enabled;
  events_max_ = std::max<size_t>(events_max, 1);
}

Timeline::Times* Timeline::At(pipeline::TensorIndex tensor, Round round) {
  if (!Wants(round)) return nullptr;
  const auto it = open_.find(tensor);
  return it == open_.end() || it->second.round != round ? nullptr : &it->second;
}

void Timeline::OnPushed(pipeline::TensorIndex tensor, Round round, bool by_all, int64_t now_ns) {
  if (!Wants(round)) return;
  Times& times = open_[tensor];
  if (times.round != round) times = {.round = round, .first_push = now_ns};
  if (by_all) times.all_pushed = now_ns;
}

void Timeline::OnReduced(pipeline::TensorIndex tensor, Round round, int64_t begin_ns,
                         int64_t end_ns) {
  if (Times* times = At(tensor, round)) {
    if (times->reduce_begin == 0) times->reduce_begin = begin_ns;
    times->reduce_end = end_ns;
  }
}

void Timeline::OnSent(pipeline::TensorIndex tensor, Round round, int64_t now_ns) {
  if (Times* times = At(tensor, round)) {
    if (times->first_sent == 0) times->first_sent = now_ns;
    times->last_sent = now_ns;
  }
}

void Timeline::OnWriteDone(pipeline::TensorIndex tensor, int64_t now_ns) {
  const auto it = open_.find(tensor);
  if (it != open_.end()) it->second.last_sent = now_ns;
}

void Timeline::OnResult(pipeline::TensorIndex tensor, Round round, int64_t now_ns) {
  if (Times* times = At(tensor, round)) {
    if (times->first_result == 0) times->first_result = now_ns;
    times->last_result = now_ns;
  }
}

void Timeline::OnVisible(pipeline::TensorIndex tensor, const std::string& name, Round round,
                         uint64_t bytes, int64_t now_ns) {
  const Times* times = At(tensor, round);
  if (times == nullptr) return;
  const Times t = *times;
  open_.erase(tensor);
  const std::string* row = &*names_.insert(name).first;
  if (t.all_pushed > t.first_push)
    Add(TracePhase::kRanks, row, round, t.first_push, t.all_pushed, bytes);
  const int64_t left_ns = t.reduce_begin != 0 ? t.reduce_begin : t.first_sent;
  if (left_ns != 0) Add(TracePhase::kQueue, row, round, t.all_pushed, left_ns, bytes);
  if (t.reduce_begin != 0) {
    Add(TracePhase::kLocalReduce, row, round, t.reduce_begin, t.reduce_end, bytes);
  }
  if (t.first_sent == 0) return;
  const int64_t result_ns = t.first_result != 0 ? t.first_result : now_ns;
  Add(TracePhase::kPush, row, round, t.first_sent, t.last_sent, bytes);
  Add(TracePhase::kSum, row, round, t.last_sent, std::max(result_ns, t.last_sent), bytes);
  Add(TracePhase::kPull, row, round, result_ns, now_ns, bytes);
}

void Timeline::Add(TracePhase phase, const std::string* tensor, Round round, int64_t begin_ns,
                   int64_t end_ns, uint64_t bytes) {
  if (events_.size() >= events_max_) {
    events_.pop_front();
    ++dropped_;
  }
  events_.push_back({phase, tensor, round, begin_ns, end_ns, bytes});
}

std::string Timeline::Json(const std::string& process_name, uint32_t process_number) const {
  telemetry::TraceFile file(process_name, process_number);
  for (const TimelineEvent& event : events_) {
    file.Add({.phase = event.phase,
              .tensor = *event.tensor,
              .round = event.round.value(),
              .begin_ns = event.begin_ns,
              .end_ns = event.end_ns,
              .bytes = event.bytes});
  }
  return std::move(file).End();
}

}  // namespace talweg::agent
