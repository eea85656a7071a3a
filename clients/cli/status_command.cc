// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/status_command.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "clients/cli/ask_all.h"
#include "clients/cli/credentials.h"
#include "clients/cli/guard.h"
#include "clients/cli/plan.h"
#include "clients/cli/status.h"
#include "libs/base/descriptor.h"
#include "libs/config/config.h"
#include "libs/rpc/admin_client.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

constexpr uint32_t kOpenRoundsMax = 20;
// How many daemons are asked at the same time.
constexpr size_t kAtOnce = 64;

// Returns the sockets of serving schedulers that talweg run has started here for this user.
std::vector<std::string> OwnRuns() {
  std::set<std::string> found;
  for (const std::string& parent : RunParents()) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
      const std::string name = entry.path().filename().string();
      const std::string path = absl::StrCat(entry.path().string(), "/", kSchedulerSocket);
      struct stat status;
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      if (name.rfind(kRunPrefix, 0) != 0 || path.size() >= sizeof address.sun_path ||
          lstat(path.c_str(), &status) != 0 || status.st_uid != geteuid()) {
        continue;
      }
      std::memcpy(address.sun_path, path.data(), path.size());
      const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
        found.insert(absl::StrCat("unix:", path));
      }
    }
  }
  return {found.begin(), found.end()};
}

// Returns the scheduler's address, checked: the option, else the environment, else that of this
// user's only run here, else the daemons' default.
absl::StatusOr<std::string> SchedulerAddress(const Arguments& arguments) {
  std::vector<std::string> args;
  if (arguments.Has("scheduler")) {
    args.push_back(absl::StrCat("--scheduler=", arguments.Text("scheduler", "")));
  }
  config::Environment environment;
  if (const char* told = std::getenv("TALWEG_SCHEDULER"); told != nullptr) {
    environment["TALWEG_SCHEDULER"] = told;
  }
  if (args.empty() && environment.empty()) {
    const std::vector<std::string> runs = OwnRuns();
    if (runs.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("talweg status: several runs of this user are on this machine; name one: "
                       "--scheduler=",
                       absl::StrJoin(runs, ", --scheduler=")));
    }
    if (runs.size() == 1) return runs.front();
  }
  TALWEG_ASSIGN_OR_RETURN(const config::AgentConfig config,
                          config::LoadAgentConfig(args, environment));
  return config.scheduler;
}

template <typename Response>
void Take(absl::StatusOr<Response> result, Answer<Response>& answer) {
  if (result.ok()) {
    answer.response = *std::move(result);
  } else {
    answer.error = std::string(result.status().message());
  }
}

// How to call daemons.
struct Asking {
  int64_t timeout_ns = 0;
  std::shared_ptr<const rpc::Credentials> credentials;
};

void AskAggregators(StatusFacts& facts, const Asking& asking) {
  std::vector<Answer<aggregator::v1::GetStatusResponse>*> answers;
  for (const auto& status : facts.pool) {
    if (status.state() == scheduler::v1::AggregatorStatus::STATE_LOST) continue;
    auto& answer = facts.aggregators[status.aggregator().name()];
    answer.address = status.aggregator().admin_address();
    answers.push_back(&answer);
  }
  AskAll(answers.size(), kAtOnce, [&](size_t i) {
    aggregator::v1::GetStatusRequest request;
    request.set_open_rounds_max(kOpenRoundsMax);
    if (answers[i]->address.empty()) {
      answers[i]->error = "it has no admin address";
    } else {
      rpc::AggregatorAdminClient client(answers[i]->address, asking.timeout_ns, asking.credentials);
      Take(client.GetStatus(request), *answers[i]);
    }
  });
}

void AskAgents(StatusFacts& facts, const Asking& asking) {
  for (const auto& job : facts.jobs) {
    for (const auto& status : job.members()) {
      const bool is_in = status.state() == scheduler::v1::MEMBER_STATE_JOINED ||
                         status.state() == scheduler::v1::MEMBER_STATE_PENDING;
      if (!is_in || status.member().admin_address().empty()) continue;
      AgentAnswer answer;
      answer.address = status.member().admin_address();
      answer.job_id = job.summary().job_id();
      answer.node_rank = status.member().id().node_rank();
      facts.agents.push_back(answer);
    }
  }
  AskAll(facts.agents.size(), kAtOnce, [&](size_t i) {
    agent::v1::GetStatusRequest request;
    request.set_open_rounds_max(kOpenRoundsMax);
    rpc::AgentAdminClient client(facts.agents[i].address, asking.timeout_ns, asking.credentials);
    Take(client.GetStatus(request),
         static_cast<Answer<agent::v1::GetStatusResponse>&>(facts.agents[i]));
  });
}

