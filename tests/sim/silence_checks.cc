// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/silence_checks.h"

#include <algorithm>
#include <optional>
#include <string>

namespace talweg::sim {
namespace {

// The extra time that stragglers, stopped hosts, partitions and retries may take.
constexpr int64_t kSlackNs = 60 * kSecond;
// How late an owner may notice that a node is back.
constexpr int64_t kNoticedNs = 5 * kSecond;

}  // namespace

void CheckWaitsForNoneDead(const AgentProcess& agent, const Deaths& deaths,
                           int64_t undecided_since_ns, int64_t unreachable_ns, int64_t now_ns) {
  const view::View* const view = agent.core().views().newest();
  const std::optional<int64_t> waits_since_ns = agent.WaitsSince();
  if (view == nullptr || !waits_since_ns || agent.Failed()) return;
  for (const view::ViewMember& member : view->members) {
    const auto death = deaths.find(member.id);
    if (death == deaths.end()) continue;
    // Rounds that do not need the dead member may go on for long, and stragglers take seconds each.
    const int64_t since_ns = std::max({undecided_since_ns, death->second, *waits_since_ns});
    if (now_ns < since_ns + unreachable_ns + kSlackNs) continue;
    throw Violation{agent.Unsettled() + " node " + std::to_string(member.id.node.value()) +
                    " and the scheduler have been dead for " +
                    std::to_string((now_ns - since_ns) / kSecond) + " s"};
  }
}

void CheckWasAbsent(const AgentProcess& by, const AgentProcess& other, int64_t said_ns) {
  const view::View* const held = other.core().views().present();
  const view::View* const view = by.core().views().present();
  const bool is_connected = other.ConnectedAtBothEnds() && held != nullptr && view != nullptr &&
                            held->epoch == view->epoch && held->job == view->job &&
                            view->IndexOf(other.core().config().self) && !other.Failed() &&
                            !other.left();
  if (!is_connected || said_ns < *other.connected_since_ns() + kNoticedNs) return;
  throw Violation{by.name() + ": gives up " + other.name() + ", which had been connected for " +
                  std::to_string((said_ns - *other.connected_since_ns()) / kMillisecond) + " ms"};
}

}  // namespace talweg::sim
