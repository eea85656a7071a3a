// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "libs/base/check.h"
#include "libs/config/ready.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/host_id.h"
#include "libs/runtime/memory_limit.h"
#include "libs/shm/layout/arrivals.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/agent/agent_open.h"

namespace talweg::agent {
namespace {

constexpr int kEventsPerPass = 256;
constexpr uint64_t kGpuReduceBytesMax = 32 * kMiB;
// Where nothing is sent slices are not for a network: each costs calls of the GPU's driver.
constexpr uint64_t kAloneGpuSliceBytes = 16 * kMiB;
// With CPUs to spare for it. A GPU's switch from one process to the other takes 140 us, the copy of
// a piece to the host or back 80.
constexpr int64_t kWatchGpuNs = 300'000;

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      config_(options_.config),
      started_unix_ns_(UnixNowNs()),
      host_id_(HostId()),
      node_name_(config_.name.empty() ? HostName() : config_.name),
      timeline_(config_.trace_path.empty() ? 0 : config_.trace_rounds),
      life_({.alone = config_.standalone,
             .drain_ns = static_cast<int64_t>(config_.drain_timeout_ms) * 1'000'000}) {}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  std::unique_ptr<Agent> agent(new Agent(std::move(options)));
  TALWEG_RETURN_IF_ERROR(agent->Open());
  return agent;
}

Agent::~Agent() {
  link_.reset();
  if (admin_ != nullptr) admin_->Shutdown(0);
}

absl::Status Agent::Open() {
  TALWEG_RETURN_IF_ERROR(CheckTracePath(config_.trace_path));
  EventLoop::Options loop_options;
  loop_options.spin_ns_max = config_.spin_us < 0 ? -1 : int64_t{config_.spin_us} * 1000;
  TALWEG_ASSIGN_OR_RETURN(loop_, EventLoop::Create(&clock_, loop_options));
  mailbox_ = std::make_unique<Mailbox<Mail>>(loop_.get());
  TALWEG_RETURN_IF_ERROR(OpenGpuFront());
  TALWEG_RETURN_IF_ERROR(OpenRankServer());
  if (!standalone()) TALWEG_RETURN_IF_ERROR(OpenTransport());
  memory_ = std::make_unique<TensorMemory>(config_.rank_count, rank_server_.get(), transport_.get(),
                                           config_.slice_bytes_max >= shm::kArrivalBytesMin);
  desk_ = std::make_unique<RankDesk>(config_.rank_count, config_.job, rank_server_.get(),
                                     memory_.get(), static_cast<RankEvents*>(this));
  desk_->SetMembershipChanges(!standalone() &&
                              config_.loss_policy == config::LossPolicy::kContinue);
  if (gpu_platform_ != nullptr) {
    gpus_ = std::make_unique<GpuFront>(std::move(gpu_platform_),
                                       loop_->spin_ns_max() > 0 ? kWatchGpuNs : 0, memory_.get(),
                                       static_cast<GpuEvents*>(this));
    desk_->SetDevices(gpus_.get());
    TALWEG_RETURN_IF_ERROR(
        loop_->AddDescriptor(gpus_->stage().WaitDescriptor(), EPOLLIN,
                             [this](uint32_t) { gpus_->stage().DrainWakeups(); }));
  }
  NewMember();
  TALWEG_RETURN_IF_ERROR(OpenAdmin());
  link_ = standalone() ? MakeAloneLink() : MakeMemberLink();
  return absl::OkStatus();
}

std::unique_ptr<JobLink> Agent::MakeAloneLink() {
  const uint64_t slice_bytes_max =
      gpus_ == nullptr ? config_.slice_bytes_max
                       : std::max<uint64_t>(config_.slice_bytes_max, kAloneGpuSliceBytes);
  return NewAloneLink({.rank_count = config_.rank_count, .name = node_name_}, slice_bytes_max,
                      [this](const rpc::ViewPublished& published) { OnMemberEvent(published); });
}

std::unique_ptr<JobLink> Agent::MakeMemberLink() {
  auto data_plane = std::make_unique<DataPlane>(
      DataPlane::Options{.host_id = host_id_,
                         .local_transport = config_.local_transport,
                         .host_found =
                             [this](ConnectionId connection, absl::StatusOr<std::string> literal) {
                               mailbox_->Post(HostFound{connection, std::move(literal)});
                             },
                         .fetch_result =
                             [this](const pipeline::SliceBytes& slice, std::span<std::byte> bytes) {
                               return gpus_->stage().FetchResult(slice, bytes);
                             }},
      transport_.get(), memory_.get(), &timeline_, &clock_, static_cast<PeerEvents*>(this));
  const auto join_timeout_ns = static_cast<int64_t>(config_.join_timeout_ms) * 1'000'000;
  rpc::SchedulerLinkOptions scheduler = {.address = config_.scheduler,
                                         .seed = options_.incarnation.value(),
                                         .job_secret = options_.job_secret,
                                         .credentials = options_.credentials};
  scheduler.join_timeout_ns = std::min(scheduler.join_timeout_ns, join_timeout_ns);
  membership::JobSpec spec;
  spec.min_members = config_.min_members;
  spec.max_members = config_.max_members;
  spec.slice_bytes_max = config_.slice_bytes_max;
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
       .data_security = config::IsUnixAddress(config_.scheduler) ? "" : config_.data_security},
      [this](rpc::MemberEvent event) { mailbox_->Post(std::move(event)); });
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
  if (arena_bytes == 0) arena_bytes = MemoryLimitBytes() / 2;
  // Every tensor lies once a rank and twice as a result; those that the ranks sum lie twice a rank,
  // and are no results.
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
  loop_->AddPeriodicTimer(shm::kBeatEveryNs, [this] { rank_server_->Beat(); });
  return loop_->AddDescriptor(rank_server_->WaitDescriptor(), EPOLLIN,
                              [this](uint32_t) { rank_server_->PollSockets(*desk_); });
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
  handlers.set_trace = [this](const v1::SetTraceRequest& request, auto done) {
    mailbox_->Post(SetTraceRequested{request, std::move(done)});
  };
  handlers.get_trace = [this](const v1::GetTraceRequest&, auto done) {
    mailbox_->Post(TraceRequested{std::move(done)});
  };
  admin_service_ = rpc::MakeAgentAdminService(std::move(handlers));
  TALWEG_ASSIGN_OR_RETURN(admin_, rpc::Server::Start({.unix_path = listen.path,
                                                      .bind_host = listen.host,
                                                      .port_min = listen.port_first,
                                                      .port_max = listen.port_last,
                                                      .advertise_host = config_.advertise,
                                                      .credentials = options_.credentials,
                                                      .insecure = config_.insecure},
                                                     {admin_service_->service()}));
  if (!admin_->warning().empty()) Log(LogLevel::kWarning, admin_->warning());
  admin_->SetServing("talweg.agent.v1.AdminService", true);
  return absl::OkStatus();
}

