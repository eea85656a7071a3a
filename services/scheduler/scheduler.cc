// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/scheduler.h"

#include <mutex>
#include <optional>
#include <utility>

#include "libs/runtime/mailbox.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/scheduler/front.h"
#include "services/scheduler/quotas_file.h"
#include "services/scheduler/scheduler_driver.h"

namespace talweg::scheduler {
namespace {

constexpr int64_t kLookAtQuotasNs = 1'000'000'000;

}  // namespace

class Scheduler::Impl : private runtime::Poller {
 public:
  Impl(const SchedulerOptions& options, std::unique_ptr<store::Store> store,
       const runtime::Clock* clock, runtime::EventLoop* loop,
       std::function<void(const absl::Status&)> on_failure)
      : options_(options),
        loop_(loop),
        mailbox_(loop),
        driver_(options.membership, options.version, std::move(store), clock,
                std::move(on_failure)),
        front_(MakeFront(
            [this](std::function<void(SchedulerDriver&)> work) { return Post(std::move(work)); },
            options.server.credentials, options.server.gate, options.job_secret)) {}

  ~Impl() override { Shutdown(0); }

  absl::Status Start() {
    if (!options_.quotas_path.empty()) {
      quotas_.emplace(options_.quotas_path);
      TALWEG_ASSIGN_OR_RETURN(membership::Quotas quotas, quotas_->Read());
      TALWEG_RETURN_IF_ERROR(driver_.Open());
      driver_.SetQuotas(std::move(quotas));
    } else {
      TALWEG_RETURN_IF_ERROR(driver_.Open());
    }
    TALWEG_ASSIGN_OR_RETURN(server_, rpc::Server::Start(options_.server, front_->services()));
    driver_.SetAddress(server_->address());
    driver_.SetJobSecret(options_.job_secret);
    driver_.SetDataSecurity(options_.data_security);
    if (quotas_) looks_ = loop_->AddPeriodicTimer(kLookAtQuotasNs, [this] { LookAtQuotas(); });
    loop_->AddPoller(this);
    tick_ = loop_->AddPeriodicTimer(options_.membership.TickNs(), [this] { driver_.OnTick(); });
    return absl::OkStatus();
  }

  void Shutdown(int64_t timeout_ns) {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(closed_, true)) return;
    }
    if (server_ == nullptr) return;
    loop_->CancelTimer(tick_);
    if (quotas_) loop_->CancelTimer(looks_);
    loop_->RemovePoller(this);
    // Answers earlier requests. Then all streams must end, so that the server can end.
    Poll();
    driver_.EndStreams(absl::UnavailableError("the scheduler is shutting down"));
    server_->Shutdown(timeout_ns);
  }

  const rpc::Server& server() const { return *server_; }
  int64_t drain_timeout_ns() const { return options_.drain_timeout_ns; }

 private:
  bool Post(std::function<void(SchedulerDriver&)> work) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    mailbox_.Post(std::move(work));
    return true;
  }

  void LookAtQuotas() {
    auto changed = quotas_->ReadIfChanged();
    if (!changed) return;
    if (changed->ok()) {
      telemetry::Log(telemetry::LogLevel::kInfo, "the rules of ", options_.quotas_path,
                     " hold from now on");
      driver_.SetQuotas(**std::move(changed));
    } else {
      telemetry::Log(telemetry::LogLevel::kError,
                     "the rules before stay: ", status::StatusText(changed->status()));
    }
  }

  int Poll() override {
    return mailbox_.Drain([this](std::function<void(SchedulerDriver&)> work) { work(driver_); });
  }
  bool PrepareToSleep() override { return mailbox_.size() == 0; }

  const SchedulerOptions options_;
  runtime::EventLoop* const loop_;
  std::mutex mutex_;
  bool closed_ = false;
  runtime::Mailbox<std::function<void(SchedulerDriver&)>> mailbox_;
  SchedulerDriver driver_;
  const std::unique_ptr<Front> front_;
  std::unique_ptr<rpc::Server> server_;
  runtime::EventLoop::TimerId tick_ = 0;
  std::optional<QuotasFile> quotas_;
  runtime::EventLoop::TimerId looks_ = 0;  // Set if quotas_ is.
};

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Start(
    const SchedulerOptions& options, std::unique_ptr<store::Store> store,
    const runtime::Clock* clock, runtime::EventLoop* loop,
    std::function<void(const absl::Status&)> on_failure) {
  auto impl = std::make_unique<Impl>(options, std::move(store), clock, loop, std::move(on_failure));
  TALWEG_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Scheduler>(new Scheduler(std::move(impl)));
}

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() = default;

const std::string& Scheduler::address() const { return impl_->server().address(); }
const std::string& Scheduler::warning() const { return impl_->server().warning(); }
void Scheduler::Shutdown() { impl_->Shutdown(impl_->drain_timeout_ns()); }

}  // namespace talweg::scheduler
