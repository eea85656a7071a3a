// SPDX-License-Identifier: Apache-2.0
// talweg-agent: serves the ranks of one node in one job. See docs/architecture.md.
#include <signal.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "libs/config/config.h"
#include "libs/config/ready.h"
#include "libs/config/secret_file.h"
#include "libs/runtime/incarnation.h"
#include "libs/runtime/shutdown_signal.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/agent/agent.h"
#include "services/agent/agent_open.h"
#include "services/credentials/credentials.h"

namespace talweg::agent {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "talweg-agent: %s\n", status::StatusText(status).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  AgentOptions options;
  options.config = config::AgentConfigOrExit(argc, argv);
  const config::AgentConfig config = options.config;
  options.incarnation = runtime::NewIncarnation();
  telemetry::LogLevel level = telemetry::LogLevel::kInfo;
  telemetry::ParseLogLevel(config.log_level, &level);
  telemetry::StartLog("talweg-agent", options.incarnation.value(), level);

  // First: threads that were started before would still take the signals.
  auto signals = runtime::ShutdownSignal::Create();
  if (!signals.ok()) return Fail(signals.status());
  absl::StatusOr<std::string> secret = config::LoadSecret(config, config::ProcessEnvironment());
  if (!secret.ok()) return Fail(secret.status());
  options.job_secret = *std::move(secret);
  auto credentials = credentials::LoadCredentials(config, rpc::Role::kNode);
  if (!credentials.ok()) return Fail(credentials.status());
  options.credentials = *std::move(credentials);
  options.socket_path = config.socket_path;
  if (options.socket_path.empty()) {
    options.socket_path = config::DefaultSocketPath(config, config::ProcessEnvironment());
    if (const absl::Status made = MakeSocketDirectory(options.socket_path); !made.ok()) {
      return Fail(made);
    }
  }
  auto created = Agent::Create(std::move(options));
  if (!created.ok()) return Fail(created.status());
  Agent& agent = **created;
  const absl::Status watched = (*signals)->Watch(
      &agent.loop(),
      [&agent](int signal_number) {
        agent.Stop(signal_number == SIGINT ? "interrupted (SIGINT)" : "terminated (SIGTERM)");
      },
      [](const std::string& text) { telemetry::Log(telemetry::LogLevel::kInfo, text); });
  if (!watched.ok()) return Fail(watched);
  const absl::Status announced = config::AnnounceReady(
      config, {{"socket", agent.socket_path()}, {"admin", agent.admin_address()}});
  if (!announced.ok()) return Fail(announced);
  const absl::Status end = agent.Run();
  (*signals)->Unwatch(&agent.loop());
  return end.ok() ? 0 : 1;  // The reason is in the log.
}

}  // namespace
}  // namespace talweg::agent

int main(int argc, char** argv) { return talweg::agent::Main(argc, argv); }
