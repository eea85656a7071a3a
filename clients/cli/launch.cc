// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/launch.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <signal.h>

#include <cstring>
#include <utility>

#include "clients/cli/command.h"

namespace talweg::cli {
namespace {

// Shells' statuses of a program that is not there, and one that does not start.
constexpr int kExitNotFound = 127;
constexpr int kExitNotStarted = 126;
// How long a rank that has died may take to be reaped, beside its agent.
constexpr int64_t kSuspicionNs = 2'000'000'000;

std::string Indented(const std::string& lines) {
  std::string indented;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(lines, '\n'))) {
    if (!line.empty()) absl::StrAppend(&indented, "    ", line, "\n");
  }
  return indented;
}

}  // namespace

LaunchResult Launch::Run() {
  scheduler_ = plan_.scheduler;
  Enter(plan_.starts_scheduler() ? Phase::kScheduler : Phase::kAgents);
  if (phase_ != Phase::kOver) supervisor_.Run(*this);
  supervisor_.EndAll(10'000);
  if (failed_) {
    const std::string lines = supervisor_.LastLinesOf(*failed_);
    if (!lines.empty()) {
      absl::StrAppend(&result_.report, "\n", supervisor_.name(*failed_), "'s last lines:\n",
                      Indented(lines));
    }
  }
  return result_;
}

void Launch::Enter(Phase phase) {
  phase_ = phase;
  waiting_.clear();
  std::vector<NodeSpec> specs;
  switch (phase) {
    case Phase::kScheduler:
      supervisor_.SetTimer(NowNs() + static_cast<int64_t>(plan_.ready_timeout_ms) * 1'000'000);
      Start(Role::kScheduler, {NodeSpec{SchedulerSpec(plan_)}});
      break;
    case Phase::kAggregators:
      for (uint32_t i = 0; i < plan_.aggregator_count; ++i) {
        specs.push_back({AggregatorSpec(plan_, i, scheduler_)});
      }
      Start(Role::kAggregator, specs);
      break;
    case Phase::kAgents:
      supervisor_.SetTimer(NowNs() + static_cast<int64_t>(plan_.ready_timeout_ms) * 1'000'000);
      for (const uint32_t node : plan_.LocalNodes()) {
        specs.push_back({AgentSpec(plan_, node, scheduler_), node});
      }
      Start(Role::kAgent, specs);
      break;
    case Phase::kRanks:
      supervisor_.SetTimer(0);
      if (!ports_.empty()) {
        supervisor_.Say(absl::StrCat("talweg: run: ", plan_.network_reason,
                                     " asks for the network: TCP ports of this machine are open: ",
                                     absl::StrJoin(ports_, ", ")));
      }
      for (const uint32_t node : plan_.LocalNodes()) {
        for (uint32_t i = 0; i < plan_.ranks_per_node[node]; ++i) {
          ChildSpec spec = RankSpec(plan_, node, i);
          spec.environment["TALWEG_RUN_AGENTS"] = absl::StrJoin(agents_, ",");
          if (!scheduler_.empty()) spec.environment["TALWEG_SCHEDULER"] = scheduler_;
          spec.environment["TALWEG_RUN_DAEMONS"] = absl::StrJoin(DaemonPids(), ",");
          specs.push_back({std::move(spec), node});
        }
      }
      Start(Role::kRank, specs);
      break;
    case Phase::kEndingRanks: Ask({Role::kRank}, ending_signal_); break;
    case Phase::kEndingAgents: Ask({Role::kAgent}, SIGTERM); break;
    case Phase::kEndingAggregators: Ask({Role::kAggregator}, SIGTERM); break;
    // Last: the others say goodbye to it.
    case Phase::kEndingScheduler: Ask({Role::kScheduler}, SIGTERM); break;
    case Phase::kOver:
      supervisor_.SetTimer(0);
      supervisor_.Stop();
      break;
  }
}

void Launch::Start(Role role, const std::vector<NodeSpec>& specs) {
  for (const auto& [spec, node] : specs) {
    const absl::StatusOr<ChildId> child = supervisor_.Start(spec);
    if (!child.ok()) {
      const bool missing = child.status().code() == absl::StatusCode::kNotFound;
      End(missing ? kExitNotFound : kExitNotStarted, std::string(child.status().message()),
          SIGTERM);
      return;
    }
    children_.push_back({role, node});
    if (spec.is_daemon) waiting_.insert(*child);
    if (role == Role::kRank) ranks_at_work_.insert(*child);
  }
  if (waiting_.empty() && role != Role::kRank) Continue();
}

void Launch::Continue() {
  if (phase_ == Phase::kScheduler) {
    Enter(Phase::kAggregators);
  } else if (phase_ == Phase::kAggregators) {
    Enter(Phase::kAgents);
  } else if (phase_ == Phase::kAgents) {
    Enter(Phase::kRanks);
  }
}

void Launch::OnReady(ChildId child, const std::string& line) {
  if (ending() || waiting_.erase(child) == 0) return;
  if (At(child).role == Role::kScheduler) {
    const absl::StatusOr<std::string> address = ReadyAddress(line, "listen");
    if (!address.ok()) {
      failed_ = child;
      End(kExitFailed, absl::StrCat(supervisor_.name(child), ": ", address.status().message()),
          SIGTERM);
      return;
    }
    scheduler_ = *address;
  }
  if (At(child).role == Role::kAgent) {
    agents_.push_back(ReadyAddress(line, "admin").value_or(""));
  }
  for (const char* name : {"listen", "data", "admin"}) {
    const absl::StatusOr<std::string> address = ReadyAddress(line, name);
    if (address.ok() && !plan_.network_reason.empty()) {
      ports_.push_back(absl::StrCat(supervisor_.name(child), " ", *address, " (", name, ")"));
    }
  }
  if (waiting_.empty()) Continue();
}

std::vector<pid_t> Launch::DaemonPids() const {
  std::vector<pid_t> pids;
  for (uint32_t i = 0; i < children_.size(); ++i) {
    if (children_[i].role != Role::kRank) pids.push_back(supervisor_.pid(ChildId(i)));
  }
  return pids;
}

void Launch::OnExit(ChildId child, const ExitStatus& status) {
  const bool is_rank = At(child).role == Role::kRank;
  (is_rank ? result_.rank_cpu_ns : result_.daemon_cpu_ns) += status.cpu_ns;
  ranks_at_work_.erase(child);
  if (ending()) {
    if (!AnyRunning(RolesOfPhase())) {
      Enter(static_cast<Phase>(static_cast<int>(phase_) + 1));
    }
    return;
  }
  if (is_rank && status.ok()) return EndIfDone();
  const bool is_agent = At(child).role == Role::kAgent;
  if (is_agent && status.ok() && phase_ == Phase::kRanks) return;  // Its ranks are done.
  const int exit_status = status.ok() ? kExitFailed : status.ShellStatus();
  const std::string what =
      absl::StrCat(supervisor_.name(child), " (pid ", supervisor_.pid(child), ") ",
                   !is_rank        ? "ended before its ranks: "
                   : plan_.goes_on ? "failed: "
                                   : "failed first: ",
                   status.ToString());
  if (is_agent && phase_ == Phase::kRanks && status.signal_number == 0) {
    if (suspect_) return;
    suspect_ = child;
    suspect_status_ = exit_status;
    suspect_what_ = what;
    supervisor_.SetTimer(NowNs() + kSuspicionNs);
    return;
  }
  Blame(child, exit_status, what);
}

void Launch::Blame(ChildId child, int exit_status, const std::string& what) {
  const auto [role, node] = At(child);
  const bool has_node = role == Role::kAgent || role == Role::kRank;
  if (plan_.goes_on && phase_ == Phase::kRanks) {
    if (role == Role::kAggregator && AnyRunning({Role::kAggregator})) {
      supervisor_.Say(absl::StrCat("talweg: run: ", what, "; the others serve on"));
      return;
    }
    if (has_node && lost_nodes_.contains(node)) return;  // It had to.
  }
  if (!failed_) {
    failed_ = child;
    result_.exit_status = exit_status;
    result_.report = what;
  }
  if (plan_.goes_on && phase_ == Phase::kRanks && has_node) return LoseNode(node, what);
  End(result_.exit_status,
      absl::StrCat(result_.report,
                   role == Role::kRank ? "; all other ranks were ended" : "; the run was ended"),
      SIGTERM);
}

void Launch::LoseNode(uint32_t node, const std::string& what) {
  lost_nodes_.insert(node);
  // Its agent has told the scheduler, or is dead: the other ranks there have nobody to work with.
  for (uint32_t i = 0; i < children_.size(); ++i) {
    const Child& child = children_[i];
    if (child.role == Role::kRank && child.node == node) supervisor_.Signal(ChildId(i), SIGTERM);
  }
  EndIfDone();
  if (ending()) return;
  supervisor_.Say(absl::StrCat("talweg: run: node ", node, " is lost, the others go on: ", what));
}

void Launch::EndIfDone() {
  for (const ChildId rank : ranks_at_work_) {
    if (!lost_nodes_.contains(At(rank).node)) return;
  }
  if (lost_nodes_.empty()) return End(0, "", 0);
  if (lost_nodes_.size() == plan_.LocalNodes().size()) {
    return End(result_.exit_status, absl::StrCat(result_.report, "; no node is left"), SIGTERM);
  }
  End(0,
      absl::StrCat("the run has ended well without node ", absl::StrJoin(lost_nodes_, ", "), ": ",
                   result_.report),
      SIGTERM);
}

void Launch::OnSignal(int signal_number) {
  if (signalled_) {
    // Whoever asks twice does not want to wait.
    SignalRoles({Role::kRank, Role::kAgent, Role::kAggregator, Role::kScheduler}, SIGKILL);
    return;
  }
  signalled_ = true;
  End(128 + signal_number,
      absl::StrCat("ended by signal ", signal_number, " (", strsignal(signal_number), ")"),
      signal_number == SIGINT ? SIGINT : SIGTERM);
}

void Launch::OnTimer() {
  if (!ending() && suspect_) {
    const ChildId suspect = *std::exchange(suspect_, std::nullopt);
    return Blame(suspect, suspect_status_, suspect_what_);
  }
  if (!ending()) {
    std::vector<std::string> names;
    for (const ChildId child : waiting_) names.push_back(supervisor_.name(child));
    failed_ = *waiting_.begin();
    End(kExitFailed,
        absl::StrCat(absl::StrJoin(names, ", "), " did not serve within ", plan_.ready_timeout_ms,
                     " ms; raise --ready-timeout-ms if this machine is only slow"),
        SIGTERM);
    return;
  }
  SignalRoles(RolesOfPhase(), SIGKILL);
}

void Launch::OnOutputGone() { End(128 + SIGPIPE, "", SIGTERM); }

void Launch::End(int exit_status, const std::string& report, int signal_number) {
  if (ending()) return;
  result_.exit_status = exit_status;
  result_.report = report;
  ending_signal_ = signal_number;
  // That they are being ended is no news.
  for (uint32_t i = 0; i < children_.size(); ++i) {
    if (children_[i].role != Role::kRank && exit_status != 0) supervisor_.Mute(ChildId(i));
  }
  Enter(Phase::kEndingRanks);
}

void Launch::Ask(const std::set<Role>& roles, int signal_number) {
  if (!AnyRunning(roles)) {
    Enter(static_cast<Phase>(static_cast<int>(phase_) + 1));
    return;
  }
  supervisor_.SetTimer(NowNs() + static_cast<int64_t>(plan_.grace_ms) * 1'000'000);
  SignalRoles(roles, signal_number);
}

void Launch::SignalRoles(const std::set<Role>& roles, int signal_number) {
  for (uint32_t i = 0; i < children_.size(); ++i) {
    if (roles.count(children_[i].role) > 0) supervisor_.Signal(ChildId(i), signal_number);
  }
}

bool Launch::AnyRunning(const std::set<Role>& roles) const {
  for (uint32_t i = 0; i < children_.size(); ++i) {
    if (roles.count(children_[i].role) > 0 && supervisor_.running(ChildId(i))) return true;
  }
  return false;
}

std::set<Launch::Role> Launch::RolesOfPhase() const {
  switch (phase_) {
    case Phase::kEndingRanks: return {Role::kRank};
    case Phase::kEndingAgents: return {Role::kAgent};
    case Phase::kEndingAggregators: return {Role::kAggregator};
    case Phase::kEndingScheduler: return {Role::kScheduler};
    default: return {};
  }
}

}  // namespace talweg::cli
