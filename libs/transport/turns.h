// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TURNS_H_
#define TALWEG_LIBS_TRANSPORT_TURNS_H_

#include <algorithm>
#include <cstddef>

namespace talweg::transport {

// Has a transport's peers polled by turns, so that one that sends without end does not keep it from
// the others. One thread's.
class Turns {
 public:
  // How many events of one peer are delivered in its turn, where there are others.
  static constexpr int kEventsMax = 16;

  // Calls poll(peer, &left) for the peers that are due, each time beginning with another one, until
  // `events_max` events were delivered. It counts down `left`, of which each peer gets its turn's.
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
