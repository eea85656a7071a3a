// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "libs/base/bytes.h"
#include "libs/base/fingerprint.h"
#include "libs/base/shown_address.h"
#include "libs/config/ready.h"
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

namespace talweg {
namespace {

constexpr int64_t kTickNs = 100'000'000;
constexpr int64_t kNsPerMs = 1'000'000;
// The last word to the scheduler, when draining has taken all the time that there was.
constexpr int64_t kGoodbyeNs = 1'000'000'000;
constexpr char kAdminServiceName[] = "talweg.aggregator.v1.AdminService";

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

// Whether what is said to that address does not leave this machine.
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
    const config::AggregatorConfig& config, Incarnation incarnation, const Clock* clock,
    std::string job_secret, std::shared_ptr<const rpc::Credentials> credentials) {
  auto aggregator = std::unique_ptr<Aggregator>(
      new Aggregator(config, incarnation, clock, std::move(job_secret), std::move(credentials)));
  TALWEG_RETURN_IF_ERROR(aggregator->Open());
  return aggregator;
}

Aggregator::Aggregator(const config::AggregatorConfig& config, Incarnation incarnation,
                       const Clock* clock, std::string job_secret,
                       std::shared_ptr<const rpc::Credentials> credentials)
    : config_(config),
      job_secret_(std::move(job_secret)),
      credentials_(std::move(credentials)),
      clock_(clock),
      started_unix_ns_(UnixNowNs()),
      name_(config.name.empty() ? HostName() : config.name),
      host_id_(HostId()),
      incarnation_(incarnation) {}

Aggregator::~Aggregator() {
  if (loop_ == nullptr) return;
  if (data_plane_ != nullptr) loop_->RemovePoller(data_plane_.get());
  if (errands_ != nullptr) loop_->RemovePoller(errands_.get());
  if (transport_ != nullptr) loop_->RemoveDescriptor(transport_->WaitDescriptor());
}

absl::Status Aggregator::Open() {
  EventLoop::Options options;
  if (config_.spin_us >= 0) options.spin_ns_max = int64_t{config_.spin_us} * 1000;
  TALWEG_ASSIGN_OR_RETURN(loop_, EventLoop::Create(clock_, options));
  TALWEG_RETURN_IF_ERROR(OpenTransport());
  data_plane_ = std::make_unique<DataPlane>(
      DataPlaneOptions{.name = name_,
                       .incarnation = incarnation_,
                       .credit_bytes = config_.credit_bytes,
                       .memory_bytes_max = config_.memory_bytes_max == 0
                                               ? MemoryLimitBytes() / 2
                                               : config_.memory_bytes_max},
      transport_.get(), clock_);
  errands_ = std::make_unique<Errands>(loop_.get());
  loop_->AddPoller(errands_.get());
  loop_->AddPoller(data_plane_.get());
  TALWEG_RETURN_IF_ERROR(
      loop_->AddDescriptor(transport_->WaitDescriptor(), EPOLLIN, [](uint32_t) {}));
  loop_->AddPeriodicTimer(kTickNs, [this] { Tick(); });
  return OpenAdmin();
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
  if (!address.ok()) return Annotate(address.status(), "listening for agents");
  data_address_ = *address;
  if (config_.listen.path.empty()) SayWhoCanConnect();
  return absl::OkStatus();
}

void Aggregator::SayWhoCanConnect() const {
  const bool is_open = !config_.interface.empty() || !IsLoopback(config_.listen.host);
  const LogLevel level = is_open ? LogLevel::kWarning : LogLevel::kInfo;
  const std::string where =
      (is_open ? "agents of other machines can connect to " : "users of this machine can reach ") +
      public_data_address() + ": ";
  const std::string warning = transport::NetworkWarning(NetworkOf(config_));
  if (!warning.empty()) {
    Log(level, where, warning);
  } else if (credentials_ == nullptr && !StaysHere(config_.scheduler)) {
    Log(LogLevel::kWarning, where, "its keys reach the scheduler at ", config_.scheduler,
        " without TLS, so whoever is on that path has them; give tls_dir");
  }
}

absl::Status Aggregator::OpenAdmin() {
  admin_service_ = rpc::MakeAggregatorAdminService(
      {.get_status = [this](const aggregator::v1::GetStatusRequest& request,
                            rpc::Done<aggregator::v1::GetStatusResponse> done) {
        errands_->Post([this, request, done = std::move(done)] { done(GetStatus(request)); });
      }});
  TALWEG_ASSIGN_OR_RETURN(const config::ListenAddress listen,
                          config::OnInterface(config_.admin_listen, config_.interface));
  TALWEG_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.unix_path = listen.path,
                                                       .bind_host = listen.host,
                                                       .port_min = listen.port_first,
                                                       .port_max = listen.port_last,
                                                       .advertise_host = config_.advertise,
                                                       .credentials = credentials_,
                                                       .insecure = config_.insecure},
                                                      {admin_service_->service()}));
  if (!server_->warning().empty()) Log(LogLevel::kWarning, server_->warning());
  server_->SetServing(kAdminServiceName, true);
  return absl::OkStatus();
}

std::string Aggregator::public_data_address() const { return ShownAddress(data_address_); }

