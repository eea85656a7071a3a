// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_
#define TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_

#include <cstdint>
#include <deque>

namespace talweg::schedule {

// How much may be on its way to one owner, so that the way is always full and no fuller: what
// waits in sockets cannot be overtaken any more. An owner grants as much as the fastest network
// needs; over a slow one the same bytes would hold up what is urgent for tenths of a second.
//
// What has been received behind a slice's departure until its own receipt, over that time, is how
// fast the way is (as BBR samples it: Cardwell et al., "BBR: congestion-based congestion control",
// 2016). The window is what the fastest of late would carry in kFullNs, and a few slices, because
// receipts come slice by slice and may wait behind results. Without a sample it is all that was
// granted; where no bound was granted (UINT64_MAX) there is none.
//
// Pure. What comes back is in the order of what left.
class SendWindow {
 public:
  explicit SendWindow(uint64_t granted_bytes) : granted_bytes_(granted_bytes) {}

  uint64_t bytes() const { return window_bytes_ < granted_bytes_ ? window_bytes_ : granted_bytes_; }

  void OnSent(uint64_t bytes, int64_t now_ns);
  void OnReceived(uint64_t bytes, int64_t now_ns);

 private:
  struct Sent {
    uint64_t end_bytes = 0;       // Of all that was sent up to and with it.
    uint64_t received_bytes = 0;  // When it left.
    int64_t at_ns = 0;
  };

  uint64_t granted_bytes_;
  uint64_t window_bytes_ = UINT64_MAX;
  uint64_t largest_bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  uint64_t received_bytes_ = 0;
  std::deque<Sent> under_way_;
  // The fastest samples, bytes a millisecond, of the present period and of the one before.
  uint64_t fastest_ = 0;
  uint64_t fastest_before_ = 0;
  int64_t period_since_ns_ = 0;
};

}  // namespace talweg::schedule

#endif  // TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_
