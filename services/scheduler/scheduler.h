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
  std::string job_secret;             // Whoever joins or registers shows it; empty: anybody may.
  std::string data_security = "any";  // Core::SetDataSecurity.
  std::string quotas_path;            // File with rules on jobs and tenants; empty: none.
  // What Shutdown gives calls in progress.
  int64_t drain_timeout_ns = 5'000'000'000;
};

// The scheduler daemon: the scheduler core and its store behind gRPC.
//
// Lives on the thread of `loop`, which owns the core and the store; gRPC's threads only post to it.
// The loop blocks while the store syncs. Made, and destroyed, while the loop does not run, or on
// its thread.
class Scheduler {
 public:
  // Loads the store, binds, serves as soon as the loop runs. `on_failure` is called on the loop's
  // thread when the store fails: nothing more is announced or answered, and the owner should end.
  // `clock` and `loop` outlive the Scheduler.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Start(
      const SchedulerOptions& options, std::unique_ptr<store::Store> store,
      const runtime::Clock* clock, runtime::EventLoop* loop,
      std::function<void(const absl::Status&)> on_failure);
  // Without Shutdown before: as a crash would, but for calls in progress, which are cancelled.
  ~Scheduler();

  // "host:port" that others connect to.
  const std::string& address() const;
  // A sentence for the log when more than this machine can connect; else "".
  const std::string& warning() const;

  // Ends watch streams with UNAVAILABLE, upon which clients come back to the next scheduler, and
  // the server. Loses nobody. Blocks at most the drain timeout.
  void Shutdown();

 private:
  class Impl;
  explicit Scheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_SCHEDULER_H_
