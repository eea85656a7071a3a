// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_LIFE_H_
#define TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_LIFE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "libs/base/ids.h"
#include "libs/rpc/scheduler_events.h"
#include "libs/runtime/clock.h"
#include "libs/view/view.h"
#include "services/aggregator/aggregator_data_plane.h"
#include "services/aggregator/scheduler_link.h"

namespace talweg::aggregator {

// An aggregator's life, from its registration to its end.
//
//   state     | what happens                                     | next state
//   ----------+--------------------------------------------------+-----------------------------------
//   kServing  | the lease is lost                                | kServing, as another incarnation
//   kServing  | Shutdown: the scheduler is asked for no          | kDraining
//             | further jobs                                     |
//   kDraining | no job uses it any more, the scheduler does not  | kLeaving: the scheduler is told
//             | answer, or its jobs had their time               |
//   kDraining | the lease is lost                                | kEnded
//   kLeaving  | the scheduler has heard it, or gives no answer   | kEnded
//   before    | the scheduler refuses to register this aggregator| kEnded
//
// Uses no threads, sockets or gRPC, so tests/sim can run it. Owned by the data thread.
class AggregatorLife {
 public:
  enum class State : uint8_t { kServing = 1, kDraining = 2, kLeaving = 3, kEnded = 4 };
  using MakeLink = std::function<std::unique_ptr<SchedulerLink>(Incarnation incarnation,
                                                                SchedulerLink::OnEvent on_event)>;
  struct Options {
    view::ViewAggregator self;
    std::string scheduler;  // The scheduler's address, for messages.
    int64_t drain_timeout_ns = 0;
  };

  // Calls `on_ended` once, in kEnded. `data_plane` and `clock` outlive this object.
  AggregatorLife(Options options, AggregatorDataPlane* data_plane, const runtime::Clock* clock,
                 MakeLink make_link, std::function<void()> on_ended);

  void Start();
  // Asks the scheduler for no further jobs, waits until the aggregator's jobs are over or have
  // moved to other aggregators, at most for `drain_timeout_ns`, deregisters, and ends. A second
  // call changes nothing.
  void Shutdown(const std::string& text);
  // Call it a few times a second.
  void Tick();

  State state() const { return state_; }
  bool scheduler_reachable() const { return scheduler_reachable_; }
  const std::string& scheduler_text() const { return scheduler_text_; }  // Why it is not reachable.
  const absl::Status& result() const { return result_; }

  // Returns the rest of the drain timeout, but at least the time to deregister.
  int64_t LeftNs() const;

 private:
  void Register();
  void OnSchedulerEvent(const rpc::AggregatorEvent& event);
  void OnLeaseLost(const std::string& text);
  void OnDrained(const absl::StatusOr<uint32_t>& jobs);
  // Whether the newest view of any job has a place for this aggregator. The scheduler tells all
  // aggregators of every job's views.
  bool IsUsed() const;
  void Leave();
  void End();

  const Options options_;
  AggregatorDataPlane* const data_plane_;
  const runtime::Clock* const clock_;
  const MakeLink make_link_;
  const std::function<void()> on_ended_;
  State state_ = State::kServing;
  Incarnation incarnation_;
  std::unique_ptr<SchedulerLink> link_;
  bool was_registered_ = false;
  bool scheduler_reachable_ = false;
  std::string scheduler_text_ = "not registered yet";
  std::string shutdown_text_;
  int64_t drain_end_ns_ = 0;      // Set from kDraining on.
  bool awaits_its_jobs_ = false;  // In kDraining: the scheduler has answered.
  absl::Status result_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_LIFE_H_
