// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_H_
#define TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "libs/aggregation/aggregator_core.h"
#include "libs/aggregation/fair_share.h"
#include "libs/aggregation/link_share.h"
#include "libs/aggregation/result_queue.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/transport/transport.h"
#include "services/aggregator/credit_meter.h"
#include "services/aggregator/outbox.h"
#include "services/aggregator/slot_memory.h"
#include "services/aggregator/summer.h"

namespace talweg::aggregator {

struct DataPlaneOptions {
  std::string name;  // The aggregator's, for texts.
  Incarnation incarnation;
  uint64_t credit_bytes = 8 * kMiB;
  uint64_t memory_bytes_max = kGiB;
  // So much of results may be under way on a connection before others wait for their turn.
  uint64_t results_window_bytes = aggregation::ResultQueue::kNoWindow;
  // How long a Hello waits for the view of a job that is not known yet: agents may hear of a view
  // before this aggregator does.
  int64_t unknown_job_hold_ns = 5'000'000'000;
  // A connection that has not said Hello by then is closed.
  int64_t hello_timeout_ns = 10'000'000'000;
  uint64_t refusals_max = 10'000;  // A connection with more of them is closed.
  // Connections of one member, and of one address that has shown no member's key; and of all that
  // have not come to a job. 0: any number.
  size_t peer_connections_max = 256;
  size_t unproven_connections_max = 256;
  // What one pass does before it looks at the network again.
  int events_per_poll = 64;
  uint64_t sum_bytes_per_poll = 8 * kMiB;  // Read by sums.
  SlotLimits slots;
};

// What a data plane computes with. Both outlive it.
struct DataPlaneMachine {
  const Summer* summer = &KernelSummer();
  MemorySource* memory = &AnonymousMemory();
};

// What a connection of a job has moved.
struct ConnectionTraffic {
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
};

// The aggregator without its control plane: one core a job, their memory, sums and connections.
//
// A Poller of the data thread's loop; everything is called on that thread. Transport and clock
// outlive it. Nothing blocks but memory that is made ready when a tensor is declared.
class AggregatorDataPlane final : public runtime::Poller, private transport::EventSink {
 public:
  struct Totals {
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    uint64_t unreadable_frames = 0;  // Also on connections that never said Hello.
    uint64_t connections = 0;        // Accepted so far.
    uint64_t impostors = 0;          // Hellos of another member than the connection's key.
    uint64_t hellos_for_unknown_jobs = 0;
    uint64_t connections_over_limit = 0;  // Closed or refused, as there were as many as may be.
    uint64_t results_queued = 0;          // Did not leave at once.
    uint64_t results_hurried = 0;         // Were queued, and left before a FenceAck.
    uint64_t credit_held_bytes = 0;       // Came back later, as jobs share the link.
    aggregation::Counters ended;          // What jobs that are gone have counted.
  };

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
  uint64_t ServedBytes(JobId job) const { return fair_share_.ServedBytes(job); }
  // What slots and results take that a job has asked for and not released. 0: no such job.
  uint64_t HeldBytes(JobId job) const;
  ConnectionTraffic TrafficOf(ConnectionId connection) const;
  Totals totals() const { return totals_; }
  const aggregation::MemoryBudget& budget() const { return budget_; }
  const DataPlaneOptions& options() const { return options_; }

 private:
  struct PendingSum {
    aggregation::SumId id;
    DType dtype = DType::kUnspecified;
    Op op = Op::kUnspecified;  // kBroadcast: a copy.
    size_t offset_bytes = 0;
    size_t length_bytes = 0;
    std::vector<SlotMemory> inputs;  // Invalid where a tensor is empty.
    std::vector<float> rank_counts;
    uint32_t rank_count_total = 0;
    SlotMemory result;
  };
  struct ServedJob {
    ServedJob(aggregation::AggregatorCoreConfig config, aggregation::MemoryBudget* budget,
              SlotPool results)
        : core(std::move(config), budget), result_pool(std::move(results)) {}

    aggregation::AggregatorCore core;
    aggregation::AggregatorCore::Effects effects;  // To perform.
    std::map<view::MemberIdentity, SlotPool> slot_pools;
    SlotPool result_pool;
    std::unordered_map<uint64_t, SlotMemory> memory;  // By AllocationId.
    std::deque<PendingSum> sums;
    // Connections over the link: those whose member has more to send, or gets results; those whose
    // credit is held, in the order in which it is given back.
    size_t wanting_count = 0;
    std::deque<ConnectionId> held;
    bool is_held = false;  // There was no room for all of them when it was looked at.
  };
  // A result that is written to a member, or waits to be.
  struct ResultWrite {
    SlotMemory source;
    uint32_t length_bytes = 0;
    bool has_left = false;
  };
  struct Connection {
    explicit Connection(uint64_t results_window_bytes) : results(results_window_bytes) {}

    ServedJob* job = nullptr;  // Null before its Hello has been handed to a job.
    std::unique_ptr<Outbox> outbox;
    CreditMeter credit_meter;
    std::string host;                               // Where it comes from.
    std::optional<transport::PeerIdentity> member;  // That it has proven to be.
    std::string over_limit;   // Not empty: there are too many, so it is refused with this.
    bool has_news = false;    // In unflushed_.
    int64_t deadline_ns = 0;  // While it has no job: closed then.
    bool refused = false;
    std::vector<std::byte> held_hello;  // For a job that is not known yet.
    JobId held_job;
    std::unordered_map<uint64_t, ResultWrite> writes;  // By WriteId.
    aggregation::ResultQueue results;
    ConnectionTraffic traffic;
    bool over_link = false;  // Else it comes through this machine's memory.
    bool more_wait = false;  // Its member has said so with its last contributions.
    bool wants_link = false;
    uint64_t held_credit_bytes = 0;
  };

