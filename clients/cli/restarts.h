// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_RESTARTS_H_
#define TALWEG_CLIENTS_CLI_RESTARTS_H_

#include <cstdint>
#include <deque>
#include <optional>

namespace talweg::cli {

// How often a process that has failed is started again.
struct RestartPolicy {
  uint32_t count_max = 0;  // In any window.
  int64_t window_ns = 0;
  // The pause before the first restart. It doubles with each further restart in a window.
  int64_t pause_min_ns = 0;
  int64_t pause_max_ns = 0;
};

// Counts the restarts of one process or node. Has no clock, and starts nothing.
class Restarts {
 public:
  explicit Restarts(const RestartPolicy& policy) : policy_(policy) {}

  // Call it after a failure. Returns when to start again; nullopt: it has failed too often.
  std::optional<int64_t> OnFailure(int64_t now_ns);
  // Returns how many restarts were in the window that ends now.
  uint32_t count(int64_t now_ns) const;
  const RestartPolicy& policy() const { return policy_; }

 private:
  RestartPolicy policy_;
  std::deque<int64_t> failures_ns_;  // The failures that led to a restart.
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_RESTARTS_H_
