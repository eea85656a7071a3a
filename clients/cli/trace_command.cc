// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/trace_command.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "clients/cli/credentials.h"
#include "libs/config/config.h"
#include "libs/config/secret_file.h"
#include "libs/rpc/admin_client.h"
#include "libs/status/status.h"
#include "libs/telemetry/trace_file.h"

namespace talweg::cli {
namespace {

using Trace = agent::v1::GetTraceResponse;

telemetry::TracePhase PhaseOf(Trace::Phase phase) {
  using telemetry::TracePhase;
  switch (phase) {
    case Trace::PHASE_COMPUTE: return TracePhase::kRanks;
    case Trace::PHASE_LOCAL_REDUCE: return TracePhase::kLocalReduce;
    case Trace::PHASE_PUSH: return TracePhase::kPush;
    case Trace::PHASE_SUM: return TracePhase::kSum;
    case Trace::PHASE_PULL: return TracePhase::kPull;
    case Trace::PHASE_QUEUE: return TracePhase::kQueue;
    default: return TracePhase::kUnknown;
  }
}

std::string JsonOf(const Trace& trace, const std::string& address) {
  telemetry::TraceFile file("agent at " + address, 0);
  for (const Trace::Event& event : trace.events()) {
    file.Add({.phase = PhaseOf(event.phase()),
              .tensor = event.tensor(),
              .round = event.round(),
              .begin_ns = event.begin_ns(),
              .end_ns = event.end_ns(),
              .bytes = event.bytes()});
  }
  return std::move(file).End();
}

// Waits for so long, or for a signal that would end the tool. The recording must be ended then.
// Make it before gRPC has threads, because they would be ended by the signal.
class Pause {
 public:
  Pause() {
    sigemptyset(&signals_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, number);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  void Wait(uint64_t seconds) const {
    const timespec time = {.tv_sec = static_cast<time_t>(seconds), .tv_nsec = 0};
    while (sigtimedwait(&signals_, nullptr, &time) < 0 && errno == EINTR) {
    }
  }

 private:
  sigset_t signals_;
};

// What the agent is asked with.
struct TraceAsking {
  std::string address;
  uint64_t seconds = 0;
  int64_t timeout_ns = 0;
  std::shared_ptr<const rpc::Credentials> credentials;
  std::string secret;
};

// Which file has the agent's secret. "": the user's own, if there is one. `talweg run` on one
// machine makes a secret in the directory of its sockets.
std::string SecretFileOf(const Arguments& arguments, const std::string& address) {
  std::string named = OptionOrVariable(arguments, "secret-file", "TALWEG_SECRET_FILE");
  if (!named.empty()) return named;
  constexpr std::string_view kUnix = "unix:";
  if (!address.starts_with(kUnix)) return "";
  const std::string beside =
      address.substr(kUnix.size(), address.rfind('/') + 1 - kUnix.size()) + "secret";
  return access(beside.c_str(), F_OK) == 0 ? beside : "";
}

absl::StatusOr<TraceAsking> TraceAskingOf(const Arguments& arguments) {
  TraceAsking asking;
  asking.address = arguments.Text("agent", "");
  TALWEG_ASSIGN_OR_RETURN(asking.seconds, arguments.Number("seconds", 5, 1, 3'600));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t timeout_ms,
                          arguments.Number("timeout-ms", 5'000, 1, 3'600'000));
  asking.timeout_ns = static_cast<int64_t>(timeout_ms) * 1'000'000;
  TALWEG_ASSIGN_OR_RETURN(asking.credentials, ToolCredentials(arguments));
  config::ProcessConfig process;
  process.secret_file = SecretFileOf(arguments, asking.address);
  TALWEG_ASSIGN_OR_RETURN(asking.secret, config::LoadSecret(process, config::ProcessEnvironment()));
  return asking;
}

absl::StatusOr<Trace> Record(const TraceAsking& asking, const Pause& pause) {
  rpc::AgentAdminClient client(asking.address, asking.timeout_ns, asking.credentials);
  agent::v1::SetTraceRequest request;
  request.set_enabled(true);
  TALWEG_RETURN_IF_ERROR(client.SetTrace(request, asking.secret));
  pause.Wait(asking.seconds);
  request.set_enabled(false);
  TALWEG_RETURN_IF_ERROR(client.SetTrace(request, asking.secret));
  return client.GetTrace();
}

// Returns what to say of the file.
absl::StatusOr<std::string> Write(const Arguments& arguments, const std::string& path) {
  const Pause pause;
  TALWEG_ASSIGN_OR_RETURN(const TraceAsking asking, TraceAskingOf(arguments));
  std::ofstream file(path, std::ios::binary);
  if (!file) return status::ErrnoStatus(errno, "open " + path);
  const absl::StatusOr<Trace> trace = Record(asking, pause);
  if (!trace.ok()) {
    std::remove(path.c_str());
    return trace.status();
  }
  file << JsonOf(*trace, asking.address);
  if (!file.flush()) return status::ErrnoStatus(errno, "write " + path);
  std::string said = std::to_string(trace->events_size()) + " spans in " + path;
  if (trace->dropped() > 0) {
    said += "; " + std::to_string(trace->dropped()) +
            " older ones had no room (the agent's option trace_bytes_max)";
  }
  return said + "\n";
}

int RunTrace(const Arguments& arguments) {
  if (!arguments.Has("agent") || arguments.operands().size() != 1) {
    return Fail(absl::InvalidArgumentError(
        "talweg trace needs --agent=ADDRESS and the name of one file: talweg trace "
        "--agent=HOST:PORT timeline.json"));
  }
  const absl::StatusOr<std::string> said = Write(arguments, arguments.operands()[0]);
  if (!said.ok()) return Fail(said.status());
  return Print(*said) ? 0 : kExitFailed;
}

}  // namespace

Command TraceCommand() {
  Command command;
  command.name = "trace";
  command.summary = "Records a timeline of a running agent";
  command.usage = "--agent=ADDRESS [--seconds=N] FILE";
  command.details =
      "Records for some seconds, or until Ctrl-C, what the agent does with each round: waits for\n"
      "local ranks, queue, local reduce, push, sum, pull. FILE opens in https://ui.perfetto.dev. "
      "An\n"
      "agent with a job secret asks for it. `talweg run --trace` records a job from its start.";
  command.operands = Operands::kWords;
  command.options = {
      {"agent", "ADDRESS", "The agent's admin address, HOST:PORT or unix:/PATH (talweg status)."},
      {"seconds", "N", "How long. Default: 5."},
      {"secret-file", "FILE",
       "The job secret. Default: $TALWEG_SECRET_FILE, else that of a talweg run on this machine,\n"
       "else ~/.config/talweg/secret, if it exists. none: no secret."},
      {"timeout-ms", "MS", "How long each answer may take. Default: 5000."},
  };
  for (CommandOption& option : CredentialOptions()) command.options.push_back(std::move(option));
  command.run = RunTrace;
  return command;
}

}  // namespace talweg::cli
