// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/base/encoding.h"
#include "libs/config/ready.h"
#include "libs/rpc/authorization.h"
#include "libs/rpc/call_gate.h"
#include "libs/rpc/secret.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/host_id.h"
#include "libs/runtime/memory_limit.h"
#include "libs/shm/layout/arrivals.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/agent/agent_open.h"
#include "services/agent/member_link.h"

namespace talweg::agent {
namespace {

constexpr int kEventsPerPass = 256;
// The reducer does so much before the data thread polls the network and the rings again.
constexpr uint64_t kReduceBytesPerPass = 512 * kKiB;
constexpr uint64_t kGpuReduceBytesMax = 32 * kMiB;
// If nothing is sent, no network needs small slices, and each slice costs calls of the GPU's
// driver.
constexpr uint64_t kAloneGpuSliceBytes = 16 * kMiB;
// Used if there are CPUs to spare. A GPU takes 140 us to switch between two processes, and 80 us to
// copy a piece to the host or back.
constexpr int64_t kWatchGpuNs = 300'000;

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      config_(options_.config),
      started_unix_ns_(runtime::UnixNowNs()),
      host_id_(runtime::HostId()),
      node_name_(config_.name.empty() ? runtime::HostName() : config_.name) {}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  std::unique_ptr<Agent> agent(new Agent(std::move(options)));
  TALWEG_RETURN_IF_ERROR(agent->Open());
  return agent;
}

Agent::~Agent() {
  if (driver_ != nullptr) driver_->CloseLink();
  CloseDevices();
  if (admin_ != nullptr) admin_->Shutdown(0);
}

absl::Status Agent::Open() {
  TALWEG_RETURN_IF_ERROR(CheckTracePath(config_.trace_path));
  runtime::EventLoop::Options loop_options;
  loop_options.spin_ns_max = config_.spin_us < 0 ? -1 : int64_t{config_.spin_us} * 1000;
  TALWEG_ASSIGN_OR_RETURN(loop_, runtime::EventLoop::Create(&clock_, loop_options));
  mailbox_ = std::make_unique<runtime::Mailbox<Mail>>(loop_.get());
  TALWEG_RETURN_IF_ERROR(OpenGpuFront());
  TALWEG_RETURN_IF_ERROR(OpenRankServer());
  if (standalone()) {
    registrar_ = std::make_unique<AloneRegistrar>();
  } else {
    TALWEG_RETURN_IF_ERROR(OpenTransport());
    registrar_ = std::make_unique<MemberRegistrar>(transport_.get());
  }
  const bool has_gpus = gpu_platform_ != nullptr;
  memory_thread_ = std::make_unique<MemoryThread>([this](OrderNumber number, absl::Status status) {
    mailbox_->Post(OrderFilled{number, std::move(status)});
  });
  driver_ = std::make_unique<AgentDriver>(
      DriverOptions(), AgentDriver::Parts{.clock = &clock_,
                                          .ranks = rank_server_.get(),
                                          .registrar = registrar_.get(),
                                          .combiner = &combiner_,
                                          .memory_source = memory_thread_.get()});
  if (has_gpus) {
    const bool has_cpus = loop_->spin_ns_max() > 0 && std::thread::hardware_concurrency() > 2;
    gpus_ = std::make_unique<GpuFront>(std::move(gpu_platform_), has_cpus ? kWatchGpuNs : 0,
                                       &driver_->memory(), static_cast<GpuEvents*>(this));
    gpu_rounds_ = std::make_unique<GpuRounds>(
        GpuRounds::Options{.rank_count = config_.rank_count,
                           .direct_wanted = config_.gpu_direct == "auto"},
        gpus_.get(), registrar_.get());
    driver_->SetDevices(gpu_rounds_.get(), gpus_.get());
    TALWEG_RETURN_IF_ERROR(
        loop_->AddDescriptor(gpus_->stage().WaitDescriptor(), EPOLLIN,
                             [this](uint32_t) { gpus_->stage().DrainWakeups(); }));
  }
  if (const EncodingRule rule = EncodingRuleOf(config_); rule.encoding != Encoding::kPlain) {
    telemetry::Log(telemetry::LogLevel::kInfo, "sums and averages of f32 travel as ",
                   EncodingName(rule.encoding), " from ", rule.bytes_min, " bytes on");
  }
  TALWEG_RETURN_IF_ERROR(OpenAdmin());
  driver_->SetLink(standalone() ? MakeAloneLink() : MakeMemberLink());
  if (gpu_rounds_ != nullptr) gpu_rounds_->SetLink(&driver_->link());
  return absl::OkStatus();
}

AgentDriverOptions Agent::DriverOptions() {
  return {
      .job_name = config_.job,
      .self = {NodeRank{config_.node_rank}, options_.incarnation},
      .node_name = node_name_,
      .host_id = config_.local_transport ? host_id_ : "",
      .rank_count = config_.rank_count,
      .credit_bytes_max = config_.credit_bytes,
      // GPUs overlap the slices that they are given.
      .reduce_bytes_max = gpu_platform_ != nullptr ? kGpuReduceBytesMax
                                                   : pipeline::AgentCoreConfig{}.reduce_bytes_max,
      .unreachable_ns = static_cast<int64_t>(config_.unreachable_ms) * 1'000'000,
      // If nodes may come and go, a stall would end the nodes that wait, not the one that stalls.
      .stall_ns = config_.loss_policy == config::LossPolicy::kContinue
                      ? 0
                      : static_cast<int64_t>(config_.stall_ms) * 1'000'000,
      .stall_notice_ns = static_cast<int64_t>(config_.stall_notice_ms) * 1'000'000,
      .drain_ns = static_cast<int64_t>(config_.drain_timeout_ms) * 1'000'000,
      .alone = standalone(),
      .membership_changes = !standalone() && config_.loss_policy == config::LossPolicy::kContinue,
      // The view is the only one if no node may join and a lost node ends the job. Not with GPUs,
      // which read results in their own time.
      .one_view = gpu_platform_ == nullptr &&
                  (standalone() || (config_.loss_policy != config::LossPolicy::kContinue &&
                                    config_.min_members == config_.max_members)),
      .tells_arrivals = config_.slice_bytes_max >= shm::kArrivalBytesMin,
      .encoding_rule = EncodingRuleOf(config_),
      .trace_rounds = config_.trace_path.empty() ? 0 : config_.trace_rounds,
      .scheduler = config_.scheduler,
      .events_per_poll = kEventsPerPass,
      .reduce_bytes_per_poll = kReduceBytesPerPass,
      .view_problem = [this](const view::View& view) { return SettingProblem(config_, view); },
      .on_end = [this] { loop_->Stop(); }};
}

std::unique_ptr<JobLink> Agent::MakeAloneLink() {
  const uint64_t slice_bytes_max =
      gpus_ == nullptr ? config_.slice_bytes_max
                       : std::max<uint64_t>(config_.slice_bytes_max, kAloneGpuSliceBytes);
  return NewAloneLink(
      {.rank_count = config_.rank_count, .name = node_name_}, slice_bytes_max,
      [this](const rpc::ViewPublished& published) { driver_->OnMemberEvent(published); });
}

std::unique_ptr<JobLink> Agent::MakeMemberLink() {
  auto data_plane = std::make_unique<AgentDataPlane>(
      AgentDataPlane::Options{
          .host_id = host_id_,
          .local_transport = config_.local_transport,
          .host_found =
              [this](ConnectionId connection, absl::StatusOr<std::string> literal) {
                mailbox_->Post(HostFound{connection, std::move(literal)});
              },
          .fetch_result =
              [this](const pipeline::SliceBytes& slice, std::span<std::byte> bytes) {
                return gpus_->stage().FetchResult(slice, bytes);
              }},
      transport_.get(), &driver_->memory(), &driver_->timeline(), &clock_, driver_.get());
  const auto join_timeout_ns = static_cast<int64_t>(config_.join_timeout_ms) * 1'000'000;
  rpc::SchedulerLinkOptions scheduler = {
      .address = config_.scheduler,
      .renew_ns = static_cast<int64_t>(config_.renew_ms) * 1'000'000,
      .seed = options_.incarnation.value(),
      .job_secret = options_.job_secret,
      .credentials = options_.credentials};
  scheduler.join_timeout_ns = std::min(scheduler.join_timeout_ns, join_timeout_ns);
  membership::JobSpec spec;
  spec.min_members = config_.min_members;
  spec.max_members = config_.max_members;
  spec.begin_members = config_.begin_members;
  spec.slice_bytes_max = config_.slice_bytes_max;
  spec.dealing = config_.dealing;
  spec.loss_policy = config_.loss_policy == config::LossPolicy::kContinue
                         ? membership::LossPolicy::kContinue
                         : membership::LossPolicy::kFailJob;
  spec.join_timeout_ns = join_timeout_ns;
  spec.gather_ns = static_cast<int64_t>(config_.gather_ms) * 1'000'000;
  spec.tenant = config_.tenant;
  return NewMemberLink(
      std::move(data_plane), transport_.get(), std::move(scheduler),
      {.job_name = config_.job,
       .spec = spec,
       .member = {.rank_count = config_.rank_count,
                  .name = node_name_,
                  .admin_address = admin_->address(),
                  .host_id = host_id_},
       .data_security = config::IsUnixAddress(config_.scheduler) ? "" : config_.data_security,
       .not_after_finish = config_.not_after_finish},
      [this](rpc::MemberEvent event) { mailbox_->Post(std::move(event)); });
}

absl::Status Agent::OpenGpuFront() {
  std::string why;
  TALWEG_ASSIGN_OR_RETURN(gpu_platform_, OpenGpus(config_, &why));
  const bool is_fake = gpu_platform_ != nullptr && !config_.test_fake_gpus.empty();
  telemetry::Log(is_fake ? telemetry::LogLevel::kWarning : telemetry::LogLevel::kInfo,
                 "GPUs: ", why);
  return absl::OkStatus();
}

absl::Status Agent::OpenRankServer() {
  shm::RankServerConfig server;
  server.socket_path = options_.socket_path;
  server.socket_mode = config_.socket_mode;
  server.local_rank_count = config_.rank_count;
  server.incarnation = options_.incarnation;
  server.silence_ms = static_cast<uint32_t>(config_.silence_ms);
  server.takes_devices = gpu_platform_ != nullptr;
  uint64_t arena_bytes = config_.arena_bytes_max;
  if (arena_bytes == 0) arena_bytes = runtime::MemoryLimitBytes() / 2;
  // Each tensor has one buffer per rank, and two results. If the ranks sum, it has two buffers per
  // rank, and no results.
  const bool ranks_sum = standalone() && TensorMemory::RanksSum(config_.rank_count);
  server.contribution_bytes_max =
      ranks_sum ? arena_bytes / config_.rank_count : arena_bytes / (config_.rank_count + 2);
  server.result_bytes_max = 2 * server.contribution_bytes_max;
  if (!config_.socket_group.empty()) {
    TALWEG_ASSIGN_OR_RETURN(const gid_t gid, GroupId(config_.socket_group));
    server.socket_gid = gid;
  }
  auto created = shm::RankServer::Create(server);
  if (!created.ok()) {
    return absl::FailedPreconditionError(created.failure().text);
  }
  rank_server_ = std::move(created).value();
  loop_->AddPeriodicTimer(shm::kBeatEveryNs, [this] {
    rank_server_->Beat();
    driver_->desk().LookForState();
  });
  return loop_->AddDescriptor(rank_server_->WaitDescriptor(), EPOLLIN,
                              [this](uint32_t) { rank_server_->PollSockets(driver_->desk()); });
}

absl::Status Agent::OpenTransport() {
  if (options_.make_transport) {
    TALWEG_ASSIGN_OR_RETURN(transport_, options_.make_transport(&clock_));
  } else {
    using Devices = transport::FabricOptions::Devices;
    Devices devices = Devices::kNone;
    if (gpu_platform_ != nullptr && config_.gpu_direct == "auto") {
      devices = config_.test_fake_gpus.empty() ? Devices::kCuda : Devices::kFake;
    }
    TALWEG_ASSIGN_OR_RETURN(transport_, MakeTransport(config_, devices, &clock_, &counters_));
  }
  return loop_->AddDescriptor(transport_->WaitDescriptor(), EPOLLIN, [](uint32_t) {});
}

absl::Status Agent::OpenAdmin() {
  TALWEG_ASSIGN_OR_RETURN(const config::ListenAddress listen,
                          config::OnInterface(config_.admin_listen, config_.interface));
  rpc::AgentAdminHandlers handlers;
  handlers.get_status = [this](const v1::GetStatusRequest& request, auto done) {
    mailbox_->Post(StatusRequested{request, std::move(done)});
  };
  const auto set_trace = [this](const v1::SetTraceRequest& request, auto done) {
    mailbox_->Post(SetTraceRequested{request, std::move(done)});
  };
  // Whoever knows the job secret seals the call.
  handlers.set_trace = [this, set_trace](const v1::SetTraceRequest& request, auto done) {
    const absl::Status allowed =
        rpc::CheckJobSecret({.method = "/talweg.agent.v1.AdminService/SetTrace",
                             .daemon = "agent",
                             .caller = "who asks for a timeline"},
                            rpc::HashOfSecret(options_.job_secret), "");
    if (!allowed.ok()) return done(allowed);
    set_trace(request, std::move(done));
  };
  handlers.get_trace = [this](const rpc::TraceRange& range, auto done) {
    mailbox_->Post(TraceRequested{range, std::move(done)});
  };
  const auto gate = std::make_shared<rpc::CallGate>(
      rpc::CallLimitOptions{.per_second_max = config_.peer_calls_per_second_max,
                            .open_max = config_.peer_calls_open_max});
  admin_service_ = rpc::MakeAgentAdminService(std::move(handlers), gate);
  sealed_service_ =
      rpc::MakeAgentSealedService(set_trace, options_.job_secret, options_.credentials, gate);
  TALWEG_ASSIGN_OR_RETURN(
      admin_, rpc::Server::Start({.unix_path = listen.path,
                                  .bind_host = listen.host,
                                  .port_min = listen.port_first,
                                  .port_max = listen.port_last,
                                  .advertise_host = config_.advertise,
                                  .credentials = options_.credentials,
                                  .insecure = config_.insecure,
                                  .gate = gate},
                                 {admin_service_->service(), sealed_service_->service()}));
  if (!admin_->warning().empty()) telemetry::Log(telemetry::LogLevel::kWarning, admin_->warning());
  admin_->SetServing("talweg.agent.v1.AdminService", true);
  return absl::OkStatus();
}

absl::Status Agent::Run() {
  telemetry::Log(telemetry::LogLevel::kInfo, "serving ", Counted(config_.rank_count, "rank"),
                 " of job '", config_.job, "' as node ", config_.node_rank, " at ",
                 options_.socket_path, ", admin at ", admin_->address(),
                 standalone() ? ", alone" : "");
  loop_->AddPoller(this);
  driver_->Join();
  loop_->Run();
  loop_->RemovePoller(this);
  const absl::Status left = driver_->Leave();
  if (!left.ok())
    telemetry::Log(telemetry::LogLevel::kWarning,
                   "the scheduler was not told: ", status::StatusText(left));
  WriteTrace();
  admin_->Shutdown(0);
  CloseDevices();
  driver_->CloseLink();
  driver_->CloseMemory();
  loop_->RemoveDescriptor(rank_server_->WaitDescriptor());
  rank_server_.reset();
  memory_thread_.reset();  // Now that it has no memory left to wait for.
  // The log has the failure's reason already.
  telemetry::Log(telemetry::LogLevel::kInfo, "ends: ",
                 driver_->end().ok() ? driver_->life().how_it_ends().text
                                     : "its job has failed, as said above");
  return driver_->end();
}

void Agent::CloseDevices() {
  if (driver_ == nullptr) return;
  driver_->CloseDesk();
  if (gpus_ != nullptr) loop_->RemoveDescriptor(gpus_->stage().WaitDescriptor());
  gpu_rounds_.reset();
  gpus_.reset();  // Its copies may still use memory that is freed below.
}

void Agent::Stop(std::string why) { mailbox_->Post(StopRequested{std::move(why)}); }

int Agent::Poll() {
  return mailbox_->Drain([this](Mail mail) { OnMail(std::move(mail)); }) + driver_->Poll();
}

bool Agent::PrepareToSleep() {
  if (mailbox_->size() > 0) return false;
  int64_t deadline_ns = timer_deadline_ns_;
  const bool may_sleep = driver_->PrepareToSleep(&deadline_ns);
  if (deadline_ns != timer_deadline_ns_) {
    loop_->CancelTimer(timer_);
    timer_deadline_ns_ = deadline_ns;
    // The timer only wakes the loop. The pass that follows looks at the clock.
    timer_ = loop_->AddTimer(deadline_ns, [this] { timer_deadline_ns_ = 0; });
  }
  return may_sleep;
}

void Agent::OnMail(Mail mail) {
  std::visit(
      [this](auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, rpc::MemberEvent>) {
          driver_->OnMemberEvent(m);
        } else if constexpr (std::is_same_v<M, HostFound>) {
          driver_->link().OnHostFound(m.connection, m.literal);
        } else if constexpr (std::is_same_v<M, OrderFilled>) {
          driver_->OnFilled(m.number, m.status);
        } else if constexpr (std::is_same_v<M, StopRequested>) {
          if (driver_->Stop(m.why)) admin_->SetServing("", false);
        } else if constexpr (std::is_same_v<M, StatusRequested>) {
          m.done(MakeStatus(m.request));
        } else if constexpr (std::is_same_v<M, SetTraceRequested>) {
          m.done(SetTrace(m.request));
        } else {
          m.done(MakeTrace(m.range));
        }
      },
      mail);
}

// --- GpuEvents

void Agent::OnGradientReady(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                            int32_t priority) {
  driver_->rank_words().OnRankPush({.rank = rank,
                                    .tensor = tensor,
                                    .round = round,
                                    .priority = priority,
                                    .signature = driver_->desk().SignatureOnDevice(rank, tensor)});
}

void Agent::OnUnexported(LocalRank rank, uint32_t request) {
  driver_->desk().ReplyUnexported(rank, request);
}

void Agent::OnEventsLost(LocalRank rank) { driver_->desk().TellEventsLost(rank); }

void Agent::OnGpuFailed(const std::string& text) {
  // A NIC may still read memory of the lost GPU, whose bytes are not reliable.
  if (gpus_->stage().AnyDirect()) driver_->link().CloseAll();
  driver_->rank_words().OnRankFailure(text);
}

void Agent::OnGpuNote(const std::string& text) {
  telemetry::Log(telemetry::LogLevel::kWarning, "GPUs: ", text);
}

}  // namespace talweg::agent
