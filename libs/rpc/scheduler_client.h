// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SCHEDULER_CLIENT_H_
#define TALWEG_LIBS_RPC_SCHEDULER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/base/ids.h"
#include "libs/membership/records.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/scheduler_events.h"
#include "libs/rpc/version.h"
#include "libs/view/view.h"

namespace talweg::rpc {

// How a process talks to the scheduler.
struct SchedulerLinkOptions {
  std::string address;                      // "host:port", "[::1]:7070", "unix:/path".
  int64_t call_timeout_ns = 5'000'000'000;  // Every call's.
  // The first Join or RegisterAggregator is retried for so long; then JoinRefused or
  // RegistrationRefused follows.
  int64_t join_timeout_ns = 10'000'000'000;
  int64_t backoff_min_ns = 50'000'000;
  int64_t backoff_max_ns = 2'000'000'000;
  // How often the lease is renewed; at least twice in its duration. 0: five times.
  int64_t renew_ns = 0;
  uint64_t seed = 0;       // For the jitter of the back-off: for example, the incarnation.
  std::string job_secret;  // Empty: none.
  std::shared_ptr<const Credentials> credentials = {};  // Null: no TLS.
  Version version;
};

struct JoinSpec {
  std::string job_name;
  membership::JobSpec spec;
  view::ViewMember member;         // The caller draws the incarnation.
  std::string data_security = {};  // Empty: the process carries no data over a network.
  bool not_after_finish = false;   // membership::JoinRequest has it.
};

// An agent's membership in one job: joins, keeps the lease, watches views, and attaches again after
// a restart of the scheduler or a broken connection, with back-off.
//
// Has threads of its own. One of them calls `on_event`, one call at a time. `on_event` must not
// block (post to a mailbox), nor call this object. Any thread may call the other methods. They do
// not block, unless their comment says so.
class SchedulerClient {
 public:
  using OnEvent = std::function<void(MemberEvent)>;

  SchedulerClient(SchedulerLinkOptions options, OnEvent on_event);
  // Ends all calls and threads; no event follows. Without an earlier Leave, the scheduler declares
  // the member lost.
  ~SchedulerClient();

  SchedulerClient(const SchedulerClient&) = delete;
  SchedulerClient& operator=(const SchedulerClient&) = delete;

  // Call it once.
  void JoinJob(JoinSpec spec);

  // A rank of this node has died: the scheduler applies the job's loss policy to this member.
  void ReportLostRank(Rank rank, std::string text);
  // This node cannot go on, though all its ranks live. The same policy applies.
  void ReportLostSelf(std::string text);
  // An aggregator cannot be reached. The scheduler only shows this to people; it decides nothing by
  // it.
  void ReportUnreachableAggregator(Incarnation aggregator, std::string text);

  void Quiesced(uint64_t id, uint64_t step);
  // Whether all ranks of this node are connected; false before the first call. A running job lets
  // this node in when they are.
  void SetRanksAttached(bool attached);
  // Whether the ranks can take part in steps at once; true before the first call. A running job
  // lets this node in when they can.
  void SetRanksReady(bool ready);
  // Whether the ranks have the training state that the other members have; false before the first
  // call. Shown by GetJob.
  void SetRanksHaveState(bool have_state);

  enum class LeaveReason : uint8_t {
    kFinished,  // All ranks are done.
    kStopped,   // Stopped while ranks still work: the job has lost a member.
  };
  // Blocks until the scheduler has answered, at most for `timeout_ns`. Ends the lease and the
  // watch; no event follows. Returns OK if there was nothing to leave.
  absl::Status Leave(LeaveReason reason, std::string text, int64_t timeout_ns);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// --------------------------------------------------------------------------------------------------

// An aggregator's place in the scheduler's pool. Threads and events are as in SchedulerClient.
class AggregatorRegistration {
 public:
  using OnEvent = std::function<void(AggregatorEvent)>;

  AggregatorRegistration(SchedulerLinkOptions options, OnEvent on_event);
  // Like ~SchedulerClient. Without an earlier Deregister, the scheduler declares the aggregator
  // lost.
  ~AggregatorRegistration();

  AggregatorRegistration(const AggregatorRegistration&) = delete;
  AggregatorRegistration& operator=(const AggregatorRegistration&) = delete;

  // Call it once.
  void Register(view::ViewAggregator aggregator);

  // Asks the scheduler for no further jobs. Blocks at most for `timeout_ns`. Returns how many
  // running jobs still use this aggregator (JobClosed follows for each).
  absl::StatusOr<uint32_t> Drain(std::string text, int64_t timeout_ns);
  // Leaves the pool, like SchedulerClient::Leave. Jobs that still use this aggregator lose it.
  absl::Status Deregister(std::string text, int64_t timeout_ns);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SCHEDULER_CLIENT_H_
