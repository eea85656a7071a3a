// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <cerrno>

#include "clients/cli/begin_command.h"
#include "clients/cli/bench.h"
#include "clients/cli/command.h"
#include "clients/cli/completion.h"
#include "clients/cli/credentials.h"
#include "clients/cli/doctor_command.h"
#include "clients/cli/run_command.h"
#include "clients/cli/status_command.h"
#include "clients/cli/topology_command.h"
#include "clients/cli/trace_command.h"
#include "libs/config/config.h"
#include "libs/config/secret_file.h"
#include "libs/rpc/version.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

// Becomes the daemon.
int ExecDaemon(const std::string& name, const std::vector<std::string>& args) {
  const absl::StatusOr<std::string> file = FindDaemon(name);
  if (!file.ok()) return Fail(file.status());
  std::vector<char*> pointers = {const_cast<char*>(file->c_str())};
  for (const std::string& arg : args) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);
  execv(file->c_str(), pointers.data());
  return Fail(status::ErrnoStatus(errno, absl::StrCat("execute ", *file)));
}

// The tool has the help itself, so that it works without the daemon.
int RunDaemon(const std::string& name, const std::vector<std::string>& args,
              std::string (*help)()) {
  if (config::HelpWanted(args)) return Print(help()) ? 0 : kExitFailed;
  return ExecDaemon(name, args);
}

Command DaemonCommand(const std::string& name, const std::string& summary,
                      int (*run_raw)(const std::vector<std::string>&),
                      std::vector<std::string> (*option_names)()) {
  Command command;
  command.name = name;
  command.summary = summary;
  command.run_raw = run_raw;
  command.option_names = option_names;
  return command;
}

int RunScheduler(const std::vector<std::string>& args) {
  return RunDaemon("talweg-scheduler", args, config::SchedulerHelp);
}

int RunAggregator(const std::vector<std::string>& args) {
  return RunDaemon("talweg-aggregator", args, config::AggregatorHelp);
}

int RunAgent(const std::vector<std::string>& args) {
  return RunDaemon("talweg-agent", args, config::AgentHelp);
}

int RunVersion(const Arguments& arguments) {
  const rpc::Version version;
  const std::string text = arguments.Has("json")
                               ? absl::StrCat("{\"version\":\"", version.build,
                                              "\",\"protocol\":{\"major\":", version.major,
                                              ",\"minor\":", version.minor, "}}\n")
                               : absl::StrCat("talweg ", version.build, ", protocol ",
                                              version.major, ".", version.minor, "\n");
  return Print(text) ? 0 : kExitFailed;
}

Command VersionCommand() {
  Command command;
  command.name = "version";
  command.summary = "Prints the version";
  command.usage = "[--json]";
  command.details = "Prints the version of the tool.";
  command.options = {{"json", "", "Prints JSON."}};
  command.run = RunVersion;
  return command;
}

int RunSecret(const Arguments&) {
  const config::Environment environment = config::ProcessEnvironment();
  const auto named = environment.find("TALWEG_SECRET_FILE");
  const std::string path =
      named == environment.end() ? config::DefaultSecretPath(environment) : named->second;
  if (path.empty()) {
    return Fail(absl::FailedPreconditionError(
        "no place for the secret file: neither XDG_CONFIG_HOME nor HOME is set; set one, or name "
        "the file in TALWEG_SECRET_FILE"));
  }
  const absl::Status made = config::MakeSecretFile(path);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return Fail(made);
  if (const absl::Status read = config::ReadSecretFile(path).status(); !read.ok())
    return Fail(read);
  return Print(path + "\n") ? 0 : kExitFailed;
}

Command SecretCommand() {
  Command command;
  command.name = "secret";
  command.summary = "Makes the file with the job secret, unless it is there";
  command.usage = "";
  command.details =
      "Prints the path of $TALWEG_SECRET_FILE, or of ~/.config/talweg/secret, and makes that file\n"
      "(mode 0600) if it is not there. A scheduler that finds it lets in only agents and\n"
      "aggregators that have the same one: copy it to the other machines of a job. talweg run on\n"
      "one machine needs none.";
  command.run = RunSecret;
  return command;
}

}  // namespace

const std::vector<Command>& Commands() {
  static const auto* const commands = new std::vector<Command>{
      RunCommand(),
      DaemonCommand("scheduler", "Runs talweg-scheduler in the foreground", RunScheduler,
                    config::SchedulerOptionNames),
      DaemonCommand("aggregator", "Runs talweg-aggregator in the foreground", RunAggregator,
                    config::AggregatorOptionNames),
      DaemonCommand("agent", "Runs talweg-agent in the foreground", RunAgent,
                    config::AgentOptionNames),
      SecretCommand(),
      CertsCommand(),
      StatusCommand(),
      DoctorCommand(),
      TraceCommand(),
      TopologyCommand(),
      BenchCommand(),
      CompletionCommand(),
      VersionCommand(),
      BenchRankCommand(),
      BeginWithCommand(),
  };
  return *commands;
}

}  // namespace talweg::cli
