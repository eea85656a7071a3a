// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "libs/config/config.h"
#include "libs/config/ready.h"
#include "libs/config/secret_file.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/incarnation.h"
#include "libs/runtime/shutdown_signal.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/aggregator/lanes.h"
#include "services/credentials/credentials.h"

namespace talweg::aggregator {
namespace {

absl::Status ServeUntilSignalled(const config::AggregatorConfig& config, Incarnation incarnation) {
  TALWEG_ASSIGN_OR_RETURN(const std::unique_ptr<runtime::ShutdownSignal> signals,
                          runtime::ShutdownSignal::Create());
  const runtime::MonotonicClock clock;
  TALWEG_ASSIGN_OR_RETURN(const std::unique_ptr<runtime::EventLoop> waiting,
                          runtime::EventLoop::Create(&clock, {.spin_ns_max = 0}));
  TALWEG_ASSIGN_OR_RETURN(const std::string job_secret,
                          config::LoadSecret(config, config::ProcessEnvironment()));
  TALWEG_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::Credentials> credentials,
                          credentials::LoadCredentials(config, rpc::Role::kAggregator));
  TALWEG_ASSIGN_OR_RETURN(const std::unique_ptr<Lanes> lanes,
                          Lanes::Create(config, incarnation, &clock, job_secret, credentials));
  std::string signalled;
  TALWEG_RETURN_IF_ERROR(signals->Watch(
      waiting.get(),
      [&](int signal_number) {
        signalled = signal_number == SIGTERM ? "SIGTERM" : "SIGINT";
        waiting->Stop();
      },
      [](const std::string& text) { telemetry::Log(telemetry::LogLevel::kInfo, text); }));
  lanes->Start([&] { waiting->Stop(); });
  const absl::Status announced = config::AnnounceReady(config, lanes->addresses());
  if (announced.ok()) {
    waiting->Run();
    if (!signalled.empty()) {
      telemetry::Log(telemetry::LogLevel::kInfo, "got ", signalled, ", draining");
      lanes->Shutdown("aggregator '" + lanes->name() + "' got " + signalled);
    }
  }
  const absl::Status served = lanes->Join();
  signals->Unwatch(waiting.get());
  return announced.ok() ? served : announced;
}

}  // namespace
}  // namespace talweg::aggregator

int main(int argc, char** argv) {
  const talweg::config::AggregatorConfig config =
      talweg::config::AggregatorConfigOrExit(argc, argv);
  talweg::telemetry::LogLevel level = talweg::telemetry::LogLevel::kInfo;
  talweg::telemetry::ParseLogLevel(config.log_level, &level);
  const talweg::Incarnation incarnation = talweg::runtime::NewIncarnation();
  talweg::telemetry::StartLog("talweg-aggregator", incarnation.value(), level);
  const absl::Status status = talweg::aggregator::ServeUntilSignalled(config, incarnation);
  if (status.ok()) return 0;
  std::fprintf(stderr, "talweg-aggregator: %s\n", talweg::status::StatusText(status).c_str());
  return 1;
}
