// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_PEER_WATCH_H_
#define TALWEG_LIBS_TRANSPORT_PEER_WATCH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libs/runtime/clock.h"
#include "libs/transport/deadline_timer.h"

namespace talweg::transport {

// The times of one connection.
struct PeerTimes {
  int64_t open_by_ns = 0;  // While not open.
  bool heard = true;       // Whether anything came since our last heartbeat.
  int64_t silent_ns = 0;   // Counted only while this thread runs: a stopped process hears no peer.
};

struct PeerWatchOptions {
  int64_t connect_timeout_ns = 0;
  int64_t heartbeat_ns = 0;
  int64_t silence_ns = 0;  // 0: a silence ends nothing.
};

// Watches connections over a network: finds those that do not open in time or fall silent, and says
// when to send heartbeats.
//
// `Peers` maps ids to handles of peers. A peer has `times`, open(), and name() for messages.
class PeerWatch {
 public:
  PeerWatch(const PeerWatchOptions& options, const runtime::Clock* clock)
      : options_(options), clock_(clock) {}

  DeadlineTimer& timer() { return timer_; }

  // A connection has opened. Makes a heartbeat due, since it is not known when the last one was.
  void NoteOpen() { next_heartbeat_ns_ = std::max(next_heartbeat_ns_, clock_->NowNs()); }

  // Makes the timer ring when a peer needs something.
  template <typename Peers>
  void Arm(const Peers& peers) {
    std::optional<int64_t> first_ns;
    for (const auto& [id, peer] : peers) {
      const int64_t due_ns = peer->open() ? next_heartbeat_ns_ : peer->times.open_by_ns;
      first_ns = std::min(first_ns.value_or(due_ns), due_ns);
    }
    if (first_ns) *first_ns -= clock_->NowNs();
    timer_.RingIn(first_ns);
  }

  // Returns the peers whose time is over, and a text that says why. The caller ends them, then
  // calls Arm(). Calls `beat` for the other peers when a heartbeat is due; `beat` must not end
  // connections.
  template <typename Peers, typename Beat>
  auto FindOver(const Peers& peers, const Beat& beat) {
    std::vector<std::pair<typename Peers::mapped_type, std::string>> over;
    const int64_t now_ns = clock_->NowNs();
    for (const auto& [id, peer] : peers) {
      if (!peer->open() && now_ns >= peer->times.open_by_ns) {
        over.emplace_back(peer, "connect to " + peer->name() + ": no answer within " +
                                    Milliseconds(options_.connect_timeout_ns) +
                                    "; check the address, and that no firewall drops the packets");
      }
    }
    if (now_ns < next_heartbeat_ns_) return over;
    for (const auto& [id, peer] : peers) {
      if (!peer->open()) continue;
      PeerTimes& times = peer->times;
      times.silent_ns =
          std::exchange(times.heard, false) ? 0 : times.silent_ns + options_.heartbeat_ns;
      if (options_.silence_ns > 0 && times.silent_ns >= options_.silence_ns) {
        over.emplace_back(peer, peer->name() + " was silent for " +
                                    Milliseconds(options_.silence_ns) +
                                    ": its host or the network to it is down, or the process was "
                                    "stopped");
      } else {
        beat(*peer);
      }
    }
    next_heartbeat_ns_ = now_ns + options_.heartbeat_ns;
    Arm(peers);
    return over;
  }

 private:
  static std::string Milliseconds(int64_t ns) { return std::to_string(ns / 1'000'000) + " ms"; }

  const PeerWatchOptions options_;
  const runtime::Clock* const clock_;
  DeadlineTimer timer_;
  int64_t next_heartbeat_ns_ = 0;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PEER_WATCH_H_
