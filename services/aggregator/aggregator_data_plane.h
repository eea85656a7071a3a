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

// The aggregator without its control plane: a core for each job, and the jobs' memory, sums and
// connections.
//
// A connection begins in the Lobby, and moves to JobConnections when its job is known. From then on
// its frames go to the job's core. EffectPerformer performs the core's effects, and SumTurns
// chooses the job whose sum is next.
//
// A Poller of the data thread's loop. All calls are on that thread. `transport` and `clock` outlive
// this object. Nothing blocks, unless DataPlaneMachine::memory does.
class AggregatorDataPlane final : public runtime::Poller, private transport::EventSink {
 public:
  using Totals = DataPlaneTotals;

  AggregatorDataPlane(DataPlaneOptions options, transport::Transport* transport,
                      const runtime::Clock* clock, const DataPlaneMachine& machine = {});
  // Closes all connections.
  ~AggregatorDataPlane() override;

  void OnJobView(const std::string& job_name, const view::View& view,
                 const view::JobQuota& quota = {}, const view::Gone& gone = {});
  // The job's quota has changed. Ignores unknown jobs.
  void OnJobQuota(JobId job, const view::JobQuota& quota);
  void OnJobClosed(JobId job, const std::string& text);
  // Ends every job with this text. Serves later jobs as `incarnation`.
  void Restart(Incarnation incarnation, const std::string& text);

  int Poll() override;
  bool PrepareToSleep() override;
  // Call it a few times a second. Handles notices, time limits and jobs that are over.
  void Tick();

  std::vector<const aggregation::AggregatorCore*> jobs()
      const;  // By id, with jobs that are closing.
  // Returns jobs whose life here has ended, because Restart() ended it or the same job has begun
  // again. They are kept until all their connections are closed.
  std::vector<const aggregation::AggregatorCore*> leaving_jobs() const;
  // Returns the job that the connection has said Hello to, or null before that.
  const aggregation::AggregatorCore* JobOf(ConnectionId connection) const;
  // Returns the bytes that counted towards the job's share of this thread.
  uint64_t ServedBytes(JobId job) const { return turns_.ServedBytes(job); }
  // Returns the bytes of the slots and results that the job holds. 0: no such job.
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

  // Returns why the member `peer` may not connect, or "" if it may. It may not if it has departed
  // from the job or never was in it, or if the job is over. A member of a view that has not come
  // here yet may.
  std::string WhyRefused(const transport::PeerIdentity& peer) const;
  // Moves the connection to its job, if the job is known, else has the lobby hold it.
  void OnHello(ConnectionId id, const wire::Frame& hello, std::span<const std::byte> bytes);
  void OnJobFrame(ConnectionId id, JobConnections::Entry& entry, std::span<const std::byte> bytes);
  void Flush();
  // A peer that sends but never reads must not make this aggregator keep more and more for it.
  void CloseIfDeaf(ConnectionId id);
  // Tells the link how many bytes jobs have moved, and gives back the credit for which there is
  // room. Credit that found no room is tried again if another lane has made room since, or if
  // `look_again`.
  void SettleLink(bool look_again);
  // This life of the job is over. Keeps the job until its members have been told.
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
  SharedLink own_link_;    // Used if the process has no shared link.
  SharedLink::Lane lane_;  // Outlives the jobs.
  SumTurns turns_;         // Which of jobs_ has the next sum.
  SumMaker sums_;
  std::map<JobId, std::unique_ptr<ServedJob>> jobs_;
  // Jobs whose life here has ended (leaving_jobs()). They still tell their members so.
  std::vector<std::unique_ptr<ServedJob>> leaving_;
  Lobby lobby_;
  JobConnections connections_;
  EffectPerformer performer_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_H_
