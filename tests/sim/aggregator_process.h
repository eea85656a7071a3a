// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_AGGREGATOR_PROCESS_H_
#define TALWEG_TESTS_SIM_AGGREGATOR_PROCESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/aggregator_core.h"
#include "services/aggregator/aggregator_data_plane.h"
#include "services/aggregator/aggregator_life.h"
#include "tests/sim/ledger.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/scheduler_process.h"
#include "tests/sim/sim_transport.h"

namespace talweg::sim {

// One life of an aggregator: the daemon's own AggregatorLife and AggregatorDataPlane on the
// simulated network, and the checks of them.
class AggregatorProcess : private TransportWatcher, private aggregator::MemorySource {
 public:
  struct Config {
    HostIndex host = 0;
    uint32_t place = 0;
    Incarnation incarnation;
    std::string host_id;
    const Profile* profile = nullptr;
    // The aggregator ends by itself: it is drained, or the scheduler refuses it.
    std::function<void(const AggregatorProcess* process)> on_ended;
  };

  AggregatorProcess(Timeline* timeline, Trace* trace, Network* network, SchedulerProcess* scheduler,
                    const Config& config);

  void Start();
  // Tells the aggregator to stop: it asks for no further jobs, waits for its jobs, says goodbye,
  // and ends.
  void Drain();
  // All memory that is reserved belongs to a job.
  void CheckMemory() const;
  // AtDanger runs `strike` a little after the next result that the aggregator sends, when some
  // members may have it and others not. AtDecision runs it after the next decision to finish or to
  // abort a round.
  void AtDanger(std::function<void()> strike) { at_danger_ = std::move(strike); }
  void AtDecision(std::function<void()> strike) { at_decision_ = std::move(strike); }

  // Its end of the network.
  Process* process() { return &transport_; }

  // Without those of former incarnations.
  std::vector<const aggregation::AggregatorCore*> jobs() const { return data_plane_.jobs(); }
  std::vector<const aggregation::AggregatorCore*> leaving_jobs() const {
    return data_plane_.leaving_jobs();
  }
  const std::string& name() const { return name_; }
  bool draining() const { return life_.state() != aggregator::AggregatorLife::State::kServing; }
  bool refused() const { return !life_.result().ok(); }
  // With the counters of jobs that are over.
  aggregator::AggregatorDataPlane::Totals totals() const { return data_plane_.totals(); }

 private:
  // The state of a job when nothing was under way.
  struct Seen {
    Epoch epoch;
    bool reports_complete = false;
    uint64_t held_bytes = 0;
  };

  // --- TransportWatcher.
  void OnWake() override;
  void OnFramePosted(ConnectionId connection, std::span<const std::byte> frame) override;
  void OnEvent(ConnectionId connection, std::span<const std::byte> frame, bool is_end,
               const std::function<void()>& deliver) override;
  void OnToken(const transport::TokenClaim& claim, const std::string& why) override;
  void OnLanding(wire::RemoteRef target, uint64_t bytes) override;

  // --- aggregator::MemorySource.
  void Map(size_t bytes, std::weak_ptr<const void> wanted, Then then) override;

  void Poll();
  void Tick();
  // Runs `act` on the daemon, and checks it before and after.
  void Run(const std::function<void()>& act);
  void Later(int64_t delay_ns, std::function<void()> event);
  void PollLater(uint64_t most_ns);
  void Strike(std::function<void()>& strike);
  template <typename Entry>
  void NoteSent(ConnectionId connection, const wire::Frame& frame, const Entry& entry);

  // aggregator_checks.cc
  void NotePresent();
  void CheckAfterwards();
  void CheckMemory(const aggregation::AggregatorCore& job, uint64_t held_bytes) const;
  // Checks that jobs use no more than the scheduler's quotas.
  void CheckPlaces() const;
  void CheckForgotten(const aggregation::AggregatorCore& job, ConnectionId connection) const;
  void CheckFenced(const aggregation::AggregatorCore& job) const;
  void CheckTokensAreSpent();
  void CheckDepartedStayOut() const;
  void CheckOnlyOne(ConnectionId connection, const wire::Welcome& entry);
  void CheckWriter(const aggregation::AggregatorCore& job, ConnectionId connection,
                   const wire::Declared& entry);
  void CheckAbsence(const aggregation::AggregatorCore& job, const wire::Waiting& notice) const;
  void NoteReceived(ConnectionId connection, const wire::Frame& frame);
  void CheckCredit(ConnectionId connection, const wire::Header& header);
  void CheckCreditIsTold();
  void DeliverConfused(const aggregation::AggregatorCore& job, const wire::Frame& frame,
                       const std::function<void()>& deliver);

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  SchedulerProcess* const scheduler_;
  const Config config_;
  const std::string name_;

  const SimClock clock_;
  CellMemory memory_;
  const CellSummer summer_;
  const CellCodec codec_;
  SimTransport transport_;
  aggregator::AggregatorDataPlane data_plane_;
  aggregator::AggregatorLife life_;

  bool poll_due_ = false;
  std::map<JobId, Seen> seen_;
  std::set<ConnectionId> refused_;
  // Bytes of contributions that have come in this epoch, and whose credit is not returned yet.
  struct Credit {
    uint64_t untold_bytes = 0;
    // At the last tick some was not returned, and none has been since.
    bool untold_at_tick = false;
  };
  std::map<ConnectionId, Credit> credit_;
  std::map<uint64_t, view::MemberIdentity> writers_;  // By the key of a region.
  std::map<JobId, std::set<view::MemberIdentity>> were_members_;
  // Until when each node was connected in the current epoch, or when the epoch began.
  std::map<std::pair<JobId, NodeRank>, std::pair<Epoch, int64_t>> present_;
  std::function<void()> at_danger_;
  std::function<void()> at_decision_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGGREGATOR_PROCESS_H_
