// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_AGGREGATOR_LINK_H_
#define TALWEG_TESTS_SIM_AGGREGATOR_LINK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "libs/membership/scheduler_core.h"
#include "services/aggregator/scheduler_link.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler_process.h"
#include "tests/sim/timeline.h"

namespace talweg::sim {

// An aggregator's link to the simulated scheduler: does what rpc::AggregatorRegistration does, over
// simulated calls and streams.
class AggregatorLink final : public aggregator::SchedulerLink {
 public:
  // All outlive the link.
  AggregatorLink(Timeline* timeline, Trace* trace, Network* network, SchedulerProcess* scheduler,
                 HostIndex host, OnEvent on_event);
  ~AggregatorLink() override;

  void Register(view::ViewAggregator self) override;
  void Drain(std::string text, int64_t timeout_ns,
             std::function<void(absl::StatusOr<uint32_t>)> done) override;
  void Deregister(std::string text, int64_t timeout_ns,
                  std::function<void(absl::Status)> done) override;

 private:
  using EffectList = std::vector<membership::Effect>;

  void Enter();
  void Attach();
  void Renew();
  void OnMessage(const membership::AggregatorMessage& message);
  void OnRefused(const membership::Answer& answer);
  void NoteAnswer(bool answered);
  void Say(bool leave, const std::string& text, int64_t end_ns,
           std::function<void(absl::StatusOr<uint32_t>)> done);
  void Tell(const rpc::AggregatorEvent& event);
  void Later(int64_t delay_ns, std::function<void()> event);
  // Returns a function that runs `event`, unless the link is gone by then.
  std::function<void()> WhileHere(std::function<void()> event) const;

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  SchedulerProcess* const scheduler_;
  const HostIndex host_;
  std::shared_ptr<OnEvent> on_event_;  // Null: nothing more is told.
  std::shared_ptr<bool> here_ = std::make_shared<bool>(true);
  view::ViewAggregator self_;
  bool registered_ = false;
  bool out_ = false;
  bool reachable_ = true;  // As last reported.
  uint64_t attachment_ = 0;
  std::map<JobId, Epoch> held_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGGREGATOR_LINK_H_