void Agent::NewMember() {
  member_ = std::make_unique<pipeline::Member>(pipeline::MemberConfig{
      .self = {NodeRank{config_.node_rank}, options_.incarnation},
      .job_name = config_.job,
      .node_name = node_name_,
      .host_id = config_.local_transport ? host_id_ : "",
      .rank_count = config_.rank_count,
      .credit_bytes_max = config_.credit_bytes,
      // Where nothing is reduced nothing can be preempted. GPUs overlap what they are given.
      .reduce_bytes_max = memory_->ranks_sum() ? std::numeric_limits<uint64_t>::max()
                          : gpus_ != nullptr   ? kGpuReduceBytesMax
                                               : pipeline::MemberConfig{}.reduce_bytes_max,
      .unreachable_ns = UnreachableNs()});
}

absl::Status Agent::Run() {
  Log(LogLevel::kInfo, "serving ", config_.rank_count, " ranks of job '", config_.job, "' as node ",
      config_.node_rank, " at ", options_.socket_path, ", admin at ", admin_->address(),
      standalone() ? ", alone" : "");
  loop_->AddPoller(this);
  link_->Join(member_->config().self);
  loop_->Run();
  loop_->RemovePoller(this);
  const LifeEnd& end = life_.how_it_ends();
  const absl::Status left = link_->Leave(
      end.finished ? JobLink::LeaveReason::kFinished : JobLink::LeaveReason::kStopped, end.text);
  if (!left.ok()) Log(LogLevel::kWarning, "the scheduler was not told: ", StatusText(left));
  WriteTrace();
  admin_->Shutdown(0);
  // Ranks that are still there see at once that nobody serves them.
  desk_.reset();
  memory_->DropNicRegions();
  if (gpus_ != nullptr) loop_->RemoveDescriptor(gpus_->stage().WaitDescriptor());
  gpus_.reset();  // Its copies may still use what is freed next.
  link_.reset();
  memory_.reset();
  loop_->RemoveDescriptor(rank_server_->WaitDescriptor());
  rank_server_.reset();
  Log(LogLevel::kInfo, "ends: ", end.text);
  return end_;
}

void Agent::Stop(std::string why) { mailbox_->Post(StopRequested{std::move(why)}); }

