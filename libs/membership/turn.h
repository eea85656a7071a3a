// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_TURN_H_
#define TALWEG_LIBS_MEMBERSHIP_TURN_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/scheduler_core.h"

namespace talweg::membership {

// One event's work: what it has touched, what of that is to be stored, and what is to be said after
// it has been.
class SchedulerCore::Turn {
 public:
  explicit Turn(int64_t now_ns) : now_ns(now_ns) {}

  const int64_t now_ns;
  std::set<JobId> touched;  // To be advanced.
  std::set<JobId> dirty;    // To be stored.
  std::set<Incarnation> dirty_aggregators;
  StoreWrite write;  // What is not a record of a dirty one.
  std::vector<Effect> effects;

  void Touch(const LiveJob& job) { touched.insert(job.id); }
  void Store(const LiveJob& job) { dirty.insert(job.id); }
  void Store(const LiveAggregator& aggregator) {
    dirty_aggregators.insert(aggregator.record.aggregator.incarnation);
  }
  void Say(Effect effect) { effects.push_back(std::move(effect)); }
  void Log(std::string text) { effects.push_back(Note{std::move(text)}); }
};

JobRecord RecordOf(const LiveJob& job);
// Those that wait to enter the view of a running job, and are there.
std::vector<NodeRank> PendingNodes(const LiveJob& job);

// Words: "agent of node 1 (host-b, incarnation 7f3a)", "aggregator a0 (incarnation 7f3a)".
std::string AgentText(const view::ViewMember& member);
std::string AggregatorText(const view::ViewAggregator& aggregator);
// A few digits of it, to tell one life from the next.
std::string HexText(Incarnation incarnation);
std::string SecondsText(int64_t ns);
std::string NodesText(const std::vector<NodeRank>& nodes);
// "'a', 'b'".
std::string JobsText(const std::vector<std::string>& names);

// Why a request can never be right, or "".
std::string ProblemOf(const JoinRequest& request);
std::string ProblemOf(const view::ViewAggregator& aggregator);
// How two specs differ, naming both values; "" if they do not.
std::string DifferenceOf(const JobSpec& set, const JobSpec& asked);

inline constexpr Epoch kEpochMax{uint64_t{1} << 62};
inline constexpr JobId kJobIdMax{uint64_t{1} << 62};

// Above it lie the ids of jobs and quiesces that a scheduler gives, and the epochs of jobs that it
// has found in its store. That may have been put back from a copy, and what has been given since is
// known to others only: so it is the time, in steps of a millisecond with room for a million
// numbers.
uint64_t NumbersFrom(int64_t start_unix_ns);

template <typename Body>
auto SchedulerCore::Perform(int64_t now_ns, std::vector<Effect>& out, const Body& body) {
  ObserveGap(now_ns);
  Turn turn(now_ns);
  auto answer = body(turn);
  for (const JobId id : turn.touched) {
    const auto job = jobs_.find(id);
    if (job != jobs_.end()) Advance(job->second, turn);
  }
  // A view that this very turn has followed with another one is worth no words.
  std::erase_if(turn.effects, [this](const Effect& effect) {
    const view::View* view = nullptr;
    if (const auto* tell = std::get_if<TellMember>(&effect)) {
      const auto* shared = std::get_if<SharedView>(&tell->message);
      if (shared != nullptr) view = &**shared;
    } else if (const auto* tell = std::get_if<TellAggregator>(&effect)) {
      const auto* job_view = std::get_if<JobView>(&tell->message);
      if (job_view != nullptr) view = &job_view->view;
    }
    return view != nullptr && view->epoch < jobs_.at(view->job).view->epoch;
  });
  for (const JobId id : turn.dirty) {
    const auto job = jobs_.find(id);
    if (job != jobs_.end()) turn.write.jobs.push_back(RecordOf(job->second));
  }
  for (const Incarnation id : turn.dirty_aggregators) {
    const auto aggregator = aggregators_.find(id);
    if (aggregator != aggregators_.end()) {
      turn.write.aggregators.push_back(aggregator->second.record);
    }
  }
  if (!turn.write.empty()) out.push_back(Persist{std::move(turn.write)});
  std::move(turn.effects.begin(), turn.effects.end(), std::back_inserter(out));
  return answer;
}

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_TURN_H_
