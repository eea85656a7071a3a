// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_
#define TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "libs/encoding/codec.h"
#include "libs/pipeline/agent_core.h"
#include "libs/rpc/scheduler_events.h"
#include "libs/runtime/clock.h"
#include "libs/shm/daemon/rank_server.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/agent_life.h"
#include "services/agent/byte_work.h"
#include "services/agent/core_runner.h"
#include "services/agent/device_rounds.h"
#include "services/agent/encoding_rule.h"
#include "services/agent/entry_wait.h"
#include "services/agent/job_link.h"
#include "services/agent/memory_order.h"
#include "services/agent/rank_desk.h"
#include "services/agent/rank_words.h"
#include "services/agent/registrar.h"
#include "services/agent/round_waits.h"
#include "services/agent/scheduler_contact.h"
#include "services/agent/tensor_memory.h"
#include "services/agent/timeline.h"

namespace talweg::agent {

struct AgentDriverOptions {
  std::string job_name;
  view::MemberIdentity self;
  std::string node_name;
  std::string host_id;  // "": reaches no aggregator through this host's memory.
  uint32_t rank_count = 1;
  uint64_t credit_bytes_max = 0;
  // AgentCoreConfig::reduce_bytes_max. Not used when the ranks sum: then the agent reduces nothing.
  uint64_t reduce_bytes_max = 0;
  int64_t unreachable_ns = 0;
  int64_t stall_ns = 0;  // AgentCoreConfig::stall_ns.
  int64_t stall_notice_ns =
      1'000'000'000;  // The log names rounds that have waited for so long; 0: none.
  int64_t drain_ns = 0;
  bool alone = false;
  bool membership_changes = false;  // Nodes may come and go.
  bool one_view = false;            // AgentCoreConfig::one_view.
  // Slices are so large that it pays to tell ranks which bytes of a result have arrived.
  bool tells_arrivals = true;
  EncodingRule encoding_rule;
  uint32_t trace_rounds = 0;
  std::string scheduler;  // The scheduler's address, for messages.
  int events_per_poll = 256;
  uint64_t reduce_bytes_per_poll = 0;
  // Returns why this agent cannot take part in a view, or "" if it can.
  std::function<std::string(const view::View& view)> view_problem = {};
  // For tests: called with each effect before the driver performs it.
  std::function<void(const pipeline::Effect& effect)> watch = {};
  // Called inside Poll when the agent's life is over. The caller then calls Leave.
  std::function<void()> on_end = {};
};

// One node's agent without threads, sockets, GPU drivers and gRPC. Gives the core its events,
// performs the core's effects, and decides when the agent ends (AgentLife).
//
// One owner thread. It calls Poll again while Poll returns more than 0, and whenever something has
// arrived. Nothing blocks.
class AgentDriver final : public PeerEvents {
 public:
  // All outlive the driver.
  struct Parts {
    const runtime::Clock* clock = nullptr;
    shm::RankServer* ranks = nullptr;
    Registrar* registrar = nullptr;
    const RankCombiner* combiner = nullptr;
    const encoding::Codec* codec = &encoding::Codecs();
    // Null: the thread that calls Poll waits for the kernel's memory itself.
    MemorySource* memory_source = nullptr;
  };

  AgentDriver(AgentDriverOptions options, const Parts& parts);

  // Call it before Join if there are GPUs. Both objects live until CloseDesk.
  void SetDevices(DeviceRounds* rounds, RankDevices* devices) {
    SetDeviceRounds(rounds);
    desk_->SetDevices(devices);
  }
  // Call it before Join. The link's AgentDataPlane uses memory() and timeline(), and delivers its
  // events to this object.
  void SetLink(std::unique_ptr<JobLink> link) {
    link_ = std::move(link);
    rank_words_.SetLink(link_.get());
  }
  void Join() { link_->Join(options_.self); }

  // Does one turn of the duty cycle. Returns how much work it did.
  int Poll();
  // Returns false if the caller must call Poll instead of sleeping. Otherwise the caller may sleep
  // until `*deadline_ns` at most.
  bool PrepareToSleep(int64_t* deadline_ns);

  // The scheduler has sent `event`.
  void OnMemberEvent(const rpc::MemberEvent& event);
  // The memory source has filled an order, or could not.
  void OnFilled(OrderNumber number, const absl::Status& status) {
    orders_.OnFilled(number, status);
  }
  // Gives the ranks `drain_ns` to finish, then fails them. Returns false if Stop was called before,
  // or if the life is about to end.
  bool Stop(const std::string& why);
  // Tells the scheduler how the life ended. Nothing is sent or received after that.
  absl::Status Leave();

  // The GPUs have delivered the round's result. Tells the ranks that the round is complete.
  void FinishRound(const pipeline::CompleteRound& effect);

  // Destroys the desk, and drops the NICs' memory of all tensors. Poll must not be called again.
  void CloseDesk();
  // After CloseDesk. The memory must outlive the devices, which copy to and from it.
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
  // Returns OK, or why the job has failed.
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
  void OnAllocated(pipeline::TensorIndex tensor, const absl::Status& status);
  void Do(pipeline::FailJob& effect);
  bool OnDevices(pipeline::TensorIndex tensor, Round round) const {
    return devices_ != nullptr && devices_->TakesPart(tensor, round);
  }

  // driver_life.cc: the scheduler's events, and the steps of the agent's life.
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
  EntryWait entry_;
  CoreRunner runner_;
  std::unique_ptr<TensorMemory> memory_;
  MemoryOrders orders_;
  ByteWork bytes_;
  RankWords rank_words_;
  std::unique_ptr<RankDesk> desk_;
  std::unique_ptr<JobLink> link_;

  JobId job_;
  absl::Status end_;
  std::string left_without_;  // The rounds that were open when the ranks were done.
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_DRIVER_H_
