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

// An aggregator's life: what the scheduler and signals say to it, and how it ends.
//
//   state     | what happens                                     | next state
//   ----------+--------------------------------------------------+-----------------------------------
//   kServing  | the lease is lost                                | kServing, as another incarnation
//   kServing  | Shutdown: the scheduler is asked for no          | kDraining
//             | further jobs                                     |
//   kDraining | it serves no job any more, the scheduler does    | kLeaving: the scheduler is told
//             | not answer, or its jobs had their time           |
//   kDraining | the lease is lost                                | kEnded
//   kLeaving  | the scheduler has heard it, or gives no answer   | kEnded
//   before    | the scheduler refuses to register this aggregator| kEnded
//
// Knows no threads, sockets or gRPC: tests/sim runs it. Everything happens on the data thread.
class AggregatorLife {
 public:
  enum class State : uint8_t { kServing = 1, kDraining = 2, kLeaving = 3, kEnded = 4 };
  using MakeLink = std::function<std::unique_ptr<SchedulerLink>(Incarnation incarnation,
                                                                SchedulerLink::OnEvent on_event)>;
  struct Options {
    view::ViewAggregator self;
    std::string scheduler;  // Its address, for texts.
    int64_t drain_timeout_ns = 0;
  };

  // `on_ended` is called once, when kEnded is reached. `data_plane` and `clock` outlive it.
  AggregatorLife(Options options, AggregatorDataPlane* data_plane, const runtime::Clock* clock,
                 MakeLink make_link, std::function<void()> on_ended);

  void Start();
  // Asks the scheduler for no further jobs, waits until those that it serves are over, at most the
  // drain timeout, says goodbye, and ends. A second call changes nothing.
  void Shutdown(const std::string& text);
  // A few times a second.
  void Tick();

  State state() const { return state_; }
  bool scheduler_reachable() const { return scheduler_reachable_; }
  const std::string& scheduler_text() const { return scheduler_text_; }  // Why not.
  const absl::Status& result() const { return result_; }

  // What is left of the drain timeout, or enough for a last word.
  int64_t LeftNs() const;

 private:
  void Register();
  void OnSchedulerEvent(const rpc::AggregatorEvent& event);
  void OnLeaseLost(const std::string& text);
  void OnDrained(const absl::StatusOr<uint32_t>& jobs);
  bool ServesAnyJob() const;
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
  bool scheduler_reachable_ = false;
  std::string scheduler_text_ = "not registered yet";
  std::string shutdown_text_;
  int64_t drain_end_ns_ = 0;      // From kDraining on.
  bool awaits_its_jobs_ = false;  // In kDraining: the scheduler has answered.
  absl::Status result_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_LIFE_H_
