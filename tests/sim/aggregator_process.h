// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_AGGREGATOR_PROCESS_H_
#define TALWEG_TESTS_SIM_AGGREGATOR_PROCESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/job.h"
#include "tests/sim/ledger.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/scheduler_process.h"

namespace talweg::sim {

// One life of an aggregator: a core for every job, the memory that they ask for, and what
// rpc::AggregatorRegistration does.
class AggregatorProcess : public Process {
 public:
  AggregatorProcess(Timeline* timeline, Trace* trace, Network* network, SchedulerProcess* scheduler,
                    HostIndex host, uint32_t place, Incarnation incarnation,
                    const Profile* profile);

  void Start();
  // Asks to be left out of views, and then to be forgotten.
  void Drain();
  // Run `strike` a little behind the next result that it sends, when some members may have it and
  // others not; or behind its next decision to finish or to abort a round.
  void AtDanger(std::function<void()> strike) { at_danger_ = std::move(strike); }
  void AtDecision(std::function<void()> strike) { at_decision_ = std::move(strike); }

  // --- Process.
  void OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) override;
  void OnLinkOpen(ConnectionId) override {}
  void OnLinkLost(ConnectionId connection, const std::string& reason) override;
  void OnWriteLanded(ConnectionId connection, uint64_t context) override;
  uint64_t* Target(ConnectionId connection, wire::RemoteRef ref, uint64_t cells) override;

  const std::map<JobId, std::unique_ptr<aggregation::Job>>& jobs() const { return jobs_; }
  const std::string& name() const { return name_; }
  uint64_t memory_bytes() const;
  const aggregation::MemoryBudget& budget() const { return budget_; }
  // Of cores whose job is over.
  const std::vector<aggregation::Counters>& past_counters() const { return past_counters_; }

 private:
  using MemoryName = std::pair<JobId, aggregation::AllocationId>;

  void Run(JobId job, const std::function<void(aggregation::Job&, aggregation::Job::Effects&)>& on);
  void Perform(JobId job, aggregation::Job::Effects& effects);
  void Perform(JobId job, const aggregation::SendResult& send);
  void Perform(JobId job, const aggregation::AllocateMemory& allocate);
  void Strike(std::function<void()>& strike);
  void CountLoss(JobId job, ConnectionId connection);
  void SumLater(JobId job, const aggregation::SumId& id, std::function<void()> work);
  void SendEntry(JobId job, const aggregation::Send& send);
  // What an entry says, for the trace.
  template <typename Entry>
  std::string Details(JobId job, const Entry& entry) const;
  std::string TensorName(JobId job, TensorKey key) const;
  void CheckMemory(JobId job) const;
  void CheckForgotten(JobId job) const;
  void CheckOnlyOne(ConnectionId connection, const wire::Welcome& entry);
  void CheckWriter(JobId job, ConnectionId connection, const wire::Declared& entry) const;
  void CheckFenced(JobId job) const;
  void NotePresent(JobId job);
  void CheckAbsence(JobId job, const wire::Waiting& notice) const;
  void DeliverConfused(JobId job, const wire::Frame& frame, const std::function<void()>& deliver);
  void OnAggregatorMessage(const membership::AggregatorMessage& message);
  void Register();
  void Attach();
  void Renew();
  void Tick();
  void Later(int64_t delay_ns, std::function<void()> event);

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  SchedulerProcess* const scheduler_;
  const HostIndex host_;
  const Incarnation incarnation_;
  const std::string name_;
  const Profile* const profile_;
  aggregation::MemoryBudget budget_;
  std::map<JobId, std::unique_ptr<aggregation::Job>> jobs_;
  std::map<JobId, std::string> job_names_;
  std::map<ConnectionId, JobId> connection_jobs_;
  std::set<ConnectionId> refused_;
  std::map<MemoryName, std::shared_ptr<Cells>> memory_;
  std::map<uint64_t, MemoryName> regions_;
  std::map<uint64_t, MemberIdentity> writers_;  // By the key of a region.
  std::map<uint64_t, std::pair<JobId, aggregation::WriteId>> writes_;
  std::map<std::pair<JobId, aggregation::AllocationId>, int64_t> result_free_ns_;
  std::map<ConnectionId, uint64_t> credit_;
  // Until when each node was connected in the present epoch, or when that began.
  std::map<std::pair<JobId, NodeRank>, std::pair<Epoch, int64_t>> present_;
  std::vector<aggregation::Counters> past_counters_;
  const wire::Frame* frame_ = nullptr;
  uint64_t next_region_ = 1;
  uint64_t next_write_ = 1;
  uint64_t attachment_ = 0;
  bool out_ = false;
  std::function<void()> at_danger_;
  std::function<void()> at_decision_;
  bool memory_changed_ = false;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGGREGATOR_PROCESS_H_
