// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/restarts.h"

#include <algorithm>

namespace talweg::cli {

uint32_t Restarts::count(int64_t now_ns) const {
  return static_cast<uint32_t>(
      std::count_if(failures_ns_.begin(), failures_ns_.end(),
                    [&](int64_t at_ns) { return at_ns > now_ns - policy_.window_ns; }));
}

std::optional<int64_t> Restarts::OnFailure(int64_t now_ns) {
  while (!failures_ns_.empty() && failures_ns_.front() <= now_ns - policy_.window_ns) {
    failures_ns_.pop_front();
  }
  if (failures_ns_.size() >= policy_.count_max) return std::nullopt;
  int64_t pause_ns = policy_.pause_min_ns;
  for (size_t i = 0; i < failures_ns_.size() && pause_ns < policy_.pause_max_ns; ++i) pause_ns *= 2;
  failures_ns_.push_back(now_ns);
  return now_ns + std::min(pause_ns, policy_.pause_max_ns);
}

}  // namespace talweg::cli
