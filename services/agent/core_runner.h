// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_CORE_RUNNER_H_
#define TALWEG_SERVICES_AGENT_CORE_RUNNER_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "libs/pipeline/agent_core.h"
#include "libs/runtime/clock.h"

namespace talweg::agent {

// Gives a member's core one event at a time, and performs its effects before the next event. Owned
// by the data thread.
class CoreRunner {
 public:
  using Event = std::function<void(pipeline::Effects&)>;

  // `perform` performs the effects of an event, and may call Deliver. The clock outlives this
  // object.
  CoreRunner(const runtime::Clock* clock, std::function<void(pipeline::Effects&)> perform)
      : clock_(clock), perform_(std::move(perform)) {}

  // Starts the core of another member.
  void Begin(pipeline::AgentCoreConfig config);
  pipeline::AgentCore& core() { return *core_; }
  const pipeline::AgentCore& core() const { return *core_; }

  // Gives the core `event`, performs its effects, and then delivers the events that came meanwhile.
  void Deliver(Event event);
  void FailJob(const std::string& text);
  // Flushes the core: the messages of the events since the last Flush leave. Returns whether there
  // were such events.
  bool Flush();

  bool dirty() const { return dirty_; }
  bool performing() const { return performing_; }

 private:
  const runtime::Clock* const clock_;
  const std::function<void(pipeline::Effects&)> perform_;
  std::unique_ptr<pipeline::AgentCore> core_;
  std::deque<Event> events_;
  bool performing_ = false;
  bool dirty_ = false;  // The core has had events since the last Flush.
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_CORE_RUNNER_H_
