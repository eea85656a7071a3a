// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_
#define TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>

namespace talweg::schedule {

// How much may be on its way to all owners together, so that the link is always full and no fuller:
// what waits in sockets cannot be overtaken any more, and is carried in an order that is not ours.
// Owners grant as much as the fastest network needs; over a slow one the same bytes would hold up
// what is urgent for tenths of a second.
//
// What all owners have received from a slice's departure until its receipt, over that time, is how
// fast the link is (as BBR samples it: Cardwell et al., "BBR: congestion-based congestion control",
// 2016). The window is what the fastest of late would carry in kFullMs, and a few slices, because
// receipts come slice by slice and may wait behind results. It begins small, and is soon known.
//
// Pure. What comes back from an owner is in the order of what left to it.
class SendWindow {
 public:
  // What is on its way to one owner.
  class Way {
   private:
    friend class SendWindow;
    struct Sent {
      uint64_t end_bytes = 0;       // Of all that was sent this way up to and with it.
      uint64_t received_bytes = 0;  // By all owners, when it left.
      int64_t at_ns = 0;
    };
    uint64_t sent_bytes_ = 0;
    uint64_t received_bytes_ = 0;
    std::deque<Sent> under_way_;
  };

  // With so many ways open.
  uint64_t Bytes(size_t way_count) const;

  // How fast the link has been of late, at its best; 0: not known yet.
  uint64_t BytesPerMs() const;

  void OnSent(Way& way, uint64_t bytes, int64_t now_ns);
  void OnReceived(Way& way, uint64_t bytes, int64_t now_ns);

 private:
  uint64_t largest_bytes_ = 0;
  uint64_t received_bytes_ = 0;
  // The fastest samples, bytes a millisecond, of the present period and of the one before.
  uint64_t fastest_ = 0;
  uint64_t fastest_before_ = 0;
  int64_t period_since_ns_ = 0;
};

}  // namespace talweg::schedule

#endif  // TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_
