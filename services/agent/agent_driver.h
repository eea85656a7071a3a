// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_
#define TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "libs/pipeline/agent_core.h"
#include "libs/rpc/scheduler_events.h"
#include "libs/runtime/clock.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/transport/transport.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/agent_life.h"
#include "services/agent/byte_work.h"
#include "services/agent/core_runner.h"
#include "services/agent/device_rounds.h"
#include "services/agent/job_link.h"
#include "services/agent/rank_desk.h"
#include "services/agent/rank_words.h"
#include "services/agent/round_waits.h"
#include "services/agent/scheduler_contact.h"
#include "services/agent/tensor_memory.h"
#include "services/agent/timeline.h"

namespace talweg::agent {

struct AgentDriverOptions {
  std::string job_name;
  view::MemberIdentity self;
  std::string node_name;
  std::string host_id;  // "": no aggregator is reached through this host's memory.
  uint32_t rank_count = 1;
  uint64_t credit_bytes_max = 0;
  // Where nothing is reduced nothing can be overtaken, and there is no such limit.
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
class AgentDriver final : public PeerEvents {
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
    SetDeviceRounds(rounds);
    desk_->SetDevices(devices);
  }
  // Before Join: the link's AgentDataPlane has memory() and timeline(), and tells this object.
  void SetLink(std::unique_ptr<JobLink> link) {
    link_ = std::move(link);
    rank_words_.SetLink(link_.get());
  }
  void Join() { link_->Join(options_.self); }

  // One turn of the duty cycle; how much was done.
  int Poll();
  // False: call Poll instead of sleeping. Else sleep until `*deadline_ns` at most.
  bool PrepareToSleep(int64_t* deadline_ns);

  // What comes from elsewhere.
  void OnMemberEvent(const rpc::MemberEvent& event);
  // Lets ranks finish for a while, then fails them. False: it was asked for before, or it is too
  // late.
  bool Stop(const std::string& why);
  // Says goodbye to the scheduler, for how the life ended. Nothing is said or heard after it.
  absl::Status Leave();

  // A device tells: the ranks may be told, the result is where they want it.
  void FinishRound(const pipeline::CompleteRound& effect);

  // Nobody calls Poll any more. The ranks see that nobody serves them; a NIC has no tensor.
  void CloseDesk();
  // After that. What devices copied to and from stays until they are gone.
  void CloseLink() { link_.reset(); }
  void CloseMemory() { memory_.reset(); }

  const pipeline::AgentCore& core() const { return runner_.core(); }
  const AgentLife& life() const { return life_; }
  RankDesk& desk() { return *desk_; }
  RankWords& rank_words() { return rank_words_; }
  ByteWork& bytes() { return bytes_; }
  const SchedulerContact& scheduler() const { return scheduler_; }
  TensorMemory& memory() const { return *memory_; }
  Timeline& timeline() { return timeline_; }
  JobLink& link() { return *link_; }

  JobId job() const { return job_; }
  // OK, or why the job has failed.
  const absl::Status& end() const { return end_; }

  // --- PeerEvents
  void OnPeerConnected(ConnectionId connection) override;
  void OnPeerDisconnected(ConnectionId connection, const std::string& reason) override;
  void OnPeerFrame(ConnectionId connection, const wire::Frame& frame) override;

 private:
  void NewMember();

  void SetDeviceRounds(DeviceRounds* rounds) {
    devices_ = rounds;
    bytes_.SetDevices(rounds);
    rank_words_.SetDevices(rounds);
  }

  void Perform(pipeline::Effects& effects);
  void Do(pipeline::AllocateTensor& effect);
  void Do(pipeline::FailJob& effect);
  bool OnDevices(pipeline::TensorIndex tensor, Round round) const {
    return devices_ != nullptr && devices_->TakesPart(tensor, round);
  }

  // driver_life.cc: what the scheduler says, and what the agent's life has come to.
  void OnView(const view::View& view);
  void Live();
  LifeSight Look() const;
  void Restart();

  int64_t NowNs() const { return clock_->NowNs(); }

  const AgentDriverOptions options_;
  const runtime::Clock* const clock_;
  shm::RankServer* const rank_server_;
  DeviceRounds* devices_ = nullptr;
  Timeline timeline_;
  RoundWaits waits_;
  AgentLife life_;
  SchedulerContact scheduler_;
  CoreRunner runner_;
  std::unique_ptr<TensorMemory> memory_;
  ByteWork bytes_;
  RankWords rank_words_;
  std::unique_ptr<RankDesk> desk_;
  std::unique_ptr<JobLink> link_;

  JobId job_;
  absl::Status end_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_
