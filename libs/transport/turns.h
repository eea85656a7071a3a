// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TURNS_H_
#define TALWEG_LIBS_TRANSPORT_TURNS_H_

#include <algorithm>
#include <cstddef>

namespace talweg::transport {

// Polls a transport's peers in turns, so that a peer that never stops sending does not block the
// others. Owned by one thread.
class Turns {
 public:
  // How many events of one peer a turn delivers, if other peers are due.
  static constexpr int kEventsMax = 16;

  // Calls poll(peer, &left) for the peers that are due, until `events_max` events were delivered.
  // Each call of Take begins with the next peer. `left` is how many events the peer may deliver;
  // `poll` counts it down.
  template <typename Peers, typename Poll>
  void Take(const Peers& due, int events_max, const Poll& poll) {
    const int turn_max = due.size() > 1 ? kEventsMax : events_max;
    for (size_t i = 0; i < due.size() && events_max > 0; ++i) {
      int left = std::min(turn_max, events_max);
      events_max -= left;
      poll(due[(first_ + i) % due.size()], &left);
      events_max += left;
    }
    ++first_;
  }

 private:
  size_t first_ = 0;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TURNS_H_
