// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_H_
#define TALWEG_SERVICES_AGENT_AGENT_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "libs/config/config.h"
#include "libs/rpc/admin_service.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/rpc/server.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/runtime/mailbox.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/transport.h"
#include "services/agent/agent_driver.h"
#include "services/agent/gpu_front.h"
#include "services/agent/gpu_rounds.h"
#include "services/agent/job_link.h"
#include "services/agent/kernel_combiner.h"
#include "services/agent/memory_thread.h"
#include "services/agent/registrar.h"

namespace talweg::agent {

struct AgentOptions {
  config::AgentConfig config;
  std::string socket_path;
  Incarnation incarnation;
  // What is said to the scheduler is sealed with it, and so is whatever changes something here.
  // Empty: none.
  std::string job_secret;
  std::shared_ptr<const rpc::Credentials> credentials = {};  // Null: no TLS.
  // For tests: makes the transport. Null: libfabric and this host's shared memory, as configured.
  std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(const runtime::Clock*)>
      make_transport;
};

// talweg-agent but for main(): serves one node's ranks in one job, from joining it to its end.
//
// One thread, the data thread, makes, runs and destroys an Agent. Any thread may call Stop. gRPC's
// threads only post to its mailbox, and so does a MemoryThread, which waits for the kernel's
// memory.
class Agent final : private runtime::Poller, private GpuEvents {
 public:
  // Binds the ranks' socket and the admin port. An error names the socket or port that is taken,
  // and the remedy.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options);
  ~Agent() override;

  // Serves until all ranks have left, until the job has failed and its ranks are gone, or until the
  // time that Stop grants is over. Returns OK after a clean end, else why the job failed.
  absl::Status Run();

  // Drains: gives the ranks `drain_ns` to finish, then fails them with `why`.
  void Stop(std::string why);

  runtime::EventLoop& loop() { return *loop_; }
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
    rpc::TraceRange range;
    rpc::Done<rpc::TracePiece> done;
  };
  struct HostFound {
    ConnectionId connection;
    absl::StatusOr<std::string> literal;
  };
  struct OrderFilled {
    OrderNumber number;
    absl::Status status;
  };
  using Mail = std::variant<rpc::MemberEvent, StopRequested, StatusRequested, SetTraceRequested,
                            TraceRequested, HostFound, OrderFilled>;

  explicit Agent(AgentOptions options);
  absl::Status Open();
  absl::Status OpenRankServer();
  absl::Status OpenTransport();
  absl::Status OpenGpuFront();
  absl::Status OpenAdmin();
  AgentDriverOptions DriverOptions();
  std::unique_ptr<JobLink> MakeAloneLink();
  std::unique_ptr<JobLink> MakeMemberLink();

  // Poller
  int Poll() override;
  bool PrepareToSleep() override;

  // GpuEvents
  void OnGradientReady(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                       int32_t priority) override;
  bool ReduceWanted(uint64_t ticket) override { return driver_->core().Wants(ticket); }
  void OnReduced(uint64_t ticket, uint64_t bytes) override {
    driver_->bytes().OnReduced(ticket, bytes);
  }
  void OnDelivered(const pipeline::CompleteRound& round) override { driver_->FinishRound(round); }
  void OnUnexported(LocalRank rank, uint32_t request) override;
  void OnEventsLost(LocalRank rank) override;
  void OnGpuFailed(const std::string& text) override;
  void OnGpuNote(const std::string& text) override;

  void OnMail(Mail mail);
  void CloseDevices();
  void WriteTrace() const;

  // agent_status.cc
  v1::GetStatusResponse MakeStatus(const v1::GetStatusRequest& request) const;
  void AddCounters(v1::GetStatusResponse& status) const;
  absl::StatusOr<v1::SetTraceResponse> SetTrace(const v1::SetTraceRequest& request);
  rpc::TracePiece MakeTrace(rpc::TraceRange range) const;

  int64_t NowNs() const { return clock_.NowNs(); }
  bool standalone() const { return options_.config.standalone; }

  AgentOptions options_;
  const config::AgentConfig& config_;
  runtime::MonotonicClock clock_;
  const int64_t started_unix_ns_;
  std::string host_id_;
  std::string node_name_;
  std::unique_ptr<runtime::EventLoop> loop_;
  std::unique_ptr<runtime::Mailbox<Mail>> mailbox_;
  std::unique_ptr<shm::RankServer> rank_server_;
  telemetry::CounterSet counters_;                   // The transport's.
  std::unique_ptr<transport::Transport> transport_;  // Null when standalone.
  std::unique_ptr<Registrar> registrar_;
  std::unique_ptr<gpu::Platform> gpu_platform_;  // Null once gpus_ owns it.
  std::unique_ptr<GpuFront> gpus_;               // Null without GPUs.
  std::unique_ptr<GpuRounds> gpu_rounds_;        // Likewise.
  const KernelCombiner combiner_;
  std::unique_ptr<MemoryThread> memory_thread_;
  std::unique_ptr<AgentDriver> driver_;
  std::unique_ptr<rpc::ServiceHolder> admin_service_;
  std::unique_ptr<rpc::ServiceHolder> sealed_service_;
  std::unique_ptr<rpc::Server> admin_;

  int64_t timer_deadline_ns_ = 0;
  runtime::EventLoop::TimerId timer_ = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_H_
