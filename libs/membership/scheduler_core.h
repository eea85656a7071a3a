// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_H_
#define TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/admission.h"
#include "libs/membership/aggregator_pool.h"
#include "libs/membership/effects.h"
#include "libs/membership/job_life.h"
#include "libs/membership/job_table.h"
#include "libs/membership/leases.h"
#include "libs/membership/live_job.h"
#include "libs/membership/next_view.h"
#include "libs/membership/numbers.h"
#include "libs/membership/quotas.h"
#include "libs/membership/records.h"
#include "libs/membership/requests.h"
#include "libs/membership/streams.h"
#include "libs/membership/turn.h"
#include "libs/view/view.h"

namespace talweg::membership {

// Who is in which job: the scheduler's core (docs/protocol.md, section 2). It finds the job and
// member that an event concerns; its parts do the rest.
//
//   job:     kForming --gathered--> kRunning --a loss--> kRunning (next epoch) or kFailed
//               |                               |          all members left --> kFinished
//               +--- join deadline, all gone ---+--> kFailed, kFinished
//   member:  kJoined --lease lapses, stream breaks, its own word--> kLost    --Leave--> kLeft
//
// Events and the time go in, effects come out; no clock, lock or I/O. The same events give the same
// effects. The caller performs an event's effects in order, and only then passes on the answer that
// the event returned, so that nobody hears of anything that is not stored.
class SchedulerCore {
 public:
  // Continues from the store's records; leases begin anew.
  SchedulerCore(const Config& config, const Snapshot& snapshot, int64_t now_ns,
                std::vector<Effect>& out);
  SchedulerCore(const SchedulerCore&) = delete;
  SchedulerCore& operator=(const SchedulerCore&) = delete;

  JoinAnswer OnJoin(const JoinRequest& request, int64_t now_ns, std::vector<Effect>& out);
  // What the caller does not say about its ranks stays as it last said.
  Answer OnRenew(const Caller& caller, const RanksWord& ranks, int64_t now_ns,
                 std::vector<Effect>& out);
  Answer OnLeave(const Caller& caller, LeaveReason reason, const std::string& text, int64_t now_ns,
                 std::vector<Effect>& out);
  Answer OnReportLost(const Caller& caller, const Lost& lost, const std::string& text,
                      int64_t now_ns, std::vector<Effect>& out);
  // The job begins with `begin_members`, as no more come. `has_begun`: whether it has a view now.
  Answer OnLowerBeginMembers(const std::string& job_name, uint32_t begin_members, bool& has_begun,
                             int64_t now_ns, std::vector<Effect>& out);
  // `step`: the latest step that one of the caller's ranks is in, or the step that it was told.
  Answer OnQuiesced(const Caller& caller, QuiesceId quiesce, uint64_t step, int64_t now_ns,
                    std::vector<Effect>& out);
  // If not ok, the caller ends the stream. Forgets what the member said about its ranks before.
  Answer OnMemberAttached(StreamId stream, const Caller& caller, const RanksWord& ranks,
                          int64_t now_ns, std::vector<Effect>& out);

  // The aggregator has drawn `secret`, and shows it in later calls.
  Answer OnRegister(const view::ViewAggregator& aggregator, const SecretHash& secret,
                    int64_t now_ns, std::vector<Effect>& out);
  Answer OnRenewAggregator(const PoolCaller& caller, int64_t now_ns, std::vector<Effect>& out);
  DeregisterAnswer OnDeregister(const PoolCaller& caller, bool leave, const std::string& text,
                                int64_t now_ns, std::vector<Effect>& out);
  Answer OnAggregatorAttached(StreamId stream, const PoolCaller& caller,
                              const std::vector<HeldJob>& held, int64_t now_ns,
                              std::vector<Effect>& out, bool knows_standbys = false);

  // Sets the rules. Members that are in stay.
  void OnQuotas(Quotas quotas, int64_t now_ns, std::vector<Effect>& out);

  // The peer's end of the stream is gone. Unknown and replaced streams are ignored. `shut_out`: why
  // the scheduler's own process has ended the stream, or may have, or "". Such an end is not a
  // loss: the peer has one lease's time to open another stream.
  void OnStreamBroken(StreamId stream, int64_t now_ns, std::vector<Effect>& out,
                      const std::string& shut_out = "");
  void OnTick(int64_t now_ns, std::vector<Effect>& out);

  const Config& config() const { return config_; }
  uint64_t start_count() const { return numbers_.start_count(); }
  const std::map<JobId, LiveJob>& jobs() const { return jobs_.all(); }
  const std::map<Incarnation, LiveAggregator>& aggregators() const { return pool_.all(); }
  Quota QuotaOf(const LiveJob& job) const { return admission_.QuotaOf(job); }
  // What the rules say about every job of the tenant.
  Quota TenantQuota(const std::string& tenant) const { return admission_.TenantQuota(tenant); }
  TenantUse UseOf(const std::string& tenant) const { return admission_.UseOf(tenant); }
  // Oldest first.
  const std::vector<WaitingJoin>& waiting() const { return admission_.waiting(); }
  // What a forming job waits for; why one is over; or "".
  std::string StateText(const LiveJob& job) const;
  // Aggregators that could serve a running job and are not in its view, by name.
  std::vector<SpareAggregator> SparesOf(const LiveJob& job) const {
    return membership::SparesOf(job, pool_);
  }

 private:
  template <typename Body>
  auto Perform(int64_t now_ns, std::vector<Effect>& out, const Body& body) {
    ObserveGap(now_ns);
    Turn turn(now_ns);
    auto answer = body(turn);
    Finish(turn, out);
    return answer;
  }
  // Advances the jobs that the turn has touched, and outputs its effects.
  void Finish(Turn& turn, std::vector<Effect>& out);
  void ObserveGap(int64_t now_ns);
  void ExpireLeases(Turn& turn);

  JoinAnswer Join(const JoinRequest& request, Turn& turn);
  Answer MakeRoom(LiveJob& job, const JoinRequest& request, Turn& turn);
  Answer Find(const Caller& caller, Turn& turn, LiveJob*& job, LiveMember*& member);
  void Attach(StreamId stream, LiveJob& job, LiveMember& member, Turn& turn);
  Answer CheckHeldJobs(const std::vector<HeldJob>& held, int64_t now_ns) const;

  const Config config_;
  Leases leases_;
  Streams streams_;
  Numbers numbers_;
  JobTable jobs_;
  AggregatorPool pool_;
  Admission admission_;
  JobLife life_;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_H_
