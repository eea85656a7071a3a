// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_
#define TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libs/pipeline/agent_core.h"
#include "libs/rpc/scheduler_events.h"
#include "libs/runtime/clock.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/transport/transport.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/agent_life.h"
#include "services/agent/device_rounds.h"
#include "services/agent/job_link.h"
#include "services/agent/rank_desk.h"
#include "services/agent/tensor_memory.h"
#include "services/agent/timeline.h"

namespace talweg::agent {

// Combines what the ranks of a node push, in the order of the ranks (combine.h).
class RankCombiner {
 public:
  virtual ~RankCombiner() = default;
  virtual void Combine(const pipeline::TensorSpec& spec, bool is_final,
                       std::span<const std::byte* const> inputs,
                       std::span<std::byte> output) const = 0;
};

struct AgentDriverOptions {
  std::string job_name;
  view::MemberIdentity self;
  std::string node_name;
  std::string host_id;  // "": no aggregator is reached through this host's memory.
  uint32_t rank_count = 1;
  uint64_t credit_bytes_max = 0;
  // Where nothing is reduced nothing can be preempted, and there is no such limit.
  uint64_t reduce_bytes_max = 0;
  int64_t unreachable_ns = 0;
  int64_t stall_ns = 0;  // AgentCoreConfig::stall_ns.
  int64_t stall_notice_ns =
      1'000'000'000;  // People are told of rounds that have waited so long; 0: of none.
  int64_t drain_ns = 0;
  bool alone = false;
  bool membership_changes = false;  // Nodes may come and go.
  bool one_view = false;            // AgentCoreConfig::one_view.
  // Slices are large enough for what has come of a result to be told.
  bool tells_arrivals = true;
  uint32_t trace_rounds = 0;
  std::string scheduler;  // Its address, for people.
  int events_per_poll = 256;
  uint64_t reduce_bytes_per_poll = 0;
  // Why this agent cannot take part in a view; "" if it can.
  std::function<std::string(const view::View& view)> view_problem = {};
  // Sees each effect before it is performed, for tests.
  std::function<void(const pipeline::Effect& effect)> watch = {};
  // The life is over. Called inside Poll; Leave follows.
  std::function<void()> on_end = {};
};

// One node's agent without threads, sockets, GPUs' drivers and gRPC: feeds events to the core of a
// member, performs the core's effects, and ends when its life is over.
//
// One owner thread, which calls Poll, and again after Poll has returned more than 0 or whenever
// something has come. Nothing blocks.
class AgentDriver final : public PeerEvents, private RankEvents {
 public:
  // All outlive it. `transport` is null where the agent is alone.
  struct Parts {
    const runtime::Clock* clock = nullptr;
    shm::RankServer* ranks = nullptr;
    transport::Transport* transport = nullptr;
    const RankCombiner* combiner = nullptr;
  };

  AgentDriver(AgentDriverOptions options, const Parts& parts);

  // Before Join, if there are any. Both stay until CloseDesk.
  void SetDevices(DeviceRounds* rounds, RankDevices* devices) {
    devices_ = rounds;
    desk_->SetDevices(devices);
  }
  // Before Join: the link's AgentDataPlane has memory() and timeline(), and tells this object.
  void SetLink(std::unique_ptr<JobLink> link) { link_ = std::move(link); }
  void Join() { link_->Join(options_.self); }

  // One turn of the duty cycle; how much was done.
  int Poll();
  // False: call Poll instead of sleeping. Else sleep until `*deadline_ns` at most.
  bool PrepareToSleep(int64_t* deadline_ns);

  // What comes from elsewhere.
  void OnMemberEvent(const rpc::MemberEvent& event);
  void OnHostFound(ConnectionId connection, const absl::StatusOr<std::string>& literal);
  // Lets ranks finish for a while, then fails them. False: it was told so before, or it is too
  // late.
  bool Stop(const std::string& why);
  // Says goodbye to the scheduler, for how the life ended. Nothing is said or heard after it.
  absl::Status Leave();

  // --- What devices tell.
  void OnRankPush(const pipeline::Push& push) override;
  void OnReduced(uint64_t ticket, uint64_t bytes);
  // The ranks may be told: the result is where they want it.
  void FinishRound(const pipeline::CompleteRound& effect);
  void OnRankFailure(const std::string& text) override;

  // Nobody calls Poll any more. The ranks see that nobody serves them; a NIC has no tensor.
  void CloseDesk();
  // After that. What devices copied to and from stays until they are gone.
  void CloseLink() { link_.reset(); }
  void CloseMemory() { memory_.reset(); }

