// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_H_
#define TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libs/aggregation/aggregator_core.h"
#include "libs/aggregation/memory_budget.h"
#include "libs/base/ids.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/transport/transport.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"
#include "services/aggregator/data_plane_options.h"
#include "services/aggregator/effect_performer.h"
#include "services/aggregator/ended_jobs.h"
#include "services/aggregator/held_credit.h"
#include "services/aggregator/job_connections.h"
#include "services/aggregator/lobby.h"
#include "services/aggregator/served_job.h"
#include "services/aggregator/shared_link.h"
#include "services/aggregator/sum_turns.h"

namespace talweg::aggregator {

// The aggregator without its control plane: one core a job, their memory, sums and connections.
//
// A connection begins in the Lobby and goes on to JobConnections when its job is known. What comes
// over it there goes to the job's core. EffectPerformer does what the core asks for, and SumTurns
// says whose sum is next.
//
// A Poller of the data thread's loop; everything is called on that thread. Transport and clock
// outlive it. Nothing blocks but memory that is made ready when a tensor is declared.
class AggregatorDataPlane final : public runtime::Poller, private transport::EventSink {
 public:
  using Totals = DataPlaneTotals;

  AggregatorDataPlane(DataPlaneOptions options, transport::Transport* transport,
                      const runtime::Clock* clock, const DataPlaneMachine& machine = {});
  // Closes all connections.
  ~AggregatorDataPlane() override;

  void OnJobView(const std::string& job_name, const view::View& view,
                 const view::JobQuota& quota = {});
  // The rules have changed. Unknown jobs are ignored.
  void OnJobQuota(JobId job, const view::JobQuota& quota);
  void OnJobClosed(JobId job, const std::string& text);
  // Every job ends with this text; those that come are served by another incarnation.
  void Restart(Incarnation incarnation, const std::string& text);

  int Poll() override;
  bool PrepareToSleep() override;
  // Notices, time limits, jobs that are over. A few times a second.
  void Tick();

  std::vector<const aggregation::AggregatorCore*> jobs()
      const;  // By id; those that are closing included.
  // Jobs of former incarnations, until all their connections are closed.
  std::vector<const aggregation::AggregatorCore*> leaving_jobs() const;
  // That a connection has said Hello to; null before.
  const aggregation::AggregatorCore* JobOf(ConnectionId connection) const;
  // What counted towards the job's share of this thread.
  uint64_t ServedBytes(JobId job) const { return turns_.ServedBytes(job); }
  // What slots and results take that a job has asked for and not released. 0: no such job.
  uint64_t HeldBytes(JobId job) const;
  ConnectionTraffic TrafficOf(ConnectionId connection) const;
  Totals totals() const { return totals_; }
  const aggregation::MemoryBudget& budget() const { return budget_; }
  const DataPlaneOptions& options() const { return options_; }

 private:
  // transport::EventSink
  void OnAccepted(ConnectionId connection) override;
  void OnConnected(ConnectionId connection) override;
  void OnDisconnected(ConnectionId connection, const std::string& reason) override;
  void OnFrame(ConnectionId connection, std::span<const std::byte> frame) override;
  void OnWriteDone(ConnectionId connection, uint64_t context) override;

  // Why whoever proves that it is this member may not connect; "" if it may. One that is not in the
  // job's view, or whose job is over, may not.
  std::string WhyRefused(const transport::PeerIdentity& peer) const;
  // To its job, if that is known.
  void OnHello(ConnectionId id, const wire::Frame& hello, std::span<const std::byte> bytes);
  void OnJobFrame(ConnectionId id, JobConnections::Entry& entry, std::span<const std::byte> bytes);
  void Flush();
  // Tells the link what jobs have moved, and gives back the credit for which there is room. Where
  // there was none, and nobody has made some since, it is looked at again if `look_again`.
  void SettleLink(bool look_again);
  // The job begins again, or never: its members are being told.
  void LetLeave(std::unique_ptr<ServedJob> job);
  int SumSome();
  void CloseJob(ServedJob& job, const std::string& text);
  void SetQuota(ServedJob& job, const view::JobQuota& quota);
  void ForgetFinishedJobs();

  DataPlaneOptions options_;
  transport::Transport* const transport_;
  const runtime::Clock* const clock_;
  const DataPlaneMachine machine_;
  Totals totals_;
  aggregation::MemoryBudget budget_;
  std::map<std::string, std::shared_ptr<aggregation::PlaceBudget>> tenants_;
  EndedJobs ended_;
  SharedLink own_link_;    // If the process has none.
  SharedLink::Lane lane_;  // Outlives the jobs.
  SumTurns turns_;         // Whose sum is next, by jobs_.
  std::map<JobId, std::unique_ptr<ServedJob>> jobs_;
  // Jobs of former incarnations, or that have begun again, which are telling their members so.
  std::vector<std::unique_ptr<ServedJob>> leaving_;
  Lobby lobby_;
  JobConnections connections_;
  EffectPerformer performer_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_H_
