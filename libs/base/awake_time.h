// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_AWAKE_TIME_H_
#define TALWEG_LIBS_BASE_AWAKE_TIME_H_

#include <algorithm>
#include <cstdint>
#include <optional>

namespace talweg {

// Counts time for a process that looks at the clock every second or oftener while it runs. A gap
// longer than kGapMaxNs means that the process was stopped. The part beyond kGapMaxNs does not
// count, because the process cannot know what others did meanwhile.
class AwakeTime {
 public:
  static constexpr int64_t kGapMaxNs = 2'000'000'000;

  void Begin(int64_t now_ns) { last_ns_ = now_ns; }

  // The time since Begin or the last Take, at most kGapMaxNs. 0 if there was neither.
  int64_t Take(int64_t now_ns) {
    const int64_t gap_ns = now_ns - last_ns_.value_or(now_ns);
    last_ns_ = now_ns;
    return std::min(gap_ns, kGapMaxNs);
  }

 private:
  std::optional<int64_t> last_ns_;
};

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_AWAKE_TIME_H_