absl::StatusOr<StatusFacts> Ask(const Arguments& arguments, const Asking& asking) {
  StatusFacts facts;
  TALWEG_ASSIGN_OR_RETURN(facts.scheduler_address, SchedulerAddress(arguments));
  rpc::SchedulerAdminClient scheduler(facts.scheduler_address, asking.timeout_ns,
                                      asking.credentials);
  TALWEG_ASSIGN_OR_RETURN(facts.scheduler, scheduler.GetScheduler());
  TALWEG_ASSIGN_OR_RETURN(facts.listed, scheduler.ListJobs());
  scheduler::v1::GetJobRequest request;
  if (arguments.Has("job")) {
    request.set_name(arguments.Text("job", ""));
    TALWEG_ASSIGN_OR_RETURN(scheduler::v1::GetJobResponse job, scheduler.GetJob(request));
    facts.jobs.push_back(std::move(job));
  } else {
    for (const auto& summary : facts.listed.jobs()) {
      const bool is_over = summary.state() == scheduler::v1::JOB_STATE_FAILED ||
                           summary.state() == scheduler::v1::JOB_STATE_FINISHED;
      if (is_over && !arguments.Has("all")) continue;
      request.set_job_id(summary.job_id());
      absl::StatusOr<scheduler::v1::GetJobResponse> job = scheduler.GetJob(request);
      // The job may have ended and been forgotten meanwhile.
      if (absl::IsNotFound(job.status())) continue;
      TALWEG_RETURN_IF_ERROR(job);
      facts.jobs.push_back(*std::move(job));
    }
  }
  TALWEG_ASSIGN_OR_RETURN(const scheduler::v1::ListAggregatorsResponse pool,
                          scheduler.ListAggregators());
  facts.pool.assign(pool.aggregators().begin(), pool.aggregators().end());
  if (!arguments.Has("brief")) {
    AskAggregators(facts, asking);
    AskAgents(facts, asking);
  }
  return facts;
}

absl::StatusOr<std::string> Show(const Arguments& arguments) {
  TALWEG_ASSIGN_OR_RETURN(const uint64_t timeout_ms,
                          arguments.Number("timeout-ms", 5'000, 1, 3'600'000));
  Asking asking;
  asking.timeout_ns = static_cast<int64_t>(timeout_ms) * 1'000'000;
  TALWEG_ASSIGN_OR_RETURN(asking.credentials, ToolCredentials(arguments));
  if (arguments.Has("agent")) {
    const std::string address = arguments.Text("agent", "");
    agent::v1::GetStatusRequest request;
    request.set_open_rounds_max(kOpenRoundsMax);
    rpc::AgentAdminClient client(address, asking.timeout_ns, asking.credentials);
    TALWEG_ASSIGN_OR_RETURN(const agent::v1::GetStatusResponse agent, client.GetStatus(request));
    return arguments.Has("json") ? AgentJson(agent) : AgentText(address, agent);
  }
  TALWEG_ASSIGN_OR_RETURN(const StatusFacts facts, Ask(arguments, asking));
  return arguments.Has("json") ? StatusJson(facts) : StatusText(facts);
}

int RunStatus(const Arguments& arguments) {
  const absl::StatusOr<std::string> text = Show(arguments);
  if (!text.ok()) return Fail(text.status());
  return Print(*text) ? 0 : kExitFailed;
}

}  // namespace

Command StatusCommand() {
  Command command;
  command.name = "status";
  command.summary = "Shows jobs, members, aggregators, and whom they wait for";
  command.usage = "[OPTIONS]";
  command.details =
      "Asks the scheduler, then the agents and aggregators that it names: jobs, members and their\n"
      "leases, views, aggregators and their share of the bytes, open rounds, and which rank or "
      "node\n"
      "each of them waits for. A daemon that does not answer is shown as such.";
  command.options = {
      {"scheduler", "ADDRESS",
       "The scheduler, HOST:PORT or unix:/PATH. Default: $TALWEG_SCHEDULER, else that of this\n"
       "user's talweg run on this machine, else 127.0.0.1:7447."},
      {"agent", "ADDRESS", "Ask one agent only, as for a standalone one, which has no scheduler."},
      {"job", "NAME", "Only this job (the newest of that name)."},
      {"all", "", "Also shows jobs that have ended lately."},
      {"brief", "", "Only what the scheduler itself knows: nobody else is asked."},
      {"timeout-ms", "MS", "How long each answer may take. Default: 5000."},
      {"json", "", "Prints JSON."},
  };
  for (CommandOption& option : CredentialOptions()) command.options.push_back(std::move(option));
  command.run = RunStatus;
  return command;
}

}  // namespace talweg::cli
