// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_MEMORY_THREAD_H_
#define TALWEG_SERVICES_AGENT_MEMORY_THREAD_H_

#include <absl/status/status.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "services/agent/memory_order.h"

namespace talweg::agent {

// A thread that waits for the kernel's memory, so that the data thread does not. It fills one order
// after another. When none waits, it prepares for the next.
class MemoryThread final : public MemorySource {
 public:
  // Called by the thread.
  using OnFilled = std::function<void(OrderNumber number, absl::Status status)>;

  explicit MemoryThread(OnFilled on_filled);
  // Ends the thread. Forgets the orders whose turn has not come, and waits for the one whose turn
  // it is. That takes no longer than the kernel's present answer if its memory was given back.
  ~MemoryThread() override;

  // Any thread.
  void Ask(OrderNumber number, MemoryOrder order) override;

 private:
  struct Asked {
    OrderNumber number;
    MemoryOrder order;
  };

  void Run();

  const OnFilled on_filled_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Asked> asked_;
  bool ends_ = false;
  std::thread thread_;  // The last member: it uses the others.
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_MEMORY_THREAD_H_
