// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_ENTRY_WAIT_H_
#define TALWEG_SERVICES_AGENT_ENTRY_WAIT_H_

#include <cstdint>
#include <optional>

namespace talweg::agent {

// How long a node that has joined waits for its first view, and when the log says so: after 10 s,
// then each time that the wait has doubled.
class EntryWait {
 public:
  void OnJoined(int64_t now_ns) {
    since_ns_ = now_ns;
    notice_ns_ = kFirstNoticeNs;
  }
  // The wait is over: there is a view, or the job has failed.
  void End() { since_ns_.reset(); }
  // Returns the seconds that the node has waited when it is time to say so.
  std::optional<int64_t> Notice(int64_t now_ns) {
    if (!since_ns_ || now_ns - *since_ns_ < notice_ns_) return std::nullopt;
    const int64_t waited_ns = now_ns - *since_ns_;
    while (notice_ns_ <= waited_ns) notice_ns_ *= 2;
    return waited_ns / 1'000'000'000;
  }

 private:
  static constexpr int64_t kFirstNoticeNs = 10'000'000'000;

  std::optional<int64_t> since_ns_;
  int64_t notice_ns_ = kFirstNoticeNs;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_ENTRY_WAIT_H_
