// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/agent_bell.h"

#include "libs/shm/client/deadline.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {
namespace {

constexpr int64_t kPollRingsEveryNs = 100'000;

}  // namespace

void AgentBell::Ring(Sleeping sleeping) {
  const AgentLine& line = link_.control().agent_line();
  const uint32_t sleep = line.sleep_sequence.load(std::memory_order_seq_cst);
  if (sleeping != Sleeping::kAnyhow) {
    const bool until_awaited = line.sleeps_until_awaited.load(std::memory_order_seq_cst) == sleep;
    if (until_awaited != (sleeping == Sleeping::kUntilAwaited)) return;
  }
  // Rings once for each sleep. If the socket is full, the agent has something to read anyway.
  if ((sleep & 1) != 0 && rung_.exchange(sleep, std::memory_order_relaxed) != sleep) {
    link_.socket().Send({.body = Doorbell{}});
  }
}

void AgentBell::RingForPoll(bool needs_agent) {
  const int64_t now_ns = MonotonicNs();
  const int64_t every_ns = needs_agent ? kPollRingsEveryNs : kLookEveryNs;
  if (now_ns - poll_rang_ns_.load(std::memory_order_relaxed) < every_ns) return;
  poll_rang_ns_.store(now_ns, std::memory_order_relaxed);
  Ring(Sleeping::kUntilAwaited);
}

}  // namespace talweg::shm
