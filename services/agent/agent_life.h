// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_LIFE_H_
#define TALWEG_SERVICES_AGENT_AGENT_LIFE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace talweg::agent {

enum class LifeState : uint8_t {
  kServing = 1,   // Ranks join or train.
  kDraining = 2,  // Stop was called: ranks have `drain_ns` to finish.
  kFailed = 3,    // The job has failed: ranks have a while to read the error.
  kLeaving = 4,   // Serves nobody any more. The last messages leave.
  kEnded = 5,
};
const char* LifeStateName(LifeState state);

struct LifeConfig {
  // No other node is in the job. When the ranks have left, others may come.
  bool alone = false;
  int64_t drain_ns = 0;  // How long ranks may go on after Stop.
};

// The conditions that AgentLife::Advance looks at.
struct LifeSight {
  bool any_attached = false;    // Some rank has a connection.
  bool gpus_are_idle = true;    // No work runs on GPUs, so their memory may be freed.
  bool words_have_left = true;  // Nothing waits to be sent to an aggregator.
};

enum class LifeStep : uint8_t {
  kNone = 0,
  kServeOthers = 1,   // The ranks are done. Begin again, for other ranks.
  kFailTheRanks = 2,  // The ranks' time is over. The caller fails them, and calls OnFailed.
  kLeave = 3,         // Tell the others, as how_it_ends() says.
  kEnd = 4,
};

struct LifeEnd {
  bool finished = false;  // The ranks were done, or no other node waits for them. False: stopped.
  std::string text;
};

// An agent's life, from its first rank to its end.
//
//   state     | what happens                                       | next state | step
//   ----------+----------------------------------------------------+------------+--------------
//   kServing  | Stop                                               | kDraining  |
//   kServing  | all ranks are done, GPUs are idle; alone           | kServing   | kServeOthers
//   kServing  | all ranks are done, GPUs are idle                  | kLeaving   | kLeave (finished)
//   kDraining | all ranks are done, GPUs are idle                  | kLeaving   | kLeave (finished)
//   kDraining | no rank is attached; alone                         | kLeaving   | kLeave (finished)
//   kDraining | no rank is attached                                | kLeaving   | kLeave (stopped)
//   kDraining | the ranks had their time                           | kDraining  | kFailTheRanks
//   both      | the job has failed                                 | kFailed    |
//   kFailed   | no rank is attached, and one was or Stop was called| kLeaving   | kLeave (stopped)
//   kFailed   | ranks linger for too long, or had their time       | kLeaving   | kLeave (stopped)
//   kLeaving  | the last words have left, or had their time        | kEnded     | kEnd
//
// No other event changes the state: a second Stop or failure, ranks that are done after the job has
// failed, any event in kLeaving. A Stop of a failed job only shortens kFailed.
//
// Pure: no clock, no I/O. One owner thread. Call Advance() after events, and at NextNs().
class AgentLife {
 public:
  explicit AgentLife(const LifeConfig& config) : config_(config) {}

  void OnRankAttached() { ever_attached_ = true; }
  // All ranks that joined have said goodbye.
  void OnRanksDone();
  // Returns false if Stop was called before, or in kLeaving and kEnded.
  bool OnStop(const std::string& why, int64_t now_ns);
  void OnFailed(const std::string& text, int64_t now_ns);

  // Returns what the caller does next. The caller does it before the next call.
  LifeStep Advance(const LifeSight& sight, int64_t now_ns);
  // Returns when Advance() may return another step without any event; nullopt: never.
  std::optional<int64_t> NextNs(const LifeSight& sight) const;

  LifeState state() const { return state_; }
  bool Leaves() const { return state_ == LifeState::kLeaving || state_ == LifeState::kEnded; }
  const std::string& why_it_stops() const { return stop_why_; }
  const LifeEnd& how_it_ends() const { return end_; }

 private:
  LifeStep Leave(bool finished, const std::string& text, int64_t now_ns);
  int64_t FailedUntilNs(const LifeSight& sight) const;

  const LifeConfig config_;
  LifeState state_ = LifeState::kServing;
  bool ever_attached_ = false;
  bool ranks_done_ = false;
  bool ranks_had_their_time_ = false;
  std::string stop_why_;                     // Not empty if Stop was called.
  std::optional<int64_t> stop_deadline_ns_;  // Set if Stop was called.
  int64_t since_ns_ = 0;                     // When kFailed or kLeaving began.
  std::string failed_text_;
  LifeEnd end_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_LIFE_H_