  // transport::EventSink
  void OnAccepted(ConnectionId connection) override;
  void OnConnected(ConnectionId connection) override;
  void OnDisconnected(ConnectionId connection, const std::string& reason) override;
  void OnFrame(ConnectionId connection, std::span<const std::byte> frame) override;
  void OnWriteDone(ConnectionId connection, uint64_t context) override;

  // Why whoever proves that it is this member may not connect; "" if it may. One that is not in the
  // job's view, or whose job is over, may not.
  std::string WhyRefused(const transport::PeerIdentity& peer) const;
  void OnUnreadable(ConnectionId id, Connection& connection, std::span<const std::byte> bytes,
                    const std::string& text);
  void OnFirstFrame(ConnectionId id, Connection& connection, std::span<const std::byte> bytes,
                    const wire::Frame& frame);
  // Why this Hello is not of the member that the connection's key is for; "" if it is, or if the
  // transport has its peers prove nothing.
  std::string ImpostureOf(ConnectionId id, const wire::Header& header,
                          const wire::Hello& hello) const;
  void RefuseConnection(ConnectionId id, Connection& connection, JobId job, Epoch epoch,
                        wire::WelcomeStatus status, std::string text);
  // The text that refuses a Hello for a job that is not served here.
  std::string WhyUnknown(JobId job) const;
  void CloseConnection(ConnectionId id, const std::string& reason);
  void Forget(std::map<ConnectionId, Connection>::iterator connection);
  void MarkUnflushed(ConnectionId id, Connection& connection);
  void Flush();
  void TellKeptCredit();

  // Performs what the core asks for until it asks for no more.
  void Perform(ServedJob& job);
  void Do(ServedJob& job, const aggregation::Send& effect);
  void Do(ServedJob& job, const aggregation::ReturnCredit& effect);
  void Do(ServedJob& job, const aggregation::AllocateMemory& effect);
  void Do(ServedJob& job, const aggregation::ReleaseMemory& effect);
  void Do(ServedJob& job, const aggregation::StoreInline& effect);
  void Do(ServedJob& job, const aggregation::Sum& effect);
  void Do(ServedJob& job, const aggregation::CopyResult& effect);
  void Do(ServedJob& job, const aggregation::SendResult& effect);
  void Do(ServedJob& job, const aggregation::CloseConnection& effect);
  void PostResult(Connection& connection, const aggregation::SendResult& effect);
  SlotPool NewPool() const { return {transport_, machine_.memory, options_.slots}; }
  SlotPool& SlotPoolOf(ServedJob& job, const view::MemberIdentity& member);
  SlotMemory MemoryOf(const ServedJob& job, aggregation::AllocationId id) const;
  void AddSum(ServedJob& job, PendingSum sum);
  // What the connection has moved over the link, while jobs may have to share that.
  bool SharesLink(const Connection& connection) const {
    return connection.over_link && link_share_.job_count() > 1;
  }
  void UpdateWants(Connection& connection);
  void GiveCredit(ConnectionId id, Connection& connection, uint64_t bytes);
  // Gives back the credit for which there is room.
  void GiveHeldCredit();
  void GiveHeldCredit(ServedJob& job);
  int SumSome();
  void SumOne(ServedJob& job);
  void CloseJob(ServedJob& job, const std::string& text);
  void SetQuota(ServedJob& job, const view::JobQuota& quota);
  // Whether they count together: as one member's, or as one address's without a member's key.
  static bool IsOfPeer(const Connection& one, const Connection& other);
  std::string WhyOverLimit(const Connection& connection) const;
  // Closes an older connection, or has this one refused, where there are too many.
  void LimitConnections(ConnectionId id, Connection& connection);
  void ForgetFinishedJobs();

  DataPlaneOptions options_;
  transport::Transport* const transport_;
  const runtime::Clock* const clock_;
  const DataPlaneMachine machine_;
  aggregation::MemoryBudget budget_;
  std::map<JobId, std::unique_ptr<ServedJob>> jobs_;
  // Jobs of former incarnations, or that have begun again, which are telling their members so.
  std::vector<std::unique_ptr<ServedJob>> leaving_;
  // The epoch in which each was over here, of the last kJobsOverMax: a scheduler whose store is
  // older may bring them back.
  std::map<JobId, Epoch> over_;
  std::map<ConnectionId, Connection> connections_;
  std::vector<ConnectionId> unflushed_;
  aggregation::FairShare fair_share_;  // Whose sum is next, by jobs_.
  aggregation::LinkShare link_share_;  // Whose credit waits, by jobs_.
  std::map<std::string, std::shared_ptr<aggregation::PlaceBudget>> tenants_;
  bool has_held_credit_ = false;
  size_t sums_pending_ = 0;
  // The contributions of the frame that is being handled, for StoreInline.
  const std::vector<wire::Contribute>* contributions_ = nullptr;
  Connection* contributor_ = nullptr;
  Totals totals_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_H_