  const pipeline::AgentCore& core() const { return *core_; }
  const AgentLife& life() const { return life_; }
  RankDesk& desk() { return *desk_; }
  const RankDesk& desk() const { return *desk_; }
  TensorMemory& memory() { return *memory_; }
  const TensorMemory& memory() const { return *memory_; }
  Timeline& timeline() { return timeline_; }
  const Timeline& timeline() const { return timeline_; }
  JobLink& link() { return *link_; }
  const JobLink& link() const { return *link_; }

  JobId job() const { return job_; }
  // OK, or why the job has failed.
  const absl::Status& end() const { return end_; }
  bool scheduler_answers() const { return scheduler_silent_since_ns_ == 0; }
  const std::string& scheduler_text() const { return scheduler_text_; }
  uint64_t bytes_reduced() const { return bytes_reduced_; }
  // The nodes for which a round waits, if that is known; else null.
  const std::vector<uint32_t>* MissingNodes(pipeline::TensorIndex tensor, Round round) const;

  // --- PeerEvents
  void OnPeerConnected(ConnectionId connection) override;
  void OnPeerDisconnected(ConnectionId connection, const std::string& reason) override;
  void OnPeerFrame(ConnectionId connection, const wire::Frame& frame) override;

 private:
  void NewMember();

  // Gives the core one event, performs what follows, and what follows from that.
  void Deliver(std::function<void(pipeline::Effects&)> event);
  void Perform(pipeline::Effects& effects);
  void Do(pipeline::AllocateTensor& effect);
  void Do(pipeline::ReduceSlice& effect);
  void Do(const pipeline::CopyInline& effect);
  void Do(const pipeline::CopyOwn& effect);
  void Do(const pipeline::LogWaiting& effect);
  void Do(pipeline::FailJob& effect);
  // Whether one more wait is named in this second's log: who waits may do so with thousands of
  // tensors. The others are counted.
  bool NameWaiting();
  int ReduceSome();
  void RunReduce(const pipeline::ReduceSlice& reduce);
  bool OnDevices(pipeline::TensorIndex tensor, Round round) const {
    return devices_ != nullptr && devices_->TakesPart(tensor, round);
  }

  // --- RankEvents
  void OnRankJoined(LocalRank rank, uint32_t pid) override;
  void OnRanksAttached(bool all) override;
  void OnRanksReady(bool all) override;
  void OnRankDeclare(LocalRank rank, uint32_t request, const pipeline::TensorSpec& spec) override;
  void OnRankLeft(LocalRank rank, bool clean, const std::string& text) override;
  void OnRankAtBoundary(LocalRank rank, uint64_t steps) override;
  void OnRanksStop(std::vector<uint64_t> ended) override;
  void OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) override;
  std::string WhomItWaitsFor(pipeline::TensorIndex tensor, Round round) const override;
  const pipeline::AgentCore& Core() const override { return *core_; }

  // driver_life.cc: what the scheduler says, and what the agent's life has come to.
  void OnView(const view::View& view);
  void FailJob(const std::string& text);
  void Live();
  LifeSight Look() const;
  std::string SchedulerSilenceText() const;
  void Restart();

  int64_t NowNs() const { return clock_->NowNs(); }

  const AgentDriverOptions options_;
  const runtime::Clock* const clock_;
  shm::RankServer* const rank_server_;
  const RankCombiner* const combiner_;
  DeviceRounds* devices_ = nullptr;
  Timeline timeline_;
  std::unique_ptr<TensorMemory> memory_;
  std::unique_ptr<RankDesk> desk_;
  std::unique_ptr<pipeline::AgentCore> core_;
  std::unique_ptr<JobLink> link_;

  std::deque<std::function<void(pipeline::Effects&)>> events_;
  bool performing_ = false;
  bool dirty_ = false;  // The core has had events since the last Flush.
  const wire::Frame* frame_ = nullptr;
  std::deque<pipeline::ReduceSlice> reduces_;

  JobId job_;
  int64_t scheduler_silent_since_ns_ = 0;  // 0: it answers.
  std::string scheduler_text_;
  std::map<std::pair<pipeline::TensorIndex, Round>, std::vector<uint32_t>> missing_nodes_;
  int64_t waiting_second_ = 0;
  uint32_t waiting_named_ = 0;
  uint32_t waiting_unnamed_ = 0;
  uint64_t bytes_reduced_ = 0;

  AgentLife life_;
  absl::Status end_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_
