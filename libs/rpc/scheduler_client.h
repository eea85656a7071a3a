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

// How a process keeps in touch with the scheduler.
struct SchedulerLinkOptions {
  std::string address;                      // "host:port", "[::1]:7070", "unix:/path".
  int64_t call_timeout_ns = 5'000'000'000;  // Every call's.
  // The first Join or RegisterAggregator is tried again for so long, then refused.
  int64_t join_timeout_ns = 10'000'000'000;
  int64_t backoff_min_ns = 50'000'000;
  int64_t backoff_max_ns = 2'000'000'000;
  // How often the lease is renewed, at least twice in its length; 0: five times.
  int64_t renew_ns = 0;
  uint64_t seed = 0;       // The back-off's jitter's: the incarnation, say.
  std::string job_secret;  // Empty: none.
  std::shared_ptr<const Credentials> credentials = {};  // Null: no TLS.
  Version version;
};

struct JoinSpec {
  std::string job_name;
  membership::JobSpec spec;
  view::ViewMember member;         // Incarnation drawn by the caller; see ViewMember for the rest.
  std::string data_security = {};  // Empty: the process carries no data over a network.
};

// An agent's membership in one job: joins, keeps the lease, watches views, and attaches again after
// a restart of the scheduler or a broken connection, with back-off.
//
// Has threads of its own. `on_event` is called on one of them, one call at a time; it must not
// block (post to a mailbox) and must not call back. The other methods may be called from any thread
// and do not block, unless said otherwise.
class SchedulerClient {
 public:
  using OnEvent = std::function<void(MemberEvent)>;

  SchedulerClient(SchedulerLinkOptions options, OnEvent on_event);
  // Ends all calls and threads; no event follows. Without Leave before, the scheduler takes it
  // for a loss.
  ~SchedulerClient();

  SchedulerClient(const SchedulerClient&) = delete;
  SchedulerClient& operator=(const SchedulerClient&) = delete;

  // Once.
  void JoinJob(JoinSpec spec);

  // A rank of this node has died: the scheduler applies the job's loss policy to this member.
  void ReportLostRank(Rank rank, std::string text);
  // This node cannot go on, though all its ranks live: as above.
  void ReportLostSelf(std::string text);
  // A peer cannot be reached. Noted by the scheduler for people; decides nothing.
  void ReportUnreachableAggregator(Incarnation aggregator, std::string text);

  void Quiesced(uint64_t id, uint64_t step);
  // Whether all ranks of this node are connected; none are before the first call. A running job
  // lets this node in when they are.
  void SetRanksAttached(bool attached);
  // Whether they could take part in steps at once; at first they could. Likewise.
  void SetRanksReady(bool ready);
  // Whether they have what the others have of the training's state; at first they have not. Others
  // are told who ask.
  void SetRanksHaveState(bool have_state);

  enum class LeaveReason : uint8_t {
    kFinished,  // All ranks are done.
    kStopped,   // Stopped while ranks still work: a loss for the job.
  };
  // Blocks until the scheduler has heard it, at most `timeout_ns`. Ends the lease and the watch; no
  // event follows. OK when there was nothing to leave.
  absl::Status Leave(LeaveReason reason, std::string text, int64_t timeout_ns);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// --------------------------------------------------------------------------------------------------

// An aggregator's place in the scheduler's pool. Threads and events as of SchedulerClient.
class AggregatorRegistration {
 public:
  using OnEvent = std::function<void(AggregatorEvent)>;

  AggregatorRegistration(SchedulerLinkOptions options, OnEvent on_event);
  // As ~SchedulerClient: without Deregister before, a loss.
  ~AggregatorRegistration();

  AggregatorRegistration(const AggregatorRegistration&) = delete;
  AggregatorRegistration& operator=(const AggregatorRegistration&) = delete;

  // Once.
  void Register(view::ViewAggregator aggregator);

  // Asks to be taken into no further job. Blocks at most `timeout_ns`; returns how many running
  // jobs still use it (JobClosed tells of each that ends).
  absl::StatusOr<uint32_t> Drain(std::string text, int64_t timeout_ns);
  // The last word; as SchedulerClient::Leave. A loss for the jobs that still use it.
  absl::Status Deregister(std::string text, int64_t timeout_ns);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SCHEDULER_CLIENT_H_
