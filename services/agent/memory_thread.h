// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_MEMORY_THREAD_H_
#define TALWEG_SERVICES_AGENT_MEMORY_THREAD_H_

#include <absl/status/status.h>

#include <functional>
#include <utility>

#include "libs/runtime/turn_thread.h"
#include "services/agent/memory_order.h"

namespace talweg::agent {

// A thread that waits for the kernel's memory, so that the data thread does not. It fills one order
// after another. When none waits, it prepares for the next.
class MemoryThread final : public MemorySource {
 public:
  // Called by the thread.
  using OnFilled = std::function<void(OrderNumber number, absl::Status status)>;

  explicit MemoryThread(OnFilled on_filled) : on_filled_(std::move(on_filled)) {}

  // Any thread.
  void Ask(OrderNumber number, MemoryOrder order) override {
    thread_.Add({.run = [this, number, order] { on_filled_(number, order.Fill()); },
                 .when_idle = [order] { order.FillAhead(); }});
  }

 private:
  const OnFilled on_filled_;
  // Its end takes no longer than the kernel's present answer if the memory of the order whose turn
  // it is was given back.
  runtime::TurnThread thread_{"talweg-memory"};
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_MEMORY_THREAD_H_
