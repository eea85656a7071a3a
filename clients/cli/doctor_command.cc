// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor_command.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "clients/cli/credentials.h"
#include "clients/cli/doctor.h"
#include "clients/cli/exposure.h"
#include "libs/config/config.h"
#include "libs/rpc/admin_client.h"

namespace talweg::cli {
namespace {

constexpr int64_t kHealthTimeoutNs = 5'000'000'000;

int RunDoctor(const Arguments& arguments) {
  MachineFacts facts = ReadMachineFacts(arguments.Text("provider", "tcp"));
  const char* const told = std::getenv("TALWEG_DATA_SECURITY");
  facts.data_security = arguments.Text("data-security", told == nullptr ? "none" : told);
  facts.exposure = ReadExposure(ToolFiles(arguments), config::ProcessEnvironment());
  facts.now_unix_s = std::time(nullptr);
  facts.scheduler = arguments.Text("scheduler", "");
  if (!facts.scheduler.empty()) {
    const auto credentials = ToolCredentials(arguments);
    const absl::Status health =
        credentials.ok() ? rpc::CheckHealth(facts.scheduler, "", kHealthTimeoutNs, *credentials)
                         : credentials.status();
    facts.scheduler_error = std::string(health.message());
  }
  const std::vector<Finding> findings = Examine(facts);
  if (!Print(arguments.Has("json") ? FindingsJson(findings) : FindingsText(findings))) {
    return kExitFailed;
  }
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  const Verdict allowed = arguments.Has("strict") ? Verdict::kOk : Verdict::kWarning;
  return worst <= allowed ? 0 : kExitFailed;
}

}  // namespace

Command DoctorCommand() {
  Command command;
  command.name = "doctor";
  command.summary = "Finds what would slow a job on this machine or make it fail, with remedies";
  command.usage = "[OPTIONS]";
  command.details =
      "Looks at limits, shared memory, network, CPU, versions, and at keys, certificates and\n"
      "daemons that may let strangers in. Each is ok, warn (it works, but slower, or not at any\n"
      "size, or not for long) or bad (Talweg does not work here, or is open), with its remedy.\n\n"
      "Exit status: 0, or 1 when something is bad (with --strict, when anything is not ok).";
  command.options = {
      {"provider", "NAME", "libfabric provider that will be used. Default: tcp."},
      {"data-security", "none|keyed|tls",
       "The setting that daemons will have. Default: $TALWEG_DATA_SECURITY, or none."},
      {"scheduler", "HOST:PORT", "Also checks whether this scheduler answers."},
      {"strict", "", "Also fails when there are warnings."},
      {"json", "", "Prints JSON."},
  };
  for (CommandOption& option : CredentialOptions()) command.options.push_back(std::move(option));
  command.run = RunDoctor;
  return command;
}

}  // namespace talweg::cli
