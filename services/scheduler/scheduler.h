// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_SCHEDULER_H_
#define TALWEG_SERVICES_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/membership/scheduler_core.h"
#include "libs/rpc/server.h"
#include "libs/rpc/version.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/store/store.h"

namespace talweg::scheduler {

struct SchedulerOptions {
  rpc::ServerOptions server;
  membership::Config membership;
  rpc::Version version;
  // Agents and aggregators must show it; empty: anybody may join.
  std::string job_secret;
  std::string data_security = "any";  // SchedulerDriver::SetDataSecurity.
  std::string quotas_path;            // File with rules on jobs and tenants; empty: none.
  // How long Shutdown waits for calls in progress.
  int64_t drain_timeout_ns = 5'000'000'000;
};

// The scheduler daemon: the scheduler core and its store behind gRPC.
//
// The thread of `loop` owns the core and the store; gRPC's threads only post to it. The loop blocks
// while the store syncs. Make and destroy a Scheduler while the loop does not run, or on its
// thread.
class Scheduler {
 public:
  // Loads the store, binds, and serves as soon as the loop runs. If the store fails, calls
  // `on_failure` on the loop's thread. The scheduler then announces and answers nothing more, and
  // the process should end. `clock` and `loop` outlive the Scheduler.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Start(
      const SchedulerOptions& options, std::unique_ptr<store::Store> store,
      const runtime::Clock* clock, runtime::EventLoop* loop,
      std::function<void(const absl::Status&)> on_failure);
  // Without an earlier Shutdown it ends like a crash, but cancels calls in progress.
  ~Scheduler();

  // Returns the address that others connect to: "host:port".
  const std::string& address() const;
  // Returns a warning for the log if other machines can connect, else "".
  const std::string& warning() const;

  // Ends watch streams with UNAVAILABLE, so that clients come back to the next scheduler, then the
  // server. No member is lost. Blocks at most for `drain_timeout_ns`.
  void Shutdown();

 private:
  class Impl;
  explicit Scheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_SCHEDULER_H_