int Agent::Poll() {
  int work = mailbox_->Drain([this](Mail mail) { OnMail(std::move(mail)); });
  work += link_->Poll(kEventsPerPass);
  work += rank_server_->PollRings(*desk_);
  if (gpus_ != nullptr) work += gpus_->stage().Poll(NowNs());
  work += ReduceSome();
  if (NowNs() >= member_->NextTickNs()) {
    Deliver([this](pipeline::Effects& out) { member_->OnTick(NowNs(), out); });
  }
  if (std::exchange(dirty_, false)) {
    Deliver([this](pipeline::Effects& out) { member_->Flush(NowNs(), out); });
    dirty_ = false;
    ++work;
  }
  Live();
  return work;
}

bool Agent::PrepareToSleep() {
  if (mailbox_->size() > 0 || !reduces_.empty() || dirty_) return false;
  using Until = shm::RankServer::Until;
  // A timeline has each push when it was.
  bool may_sleep = rank_server_->PrepareToSleep(
      memory_->ranks_sum() && !timeline_.records() ? Until::kAwaited : Until::kPushed);
  may_sleep &= link_->PrepareToSleep();
  int64_t deadline_ns = member_->NextTickNs();
  if (const auto life_ns = life_.NextNs(Look())) deadline_ns = std::min(deadline_ns, *life_ns);
  if (gpus_ != nullptr) {
    const std::optional<int64_t> gpus_ns = gpus_->stage().PrepareToSleep();
    if (gpus_ns && *gpus_ns <= NowNs()) return false;
    if (gpus_ns) deadline_ns = std::min(deadline_ns, *gpus_ns);
  }
  if (deadline_ns != timer_deadline_ns_) {
    loop_->CancelTimer(timer_);
    timer_deadline_ns_ = deadline_ns;
    // The pass that follows looks at the clock.
    timer_ = loop_->AddTimer(deadline_ns, [this] { timer_deadline_ns_ = 0; });
  }
  return may_sleep;
}

void Agent::Deliver(std::function<void(pipeline::Effects&)> event) {
  events_.push_back(std::move(event));
  if (performing_) return;  // After what is being performed.
  performing_ = true;
  while (!events_.empty()) {
    const auto next = std::move(events_.front());
    events_.pop_front();
    pipeline::Effects effects;
    next(effects);
    dirty_ = true;
    Perform(effects);
  }
  performing_ = false;
}

void Agent::Perform(pipeline::Effects& effects) {
  for (pipeline::Effect& effect : effects) {
    std::visit(
        [this](auto& e) {
          using E = std::decay_t<decltype(e)>;
          if constexpr (std::is_same_v<E, pipeline::Connect> ||
                        std::is_same_v<E, pipeline::Close> || std::is_same_v<E, pipeline::Send> ||
                        std::is_same_v<E, pipeline::WriteSlice>) {
            link_->Do(e);
          } else if constexpr (std::is_same_v<E, pipeline::DeclareReply> ||
                               std::is_same_v<E, pipeline::FailRank> ||
                               std::is_same_v<E, pipeline::StopRanks>) {
            desk_->Do(e);
          } else if constexpr (std::is_same_v<E, pipeline::SliceArrived>) {
            // What GPUs have summed is in host memory when they deliver the round, not before.
            if (gpus_ == nullptr || !gpus_->stage().TakesPart(e.result.tensor, e.result.round)) {
              desk_->Do(e);
            }
          } else if constexpr (std::is_same_v<E, pipeline::CompleteRound>) {
            missing_nodes_.erase({e.tensor, e.round});
            if (gpus_ != nullptr && gpus_->stage().TakesPart(e.tensor, e.round)) {
              gpus_->stage().Deliver(e);  // FinishRound follows.
            } else {
              FinishRound(e);
            }
          } else if constexpr (std::is_same_v<E, pipeline::FailJob>) {
            if (!life_.Leaves()) {
              if (scheduler_silent_since_ns_ != 0) e.text += "; " + SchedulerSilenceText();
              Log(LogLevel::kError, "job '", config_.job, "' has failed: ", e.text);
              end_ = absl::AbortedError(e.text);
            }
            life_.OnFailed(member_->failed_text(), NowNs());
            desk_->Do(e);
            reduces_.clear();
            if (gpus_ != nullptr) gpus_->stage().Abandon();
          } else if constexpr (std::is_same_v<E, pipeline::FailTensor>) {
            Log(LogLevel::kError, e.text);
          } else if constexpr (std::is_same_v<E, pipeline::Quiesced>) {
            link_->Quiesced(e.id, e.step);
          } else if constexpr (std::is_same_v<E, pipeline::ReportLost>) {
            link_->ReportLost(e);
          } else if constexpr (std::is_same_v<E, pipeline::RanksDone>) {
            life_.OnRanksDone();
          } else if constexpr (std::is_same_v<E, pipeline::Log>) {
            Log(e.is_warning ? LogLevel::kWarning : LogLevel::kInfo, e.text);
          } else {
            Do(e);
          }
        },
        effect);
  }
}

