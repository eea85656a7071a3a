// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_RESTARTS_H_
#define TALWEG_CLIENTS_CLI_RESTARTS_H_

#include <cstdint>
#include <deque>
#include <optional>

namespace talweg::cli {

// How often something that has failed is started again.
struct RestartPolicy {
  uint32_t count_max = 0;  // In any window.
  int64_t window_ns = 0;
  // The pause before the first start again; each further one of a window pauses twice as long.
  int64_t pause_min_ns = 0;
  int64_t pause_max_ns = 0;
};

// Counts the starts of one thing. Knows no clock and starts nothing.
class Restarts {
 public:
  explicit Restarts(const RestartPolicy& policy) : policy_(policy) {}

  // It has failed. When to start it again; nullopt: it has failed too often.
  std::optional<int64_t> OnFailure(int64_t now_ns);
  // How many starts count in the window that ends now.
  uint32_t count(int64_t now_ns) const;
  const RestartPolicy& policy() const { return policy_; }

 private:
  RestartPolicy policy_;
  std::deque<int64_t> failures_ns_;  // That led to a start.
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_RESTARTS_H_
