// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_AGENT_WATCH_H_
#define TALWEG_LIBS_SHM_CLIENT_AGENT_WATCH_H_

#include <cstdint>
#include <utility>

#include "libs/base/awake_time.h"

namespace talweg::shm {

// Whether the agent still runs: a running agent counts AgentLine::beats up. Only time counts in
// which the rank looks and is awake.
class AgentWatch {
 public:
  static constexpr int64_t kLookEveryNs = 1'000'000'000;
  static_assert(2 * kLookEveryNs <= AwakeTime::kGapMaxNs, "a look may come late");

  // `silence_ms` is from the header. 0: the agent does not count, and is not watched.
  void Begin(uint32_t silence_ms) { limit_ns_ = int64_t{silence_ms} * 1'000'000; }
  bool watches() const { return limit_ns_ > 0; }
  int64_t limit_ns() const { return limit_ns_; }

  // Looks at `beats`. Returns true if they have stood still for the limit.
  bool IsSilent(uint32_t beats, int64_t now_ns) {
    const int64_t gap_ns = awake_.Take(now_ns);
    if (std::exchange(beats_, beats) != beats)
      silent_ns_ = 0;
    else
      silent_ns_ += gap_ns;
    return watches() && silent_ns_ >= limit_ns_;
  }

 private:
  int64_t limit_ns_ = 0;
  int64_t silent_ns_ = 0;
  uint32_t beats_ = 0;
  AwakeTime awake_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_AGENT_WATCH_H_
