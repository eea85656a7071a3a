// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_H_
#define TALWEG_SERVICES_AGENT_AGENT_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/config/config.h"
#include "libs/pipeline/member.h"
#include "libs/rpc/admin_service.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/rpc/server.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/runtime/mailbox.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/transport.h"
#include "services/agent/agent_life.h"
#include "services/agent/data_plane.h"
#include "services/agent/gpu_front.h"
#include "services/agent/job_link.h"
#include "services/agent/rank_desk.h"
#include "services/agent/tensor_memory.h"
#include "services/agent/timeline.h"

namespace talweg::agent {

struct AgentOptions {
  config::AgentConfig config;
  std::string socket_path;
  Incarnation incarnation;
  std::string job_secret;                                    // Shown to the scheduler.
  std::shared_ptr<const rpc::Credentials> credentials = {};  // Null: no TLS.
  // For tests: what carries frames. Null: libfabric and the host's own shared memory, as
  // configured.
  std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(const Clock*)> make_transport;
};

// talweg-agent but for main(): serves one node's ranks in one job, from joining it to its end.
//
// Made, run and destroyed by one thread, the data thread; Stop may be called by any. gRPC's threads
// only post to its mailbox.
class Agent final : private Poller, private PeerEvents, private RankEvents, private GpuEvents {
 public:
  // Binds the ranks' socket and the admin port. Errors name what is taken and the remedy.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options);
  ~Agent() override;

  // Until all ranks have left, the job has failed and its ranks are gone, or Stop was called and
  // had its time. OK: a clean end; else why the job failed.
  absl::Status Run();

  // Drains: lets ranks finish for the configured time, then fails them with `why`.
  void Stop(std::string why);

  EventLoop& loop() { return *loop_; }
  const std::string& socket_path() const { return options_.socket_path; }
  const std::string& admin_address() const { return admin_->address(); }

 private:
  struct StopRequested {
    std::string why;
  };
  struct StatusRequested {
    v1::GetStatusRequest request;
    rpc::Done<v1::GetStatusResponse> done;
  };
  struct SetTraceRequested {
    v1::SetTraceRequest request;
    rpc::Done<v1::SetTraceResponse> done;
  };
  struct TraceRequested {
    rpc::Done<v1::GetTraceResponse> done;
  };
  struct HostFound {
    ConnectionId connection;
    absl::StatusOr<std::string> literal;
  };
  using Mail = std::variant<rpc::MemberEvent, StopRequested, StatusRequested, SetTraceRequested,
                            TraceRequested, HostFound>;

  explicit Agent(AgentOptions options);
  absl::Status Open();
  absl::Status OpenRankServer();
  absl::Status OpenTransport();
  absl::Status OpenGpuFront();
  absl::Status OpenAdmin();
  std::unique_ptr<JobLink> MakeAloneLink();
  std::unique_ptr<JobLink> MakeMemberLink();
  void NewMember();

  // Poller
  int Poll() override;
  bool PrepareToSleep() override;

  // Gives the core one event, performs what follows, and what follows from that.
  void Deliver(std::function<void(pipeline::Effects&)> event);
  void Perform(pipeline::Effects& effects);
  void Do(pipeline::AllocateTensor& effect);
  // Where a NIC has the tensor on its GPU, if it may: docs/gpu.md, "GPUDirect".
  std::optional<TensorMemory::NicRegions> MakeDirect(const pipeline::AllocateTensor& effect);
  void NoteNotDirect(const absl::Status& why);
  void Do(pipeline::ReduceSlice& effect);
  void Do(const pipeline::CopyInline& effect);
  void Do(const pipeline::CopyOwn& effect);
  void Do(const pipeline::LogWaiting& effect);
  // Whether one more wait is named in this second's log: who waits may do so with thousands of
  // tensors. The others are counted.
  bool NameWaiting();
  // The ranks may be told: the result is where they want it.
  void FinishRound(const pipeline::CompleteRound& effect);
  int ReduceSome();
  void RunReduce(const pipeline::ReduceSlice& reduce);