void Agent::Do(pipeline::AllocateTensor& effect) {
  const bool on_device = desk_->IsOnDevice(effect.spec.name);
  const absl::Status status = memory_->Allocate(effect.tensor, effect.spec, on_device,
                                                on_device ? MakeDirect(effect) : std::nullopt,
                                                desk_->IsInPlace(effect.spec.name));
  if (on_device) member_->StageContributions(effect.tensor);
  if (!status.ok() && gpus_ != nullptr) gpus_->stage().DropDirect(effect.tensor);
  const std::string text = status.ok() ? "" : std::string(status.message());
  Deliver([this, tensor = effect.tensor, text](pipeline::Effects& out) {
    member_->OnTensorAllocated(tensor, text, NowNs(), out);
  });
}

void Agent::FinishRound(const pipeline::CompleteRound& effect) {
  desk_->Do(effect);
  if (!timeline_.Wants(effect.round)) return;
  const pipeline::TensorSpec& spec = memory_->spec(effect.tensor);
  timeline_.OnVisible(effect.tensor, spec.name, effect.round, spec.bytes(), NowNs());
}

void Agent::Do(const pipeline::CopyInline& effect) {
  TALWEG_CHECK(frame_ != nullptr);
  const auto& results = std::get<std::vector<wire::Result>>(frame_->entries);
  const std::span<const std::byte> bytes = results[effect.entry].bytes;
  if (memory_->OnNic(effect.target)) {
    // If that fails the GPU is lost, and with it this member.
    gpus_->stage().StoreResult(effect.target, bytes).IgnoreError();
    return;
  }
  const std::span<std::byte> target = memory_->Writable(effect.target);
  TALWEG_CHECK(bytes.size() == target.size());
  std::memcpy(target.data(), bytes.data(), bytes.size());
}

void Agent::OnPeerConnected(ConnectionId connection) {
  Deliver([this, connection](pipeline::Effects& out) {
    member_->OnConnected(connection, NowNs(), out);
  });
}

void Agent::OnPeerDisconnected(ConnectionId connection, const std::string& reason) {
  Deliver([this, connection, reason](pipeline::Effects& out) {
    for (const auto& [index, owner] : member_->owners()) {
      if (owner.connection == connection) link_->ReportUnreachable(owner.incarnation, reason);
    }
    member_->OnDisconnected(connection, reason, NowNs(), out);
  });
}

void Agent::OnPeerFrame(ConnectionId connection, const wire::Frame& frame) {
  if (const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries)) {
    const int64_t now_ns = NowNs();
    for (const wire::Result& result : *results) {
      if (!timeline_.Wants(result.round)) continue;
      const pipeline::Tensor* tensor = member_->FindTensor(result.key);
      if (tensor != nullptr) timeline_.OnResult(tensor->index, result.round, now_ns);
    }
  }
  // The transport delivers frames outside of everything else, so this is performed before it
  // returns: the frame is borrowed for that long.
  TALWEG_CHECK(!performing_);
  frame_ = &frame;
  Deliver([this, connection, &frame](pipeline::Effects& out) {
    member_->OnFrame(connection, frame, NowNs(), out);
  });
  frame_ = nullptr;
}

void Agent::OnRankJoined(LocalRank rank, uint32_t pid) {
  life_.OnRankAttached();
  Deliver([this, rank, pid](pipeline::Effects& out) {
    member_->OnRankJoined(rank, pid, NowNs(), out);
  });
}

void Agent::OnRanksAttached(bool all) { link_->SetRanksAttached(all); }

void Agent::OnRankDeclare(LocalRank rank, uint32_t request, const pipeline::TensorSpec& spec) {
  Deliver([this, rank, request, spec](pipeline::Effects& out) {
    member_->OnRankDeclare(rank, request, spec, NowNs(), out);
  });
}

void Agent::OnRankPush(const pipeline::Push& push) {
  Deliver([this, push](pipeline::Effects& out) {
    const int64_t now_ns = NowNs();
    member_->OnPush(push, now_ns, out);
    if (timeline_.Wants(push.round) && push.tensor.value() < member_->tensors().size()) {
      const pipeline::Tensor& state = *member_->tensors()[push.tensor.value()];
      timeline_.OnPushed(push.tensor, push.round,
                         state.contributed && state.open_round() == push.round, now_ns);
    }
  });
}

void Agent::OnRankLeft(LocalRank rank, bool clean, const std::string& text) {
  Log(clean ? LogLevel::kInfo : LogLevel::kWarning, "local rank ", rank,
      clean ? " has left" : " was lost: ", clean ? "" : text);
  if (gpus_ != nullptr) gpus_->stage().OnRankLeft(rank);
  Deliver([this, rank, clean, text](pipeline::Effects& out) {
    member_->OnRankLeft(rank, clean, text, NowNs(), out);
  });
}

}  // namespace talweg::agent
