// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/begin_command.h"

#include <string>

#include "clients/cli/credentials.h"
#include "libs/config/config.h"
#include "libs/config/secret_file.h"
#include "libs/rpc/admin_client.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

absl::StatusOr<bool> BeginWith(const Arguments& arguments) {
  TALWEG_ASSIGN_OR_RETURN(const uint64_t timeout_ms,
                          arguments.Number("timeout-ms", 5'000, 1, 3'600'000));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t members, arguments.Number("members", 1, 1, 65'536));
  TALWEG_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::Credentials> credentials,
                          ToolCredentials(arguments));
  scheduler::v1::LowerBeginMembersRequest request;
  request.set_job_name(arguments.Text("job", ""));
  request.set_begin_members(static_cast<uint32_t>(members));
  const config::Environment environment = config::ProcessEnvironment();
  if (const auto named = environment.find("TALWEG_SECRET_FILE"); named != environment.end()) {
    TALWEG_ASSIGN_OR_RETURN(const std::string secret, config::ReadSecretFile(named->second));
    request.set_job_secret(secret);
  }
  rpc::SchedulerAdminClient client(arguments.Text("scheduler", ""),
                                   static_cast<int64_t>(timeout_ms) * 1'000'000, credentials);
  TALWEG_ASSIGN_OR_RETURN(const scheduler::v1::LowerBeginMembersResponse response,
                          client.LowerBeginMembers(request));
  return response.has_begun();
}

int RunBeginWith(const Arguments& arguments) {
  const absl::StatusOr<bool> has_begun = BeginWith(arguments);
  if (!has_begun.ok()) return Fail(has_begun.status());
  return Print(*has_begun ? "begun\n" : "waits\n") ? 0 : kExitFailed;
}

}  // namespace

Command BeginWithCommand() {
  Command command;
  command.name = "begin-with";
  command.hidden = true;
  command.summary = "Tells a job that waits to begin that fewer nodes come";
  command.usage = "--scheduler=ADDRESS --job=NAME --members=N";
  command.details = "Prints whether the job has begun: begun, or waits.";
  command.options = {
      {"scheduler", "ADDRESS", "The scheduler, HOST:PORT or unix:/PATH."},
      {"job", "NAME", "The job."},
      {"members", "N", "How many nodes come."},
      {"timeout-ms", "MS", "How long the answer may take. Default: 5000."},
  };
  for (CommandOption& option : CredentialOptions()) command.options.push_back(std::move(option));
  command.run = RunBeginWith;
  return command;
}

}  // namespace talweg::cli