  // PeerEvents
  void OnPeerConnected(ConnectionId connection) override;
  void OnPeerDisconnected(ConnectionId connection, const std::string& reason) override;
  void OnPeerFrame(ConnectionId connection, const wire::Frame& frame) override;
  // RankEvents
  void OnRankJoined(LocalRank rank, uint32_t pid) override;
  void OnRanksAttached(bool all) override;
  void OnRankDeclare(LocalRank rank, uint32_t request, const pipeline::TensorSpec& spec) override;
  void OnRankPush(const pipeline::Push& push) override;
  void OnRankLeft(LocalRank rank, bool clean, const std::string& text) override;
  void OnRankFailure(const std::string& text) override;
  void OnRankAtBoundary(LocalRank rank, uint64_t steps) override;
  void OnRanksStop(std::vector<uint64_t> ended) override;
  void OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) override;
  const pipeline::Member& Core() const override { return *member_; }

  // GpuEvents
  void OnGradientReady(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                       int32_t priority) override;
  bool ReduceWanted(uint64_t ticket) override { return member_->ReduceWanted(ticket); }
  void OnReduced(uint64_t ticket, uint64_t bytes) override;
  void OnDelivered(const pipeline::CompleteRound& round) override { FinishRound(round); }
  void OnUnexported(LocalRank rank, uint32_t request) override;
  void OnEventsLost(LocalRank rank) override;
  void OnGpuFailed(const std::string& text) override;
  void OnGpuNote(const std::string& text) override;

  void OnMail(Mail mail);
  void OnMemberEvent(const rpc::MemberEvent& event);
  void OnStop(const std::string& why);
  // agent_control.cc: does what the agent's life has come to.
  void Live();
  LifeSight Look() const;
  int64_t UnreachableNs() const { return static_cast<int64_t>(config_.unreachable_ms) * 1'000'000; }
  std::string SchedulerSilenceText() const;
  void Restart();
  void WriteTrace() const;

  // agent_status.cc
  v1::GetStatusResponse MakeStatus(const v1::GetStatusRequest& request) const;
  void AddCounters(v1::GetStatusResponse& status) const;
  v1::GetTraceResponse MakeTrace() const;

  int64_t NowNs() const { return clock_.NowNs(); }
  bool standalone() const { return options_.config.standalone; }

  AgentOptions options_;
  const config::AgentConfig& config_;
  MonotonicClock clock_;
  const int64_t started_unix_ns_;
  std::string host_id_;
  std::string node_name_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Mailbox<Mail>> mailbox_;
  std::unique_ptr<shm::RankServer> rank_server_;
  CounterSet counters_;                              // The transport's.
  std::unique_ptr<transport::Transport> transport_;  // Null when standalone.
  Timeline timeline_;
  std::unique_ptr<TensorMemory> memory_;
  std::unique_ptr<gpu::Platform> gpu_platform_;  // Until gpus_ has it.
  std::unique_ptr<GpuFront> gpus_;               // Null without GPUs.
  bool any_direct_ = false;
  bool direct_off_ = false;  // No further tensor is a NIC's on a GPU.
  std::set<absl::StatusCode> not_direct_noted_;
  std::unique_ptr<RankDesk> desk_;
  std::unique_ptr<pipeline::Member> member_;
  std::unique_ptr<rpc::ServiceHolder> admin_service_;
  std::unique_ptr<rpc::Server> admin_;
  std::unique_ptr<JobLink> link_;

  std::deque<std::function<void(pipeline::Effects&)>> events_;
  bool performing_ = false;
  bool dirty_ = false;  // The core has had events since the last Flush.
  const wire::Frame* frame_ = nullptr;
  std::deque<pipeline::ReduceSlice> reduces_;
  int64_t timer_deadline_ns_ = 0;
  EventLoop::TimerId timer_ = 0;

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

#endif  // TALWEG_SERVICES_AGENT_AGENT_H_