absl::Status Aggregator::Run() {
  Log(LogLevel::kInfo, "aggregator '", name_, "' listens on ", public_data_address(), ", admin on ",
      admin_address(), ", ", FormatBytes(data_plane_->budget().limit_bytes()),
      " for slots and results");
  Register();
  loop_->Run();
  return result_;
}

void Aggregator::Stop() { loop_->Stop(); }

void Aggregator::Shutdown(const std::string& text) {
  const int64_t deadline_ns =
      clock_->NowNs() + static_cast<int64_t>(config_.drain_timeout_ms) * kNsPerMs;
  const auto left_ns = [&] { return std::max(deadline_ns - clock_->NowNs(), kGoodbyeNs); };
  // From here on the registration stays the one that it is.
  auto promised = std::make_shared<std::promise<rpc::AggregatorRegistration*>>();
  auto answer = promised->get_future();
  auto over = std::make_shared<std::future<void>>();
  errands_->Post([this, promised, over] {
    draining_ = true;
    jobs_over_.emplace();
    *over = jobs_over_->get_future();
    promised->set_value(registration_.get());
  });
  if (answer.wait_for(std::chrono::nanoseconds(left_ns())) != std::future_status::ready) {
    Stop();
    return;
  }
  rpc::AggregatorRegistration* const registration = answer.get();
  if (registration != nullptr) {
    const absl::StatusOr<uint32_t> jobs = registration->Drain(text, left_ns());
    if (!jobs.ok()) {
      Log(LogLevel::kWarning, "draining: ", StatusText(jobs.status()));
    } else if (*jobs > 0) {
      Log(LogLevel::kInfo, "draining: ", *jobs, " jobs are still served");
      over->wait_for(std::chrono::nanoseconds(left_ns()));
    }
    const absl::Status goodbye = registration->Deregister(text, left_ns());
    if (!goodbye.ok()) Log(LogLevel::kWarning, "leaving: ", StatusText(goodbye));
  }
  Stop();
}

void Aggregator::Register() {
  const Incarnation incarnation = incarnation_;
  registration_ = std::make_unique<rpc::AggregatorRegistration>(
      rpc::SchedulerLinkOptions{.address = config_.scheduler,
                                .seed = incarnation.value(),
                                .job_secret = job_secret_,
                                .credentials = credentials_},
      [this, incarnation](rpc::AggregatorEvent event) {
        errands_->Post([this, incarnation, event = std::move(event)] {
          if (incarnation == incarnation_) OnSchedulerEvent(event);
        });
      });
  registration_->Register({.incarnation = incarnation,
                           .name = name_,
                           .weight = config_.weight,
                           .data_address = data_address_,
                           .host_id = host_id_,
                           .admin_address = admin_address()});
}

void Aggregator::OnSchedulerEvent(rpc::AggregatorEvent event) {
  if (std::holds_alternative<rpc::Registered>(event)) {
    scheduler_reachable_ = true;
    scheduler_text_.clear();
    Log(LogLevel::kInfo, "registered with the scheduler at ", config_.scheduler);
  } else if (const auto* refused = std::get_if<rpc::RegistrationRefused>(&event)) {
    result_ = refused->status;
    Stop();
  } else if (const auto* published = std::get_if<rpc::JobViewPublished>(&event)) {
    data_plane_->OnJobView(published->job_name, published->view);
  } else if (const auto* closed = std::get_if<rpc::JobClosed>(&event)) {
    data_plane_->OnJobClosed(closed->job, closed->text);
  } else if (const auto* lost = std::get_if<rpc::LeaseLost>(&event)) {
    OnLeaseLost(lost->text);
  } else if (const auto* unreachable = std::get_if<rpc::Unreachable>(&event)) {
    scheduler_reachable_ = false;
    scheduler_text_ = unreachable->text;
    Log(LogLevel::kWarning, "the scheduler does not answer, steps go on: ", unreachable->text);
  } else if (std::holds_alternative<rpc::Reachable>(event)) {
    scheduler_reachable_ = true;
    scheduler_text_.clear();
    Log(LogLevel::kInfo, "the scheduler answers again");
  }
}

void Aggregator::OnLeaseLost(const std::string& text) {
  Log(LogLevel::kError, "the scheduler takes this incarnation for lost: ", text);
  if (draining_) {
    Stop();
    return;
  }
  // What was declared lost never comes back; a new incarnation may be given new jobs.
  incarnation_ = Incarnation{Mix64(incarnation_.value())};
  data_plane_->Restart(incarnation_, "aggregator '" + name_ + "' lost its lease: " + text);
  scheduler_reachable_ = false;
  scheduler_text_ = text;
  Register();
}

void Aggregator::Tick() {
  data_plane_->Tick();
  if (!jobs_over_) return;
  for (const aggregation::Job* job : data_plane_->jobs()) {
    if (!job->closed()) return;
  }
  jobs_over_->set_value();
  jobs_over_.reset();
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
  response.set_scheduler_reachable(scheduler_reachable_);
  response.set_scheduler_text(scheduler_text_);
  response.set_draining(draining_);
  response.set_pid(static_cast<uint64_t>(getpid()));
  for (const CounterValue& counter : counters_.Snapshot()) {
    (*response.mutable_counters())[counter.name] = counter.value;
  }
  return response;
}

}  // namespace talweg
