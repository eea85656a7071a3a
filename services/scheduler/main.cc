// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "libs/config/config.h"
#include "libs/config/ready.h"
#include "libs/config/secret_file.h"
#include "libs/rpc/call_gate.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/runtime/incarnation.h"
#include "libs/runtime/shutdown_signal.h"
#include "libs/status/status.h"
#include "libs/store/store.h"
#include "libs/telemetry/log.h"
#include "services/credentials/credentials.h"
#include "services/scheduler/scheduler.h"

namespace talweg::scheduler {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

absl::StatusOr<std::unique_ptr<store::Store>> OpenStore(const config::SchedulerConfig& config) {
  if (config.in_memory) return store::MakeMemoryStore();
  std::string path = config.store_path;
  if (path.empty()) {
    TALWEG_ASSIGN_OR_RETURN(path, config::DefaultStorePath(config::ProcessEnvironment()));
  }
  return store::OpenSqliteStore(path);
}

absl::Status Serve(const config::SchedulerConfig& config) {
  TALWEG_ASSIGN_OR_RETURN(const std::unique_ptr<runtime::ShutdownSignal> signal,
                          runtime::ShutdownSignal::Create());
  const runtime::MonotonicClock clock;
  // The scheduler does not spin, unless the option says so.
  TALWEG_ASSIGN_OR_RETURN(
      const std::unique_ptr<runtime::EventLoop> loop,
      runtime::EventLoop::Create(&clock,
                                 {.spin_ns_max = std::max<int64_t>(0, config.spin_us) * 1000}));
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<store::Store> store, OpenStore(config));
  const std::string store_name = store->name();
  TALWEG_ASSIGN_OR_RETURN(const config::ListenAddress listen,
                          config::OnInterface(config.listen, config.interface));
  SchedulerOptions options;
  options.server.unix_path = listen.path;
  options.server.bind_host = listen.host;
  options.server.port_min = listen.port_first;
  options.server.port_max = listen.port_last;
  options.server.advertise_host = config.advertise;
  options.server.insecure = config.insecure;
  options.server.gate = std::make_shared<rpc::CallGate>(rpc::CallLimitOptions{
      .per_second_max = config.peer_calls_per_second_max, .open_max = config.peer_calls_open_max});
  TALWEG_ASSIGN_OR_RETURN(options.server.credentials,
                          credentials::LoadCredentials(config, rpc::Role::kScheduler));
  options.membership.lease_ns = static_cast<int64_t>(config.lease_ms) * kNsPerMs;
  options.server.keepalive_ns = options.membership.lease_ns / 2;
  options.drain_timeout_ns = static_cast<int64_t>(config.drain_timeout_ms) * kNsPerMs;

  options.data_security = config.data_security;
  options.quotas_path = config.quotas_file;
  TALWEG_ASSIGN_OR_RETURN(options.job_secret,
                          config::LoadSecret(config, config::ProcessEnvironment()));

  absl::Status failure;
  TALWEG_ASSIGN_OR_RETURN(const std::unique_ptr<Scheduler> daemon,
                          Scheduler::Start(options, std::move(store), &clock, loop.get(),
                                           [&](const absl::Status& status) {
                                             failure = status;
                                             loop->Stop();
                                           }));
  TALWEG_RETURN_IF_ERROR(signal->Watch(
      loop.get(),
      [&](int signal_number) {
        telemetry::Log(telemetry::LogLevel::kInfo,
                       "stopping: ", signal_number == SIGTERM ? "SIGTERM" : "SIGINT");
        loop->Stop();
      },
      [](const std::string& text) { telemetry::Log(telemetry::LogLevel::kInfo, text); }));
  TALWEG_RETURN_IF_ERROR(config::AnnounceReady(config, {{"listen", daemon->address()}}));
  telemetry::Log(telemetry::LogLevel::kInfo, "serving on ", daemon->address(), ", store ",
                 store_name);
  if (!daemon->warning().empty()) telemetry::Log(telemetry::LogLevel::kWarning, daemon->warning());
  if (options.job_secret.empty() && listen.path.empty() && options.server.credentials == nullptr) {
    telemetry::Log(
        telemetry::LogLevel::kWarning, "there is no job secret: anybody who reaches ",
        daemon->address(),
        ", every user of this machine included, may join jobs and serve as an aggregator; talweg "
        "secret makes a secret file, which this user's daemons find (option secret_file)");
  }
  loop->Run();
  daemon->Shutdown();
  return status::Annotate(
      failure,
      "the scheduler ends, and steps go on without it; start it again once its store works");
}

}  // namespace
}  // namespace talweg::scheduler

int main(int argc, char** argv) {
  const talweg::config::SchedulerConfig config = talweg::config::SchedulerConfigOrExit(argc, argv);
  talweg::telemetry::LogLevel level = talweg::telemetry::LogLevel::kInfo;
  talweg::telemetry::ParseLogLevel(config.log_level, &level);
  talweg::telemetry::StartLog("talweg-scheduler", talweg::runtime::NewIncarnation().value(), level);
  const absl::Status status = talweg::scheduler::Serve(config);
  if (status.ok()) return 0;
  talweg::telemetry::Log(talweg::telemetry::LogLevel::kError, talweg::status::StatusText(status));
  return 1;
}
