// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/shown_address.h"
#include "libs/config/ready.h"
#include "libs/rpc/call_gate.h"
#include "libs/rpc/conversion.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/host_id.h"
#include "libs/runtime/memory_limit.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "libs/transport/composite/composite_transport.h"
#include "libs/transport/local/local_transport.h"
#include "libs/transport/network/network.h"
#include "services/aggregator/status_report.h"

namespace talweg::aggregator {
namespace {

constexpr int64_t kTickNs = 100'000'000;
constexpr int64_t kNsPerMs = 1'000'000;
// How long the data thread may take to answer, beside what it waits for.
constexpr int64_t kAnswerNs = 1'000'000'000;
constexpr char kAdminServiceName[] = "talweg.aggregator.v1.AdminService";

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

// Returns whether bytes that are sent to this address stay on this machine.
bool StaysHere(const std::string& address) {
  return config::IsUnixAddress(address) || address.starts_with("[::1]:") ||
         IsLoopback(address.substr(0, address.rfind(':')));
}

transport::NetworkOptions NetworkOf(const config::AggregatorConfig& config) {
  return {.data_security = config.data_security,
          .data_transport = config.data_transport,
          .fabric = {.provider = config.provider,
                     .silence_ns = static_cast<int64_t>(config.silence_ms) * kNsPerMs}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Aggregator>> Aggregator::Create(
    const config::AggregatorConfig& config, Incarnation incarnation, const runtime::Clock* clock,
    std::string job_secret, std::shared_ptr<const rpc::Credentials> credentials, SharedLink* link) {
  auto aggregator = std::unique_ptr<Aggregator>(new Aggregator(
      config, incarnation, clock, std::move(job_secret), std::move(credentials), link));
  TALWEG_RETURN_IF_ERROR(aggregator->Open());
  return aggregator;
}

Aggregator::Aggregator(const config::AggregatorConfig& config, Incarnation incarnation,
                       const runtime::Clock* clock, std::string job_secret,
                       std::shared_ptr<const rpc::Credentials> credentials, SharedLink* link)
    : config_(config),
      job_secret_(std::move(job_secret)),
      credentials_(std::move(credentials)),
      clock_(clock),
      link_(link),
      started_unix_ns_(runtime::UnixNowNs()),
      name_(NameOf(config)),
      host_id_(runtime::HostId()),
      incarnation_(incarnation) {}

std::string Aggregator::NameOf(const config::AggregatorConfig& config) {
  return config.name.empty() ? runtime::HostName() : config.name;
}

uint64_t Aggregator::MemoryBytesMaxOf(const config::AggregatorConfig& config) {
  return config.memory_bytes_max == 0 ? runtime::MemoryLimitBytes() / 2 : config.memory_bytes_max;
}

Aggregator::~Aggregator() {
  life_.reset();  // The life's link posts to errands_.
  if (loop_ == nullptr) return;
  if (data_plane_ != nullptr) loop_->RemovePoller(data_plane_.get());
  if (errands_ != nullptr) loop_->RemovePoller(errands_.get());
  if (transport_ != nullptr) loop_->RemoveDescriptor(transport_->WaitDescriptor());
}

absl::Status Aggregator::Open() {
  runtime::EventLoop::Options options;
  if (config_.spin_us >= 0) options.spin_ns_max = int64_t{config_.spin_us} * 1000;
  TALWEG_ASSIGN_OR_RETURN(loop_, runtime::EventLoop::Create(clock_, options));
  TALWEG_RETURN_IF_ERROR(OpenTransport());
  errands_ = std::make_unique<Errands>(loop_.get());
  memory_thread_ = std::make_unique<MemoryThread>(
      [this](std::function<void()> errand) { errands_->Post(std::move(errand)); });
  data_plane_ = std::make_unique<AggregatorDataPlane>(
      DataPlaneOptions{.name = name_,
                       .incarnation = incarnation_,
                       .credit_bytes = config_.credit_bytes,
                       .memory_bytes_max = MemoryBytesMaxOf(config_),
                       .results_window_bytes = config_.results_by_priority
                                                   ? aggregation::ResultQueue::kUsualWindowBytes
                                                   : aggregation::ResultQueue::kNoWindow,
                       .unix_ahead_ns = started_unix_ns_ - clock_->NowNs(),
                       .peer_connections_max = config_.peer_connections_max},
      transport_.get(), clock_,
      DataPlaneMachine{.memory = memory_thread_.get(), .link = link_, .wake = [loop = loop_.get()] {
                         loop->Wake();
                       }});
  loop_->AddPoller(errands_.get());
  loop_->AddPoller(data_plane_.get());
  TALWEG_RETURN_IF_ERROR(
      loop_->AddDescriptor(transport_->WaitDescriptor(), EPOLLIN, [](uint32_t) {}));
  loop_->AddPeriodicTimer(kTickNs, [this] { life_->Tick(); });
  TALWEG_RETURN_IF_ERROR(OpenAdmin());
  life_ = std::make_unique<AggregatorLife>(
      AggregatorLife::Options{
          .self = {.incarnation = incarnation_,
                   .name = name_,
                   .weight = config_.weight,
                   .data_address = data_address_,
                   .host_id = host_id_,
                   .admin_address = admin_address()},
          .scheduler = config_.scheduler,
          .drain_timeout_ns = static_cast<int64_t>(config_.drain_timeout_ms) * kNsPerMs},
      data_plane_.get(), clock_,
      [this](Incarnation incarnation, SchedulerLink::OnEvent on_event) {
        return MakeLink(incarnation, std::move(on_event));
      },
      [this] { Stop(); });
  return absl::OkStatus();
}

absl::Status Aggregator::OpenTransport() {
  const int64_t silence_ns = static_cast<int64_t>(config_.silence_ms) * 1'000'000;
  std::unique_ptr<transport::LocalTransport> local;
  if (config_.local_transport) {
    TALWEG_ASSIGN_OR_RETURN(local, transport::NewLocalTransport({.socket_path = config_.listen.path,
                                                                 .silence_ns = silence_ns},
                                                                clock_, &counters_));
  }
  if (!config_.listen.path.empty()) {
    transport_ = std::move(local);
  } else {
    TALWEG_ASSIGN_OR_RETURN(transport_,
                            transport::NewNetworkTransport(NetworkOf(config_), clock_, &counters_));
    if (local != nullptr) {
      TALWEG_ASSIGN_OR_RETURN(
          transport_, transport::NewCompositeTransport(std::move(transport_), std::move(local)));
    }
  }
  const absl::StatusOr<std::string> address =
      transport_->Listen({.bind_address = config_.listen.host,
                          .bind_interface = config_.interface,
                          .port_first = config_.listen.port_first,
                          .port_last = config_.listen.port_last,
                          .advertise_host = config_.advertise});
  if (!address.ok()) return status::Annotate(address.status(), "listening for agents");
  data_address_ = *address;
  if (config_.listen.path.empty()) SayWhoCanConnect();
  return absl::OkStatus();
}

void Aggregator::SayWhoCanConnect() const {
  const bool is_open = !config_.interface.empty() || !IsLoopback(config_.listen.host);
  const telemetry::LogLevel level =
      is_open ? telemetry::LogLevel::kWarning : telemetry::LogLevel::kInfo;
  const std::string where =
      (is_open ? "agents of other machines can connect to " : "users of this machine can reach ") +
      public_data_address() + ": ";
  const std::string warning = transport::NetworkWarning(NetworkOf(config_));
  if (!warning.empty()) {
    telemetry::Log(level, where, warning);
  } else if (credentials_ == nullptr && job_secret_.empty() && !StaysHere(config_.scheduler)) {
    telemetry::Log(
        telemetry::LogLevel::kWarning, where, "its keys reach the scheduler at ", config_.scheduler,
        " without TLS and without a job secret, so whoever is on that path has them; give "
        "tls_dir, or a secret file (talweg secret)");
  }
}

absl::Status Aggregator::OpenAdmin() {
  const auto gate = std::make_shared<rpc::CallGate>(
      rpc::CallLimitOptions{.per_second_max = config_.peer_calls_per_second_max,
                            .open_max = config_.peer_calls_open_max});
  admin_service_ = rpc::MakeAggregatorAdminService(
      {.get_status =
           [this](const aggregator::v1::GetStatusRequest& request,
                  rpc::Done<aggregator::v1::GetStatusResponse> done) {
             errands_->Post([this, request, done = std::move(done)] { done(GetStatus(request)); });
           }},
      gate);
  TALWEG_ASSIGN_OR_RETURN(const config::ListenAddress listen,
                          config::OnInterface(config_.admin_listen, config_.interface));
  TALWEG_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.unix_path = listen.path,
                                                       .bind_host = listen.host,
                                                       .port_min = listen.port_first,
                                                       .port_max = listen.port_last,
                                                       .advertise_host = config_.advertise,
                                                       .credentials = credentials_,
                                                       .insecure = config_.insecure,
                                                       .gate = gate},
                                                      {admin_service_->service()}));
  if (!server_->warning().empty())
    telemetry::Log(telemetry::LogLevel::kWarning, server_->warning());
  server_->SetServing(kAdminServiceName, true);
  return absl::OkStatus();
}

std::string Aggregator::public_data_address() const { return ShownAddress(data_address_); }

absl::Status Aggregator::Run() {
  telemetry::Log(telemetry::LogLevel::kInfo, "aggregator '", name_, "' listens on ",
                 public_data_address(), ", admin on ", admin_address(), ", ",
                 FormatBytes(data_plane_->budget().limit_bytes()), " for slots and results");
  life_->Start();
  loop_->Run();
  return life_->result();
}

void Aggregator::Stop() {
  shutdown_calls_.Close();
  loop_->Stop();
}

void Aggregator::Shutdown(const std::string& text) {
  const int64_t drain_ns = static_cast<int64_t>(config_.drain_timeout_ms) * kNsPerMs;
  errands_->Post([this, text] { life_->Shutdown(text); });
  // Runs calls until the life has ended, or the data thread takes too long.
  while (shutdown_calls_.RunNext(drain_ns + kAnswerNs)) {
  }
  Stop();
}

std::unique_ptr<SchedulerLink> Aggregator::MakeLink(Incarnation incarnation,
                                                    SchedulerLink::OnEvent on_event) {
  return NewRegistrationLink(
      {.address = config_.scheduler,
       .renew_ns = static_cast<int64_t>(config_.renew_ms) * 1'000'000,
       .seed = incarnation.value(),
       .job_secret = job_secret_,
       .credentials = credentials_},
      [this](std::function<void()> errand) { errands_->Post(std::move(errand)); }, &shutdown_calls_,
      std::move(on_event));
}

aggregator::v1::GetStatusResponse Aggregator::GetStatus(
    const aggregator::v1::GetStatusRequest& request) {
  aggregator::v1::GetStatusResponse response;
  FillStatus(*data_plane_, request, clock_->NowNs(), &response);
  *response.mutable_version() = rpc::ToProto(rpc::Version{});
  *response.mutable_started_at() = rpc::TimestampFromUnixNs(started_unix_ns_);
  response.set_name(name_);
  response.set_data_address(public_data_address());
  response.set_host_id(host_id_);
  response.set_scheduler_reachable(life_->scheduler_reachable());
  response.set_scheduler_text(life_->scheduler_text());
  response.set_draining(life_->state() != AggregatorLife::State::kServing);
  response.set_pid(static_cast<uint64_t>(getpid()));
  for (const telemetry::CounterValue& counter : counters_.Snapshot()) {
    (*response.mutable_counters())[counter.name] = counter.value;
  }
  return response;
}

}  // namespace talweg::aggregator
