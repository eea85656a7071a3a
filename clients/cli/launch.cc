// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/launch.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "clients/cli/command.h"

namespace talweg::cli {
namespace {

// Shells' exit statuses for a program that is not found, and one that does not start.
constexpr int kExitNotFound = 127;
constexpr int kExitNotStarted = 126;
// How long a rank that has died may take to be reaped, beside its agent.
constexpr int64_t kSuspicionNs = 2'000'000'000;
// How long a rank whose program has ended may take to end: a framework has much to shut down.
constexpr int64_t kFailingNs = 10'000'000'000;
// How often ranks that have left their job are asked whether they need another agent.
constexpr int64_t kNeedNs = 50'000'000;

}  // namespace

Launch::Launch(const RunPlan& plan, Supervisor& supervisor)
    : plan_(plan),
      supervisor_(supervisor),
      marks_(plan),
      scheduler_restarts_(plan.daemon_restarts) {
  for (const uint32_t node : plan_.LocalNodes()) {
    nodes_.emplace(node, NodeLife(plan_.ranks_per_node[node], plan_.node_restarts));
  }
  aggregator_restarts_.assign(plan_.aggregator_count, Restarts(plan_.daemon_restarts));
}

LaunchResult Launch::Run() {
  scheduler_ = plan_.scheduler;
  Enter(plan_.starts_scheduler()     ? Phase::kScheduler
        : plan_.starts_aggregators() ? Phase::kAggregators
                                     : Phase::kAgents);
  if (phase_ != Phase::kOver) supervisor_.Run(*this);
  supervisor_.EndAll(10'000);
  if (first_ && !result_.report.empty()) {
    result_.report += supervisor_.WhatItWrote(first_->cause.value_or(first_->child));
  }
  return result_;
}

void Launch::Enter(Phase phase) {
  phase_ = phase;
  waiting_.clear();
  const int64_t ready_ns = NowNs() + static_cast<int64_t>(plan_.ready_timeout_ms) * 1'000'000;
  switch (phase) {
    case Phase::kScheduler:
      SetTimer({Timer::kPhase, 0}, ready_ns);
      StartScheduler();
      break;
    case Phase::kAggregators:
      SetTimer({Timer::kPhase, 0}, ready_ns);
      for (uint32_t i = 0; i < plan_.aggregator_count && phase_ == phase; ++i) StartAggregator(i);
      break;
    case Phase::kAgents:
      SetTimer({Timer::kPhase, 0}, ready_ns);
      for (auto& [node, life] : nodes_) {
        if (phase_ == phase) Do(node, life.Start());
      }
      break;
    case Phase::kRanks:
      CancelTimer({Timer::kPhase, 0});
      if (!ports_.empty()) {
        supervisor_.Say(absl::StrCat("talweg: run: ", plan_.network_reason,
                                     " asks for the network: TCP ports of this machine are open: ",
                                     absl::StrJoin(ports_, ", ")));
        if (plan_.open_data_port) {
          supervisor_.Say(
              "talweg: run: libfabric's tcp parses what any user who reaches the data ports sends; "
              "--data-security=tls (or keyed) lets in only members of the job");
        }
      }
      for (auto& [node, life] : nodes_) {
        if (phase_ == phase && life.state() == NodeState::kReady) Do(node, life.StartRanks());
      }
      break;
    case Phase::kEndingRanks:
      timers_.clear();
      Ask({Role::kRank}, ending_signal_);
      break;
    case Phase::kEndingAgents: Ask({Role::kAgent}, SIGTERM); break;
    case Phase::kEndingAggregators: Ask({Role::kAggregator}, SIGTERM); break;
    // Last, because the others say goodbye to the scheduler.
    case Phase::kEndingScheduler: Ask({Role::kScheduler}, SIGTERM); break;
    case Phase::kOver:
      CancelTimer({Timer::kPhase, 0});
      supervisor_.Stop();
      break;
  }
}

bool Launch::Start(Child child, const ChildSpec& spec) {
  const absl::StatusOr<ChildId> started = supervisor_.Start(spec);
  if (!started.ok()) {
    const bool missing = started.status().code() == absl::StatusCode::kNotFound;
    End(missing ? kExitNotFound : kExitNotStarted, std::string(started.status().message()),
        SIGTERM);
    return false;
  }
  children_.push_back(child);
  if (!spec.is_daemon || phase_ >= Phase::kRanks) return true;
  // It may take the place of one that has died before it served.
  std::erase_if(waiting_, [&](ChildId id) {
    return At(id).role == child.role && At(id).index == child.index && !supervisor_.running(id);
  });
  waiting_.insert(*started);
  return true;
}

void Launch::StartScheduler() { Start({Role::kScheduler}, SchedulerSpec(plan_, scheduler_)); }

void Launch::StartAggregator(uint32_t index) {
  Start({Role::kAggregator, index}, AggregatorSpec(plan_, index, scheduler_));
}

void Launch::StartAgent(uint32_t node) {
  const NodeLife& life = nodes_.at(node);
  // Ranks that will be started for this agent have been in no job.
  const bool have_begun =
      life.state() == NodeState::kRenewing && (life.ranks_have_left() || marks_.AnyHasBegun(node));
  if (!Start({Role::kAgent, node}, AgentSpec(plan_, node, scheduler_, have_begun))) return;
  if (phase_ < Phase::kRanks) return;
  SetTimer({Timer::kServes, node},
           NowNs() + static_cast<int64_t>(plan_.ready_timeout_ms) * 1'000'000);
}

void Launch::StartRanks(uint32_t node) {
  std::vector<std::string> agents;
  for (const auto& [of, address] : agents_) agents.push_back(address);
  for (uint32_t i = 0; i < plan_.ranks_per_node[node]; ++i) {
    ChildSpec spec = RankSpec(plan_, node, i);
    spec.environment["TALWEG_RUN_AGENTS"] = absl::StrJoin(agents, ",");
    if (!scheduler_.empty()) spec.environment["TALWEG_SCHEDULER"] = scheduler_;
    marks_.Remove(node, i);
    spec.environment["TALWEG_RUN_DAEMONS"] = absl::StrJoin(DaemonPids(), ",");
    spec.environment["TALWEG_RUN_RESTARTS"] =
        absl::StrCat(nodes_.at(node).restarts().count(NowNs()));
    if (!Start({Role::kRank, node, i}, spec)) return;
  }
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
  if (ending()) return;
  const auto [role, index, local_rank] = At(child);
  if (role == Role::kScheduler && scheduler_.empty()) {
    const absl::StatusOr<std::string> address = ReadyAddress(line, "listen");
    if (!address.ok()) {
      NoteFirst({child, kExitFailed,
                 absl::StrCat(supervisor_.name(child), ": ", address.status().message())});
      End(kExitFailed, first_->what, SIGTERM);
      return;
    }
    scheduler_ = *address;
  }
  for (const char* name : {"listen", "data", "admin"}) {
    const absl::StatusOr<std::string> address = ReadyAddress(line, name);
    if (address.ok() && !plan_.network_reason.empty()) {
      ports_.push_back(absl::StrCat(supervisor_.name(child), " ", *address, " (", name, ")"));
    }
  }
  if (role == Role::kAgent) {
    agents_[index] = ReadyAddress(line, "admin").value_or("");
    CancelTimer({Timer::kServes, index});
    Do(index, nodes_.at(index).OnAgentServes());
  }
  if (waiting_.erase(child) > 0 && waiting_.empty()) Continue();
}

std::vector<pid_t> Launch::DaemonPids() const {
  std::vector<pid_t> pids;
  for (uint32_t i = 0; i < children_.size(); ++i) {
    const ChildId child(i);
    if (children_[i].role != Role::kRank && supervisor_.running(child)) {
      pids.push_back(supervisor_.pid(child));
    }
  }
  return pids;
}

void Launch::NoteFirst(const Failure& failure) {
  if (first_) return;
  first_ = failure;
}

void Launch::BlameCause(int exit_status) {
  if (exit_status == 0) return;
  if (result_.exit_status == first_->exit_status) result_.exit_status = exit_status;
  first_->exit_status = exit_status;
}

void Launch::OnExit(ChildId child, const ExitStatus& status) {
  const auto [role, index, local_rank] = At(child);
  const bool is_rank = role == Role::kRank;
  const bool has_node = is_rank || role == Role::kAgent;
  if (role == Role::kAgent) CancelTimer({Timer::kServes, index});
  (is_rank ? result_.rank_cpu_ns : result_.daemon_cpu_ns) += status.cpu_ns;
  if (first_ && first_->cause == child && !status.ended_on_demand())
    BlameCause(status.ShellStatus());
  if (ending()) {
    if (!AnyRunning(RolesOfPhase())) {
      Enter(static_cast<Phase>(static_cast<int>(phase_) + 1));
    }
    return;
  }
  if (has_node && status.ok() && phase_ == Phase::kRanks) {
    TellNode(child, true);
    return ReleaseHeld(false);
  }
  const bool may_go_on =
      plan_.goes_on || plan_.node_restarts.count_max > 0 || role == Role::kScheduler;
  const Failure failure = {
      child, status.ok() ? kExitFailed : status.ShellStatus(),
      absl::StrCat(supervisor_.name(child), " (pid ", supervisor_.pid(child), ") ",
                   !is_rank    ? "ended before its ranks: "
                   : may_go_on ? "failed: "
                               : "failed first: ",
                   status.ToString())};
  if (phase_ != Phase::kRanks && has_node) return OnEarlyAgentEnd(failure);
  // A daemon that ends by itself before it serves is not started well, and would not be again.
  const bool may_serve_again = !waiting_.contains(child) || status.signal_number != 0;
  if (phase_ != Phase::kRanks && !may_serve_again) {
    NoteFirst(failure);
    return End(failure.exit_status, absl::StrCat(failure.what, "; the run was ended"), SIGTERM);
  }
  if (!has_node) return OnDaemonEnd(failure);
  if (!is_rank && status.signal_number == 0 && nodes_.at(index).works()) {
    suspects_.emplace(index, Suspect{failure});
    return SetTimer({Timer::kSuspicion, index}, NowNs() + kSuspicionNs);
  }
  if (is_rank && status.signal_number == 0 && AwaitsFirst(child)) {
    held_.push_back(failure);
    return SetTimer({Timer::kHeld, 0}, NowNs() + kFailingNs);
  }
  OnNodeFailure(failure);
  ReleaseHeld(false);
}

std::optional<std::pair<int64_t, ChildId>> Launch::FirstToFail() const {
  std::optional<std::pair<int64_t, ChildId>> first;
  for (uint32_t i = 0; i < children_.size(); ++i) {
    const auto [role, node, local_rank] = children_[i];
    if (role != Role::kRank || !supervisor_.running(ChildId(i))) continue;
    const std::optional<int64_t> since_ns = marks_.FailsSince(node, local_rank);
    if (since_ns && (!first || *since_ns < first->first)) first = {*since_ns, ChildId(i)};
  }
  return first;
}

bool Launch::AwaitsFirst(ChildId rank) const {
  const auto [role, node, local_rank] = At(rank);
  const std::optional<int64_t> own_ns = marks_.FailsSince(node, local_rank);
  const auto first = FirstToFail();
  return first && (!own_ns || first->first < *own_ns);
}

void Launch::ReleaseHeld(bool all) {
  for (const Failure& failure : std::exchange(held_, {})) {
    if (ending()) return;
    if (!all && AwaitsFirst(failure.child)) {
      held_.push_back(failure);
    } else {
      OnNodeFailure(failure);
    }
  }
}

void Launch::OnDaemonEnd(const Failure& failure) {
  const auto [role, index, local_rank] = At(failure.child);
  const bool is_scheduler = role == Role::kScheduler;
  // If nodes come and go, each node has an aggregator.
  const bool others_serve = AnyRunning({Role::kAggregator}) || plan_.comes_and_goes();
  if (is_scheduler || plan_.node_restarts.count_max > 0 || (plan_.goes_on && others_serve)) {
    Restarts& restarts = is_scheduler ? scheduler_restarts_ : aggregator_restarts_[index];
    if (const std::optional<int64_t> at_ns = restarts.OnFailure(NowNs())) {
      supervisor_.Say(absl::StrCat("talweg: run: ", failure.what, "; it is started again",
                                   phase_ < Phase::kRanks ? ""
                                   : is_scheduler         ? ", steps go on"
                                   : others_serve         ? ", the others serve on"
                                                          : ""));
      return SetTimer({is_scheduler ? Timer::kScheduler : Timer::kAggregator, index}, *at_ns);
    }
    // A run can go on without one of several aggregators.
    if (!is_scheduler && plan_.goes_on && others_serve) {
      if (waiting_.erase(failure.child) > 0 && waiting_.empty()) Continue();
      return;
    }
  }
  NoteFirst(failure);
  End(failure.exit_status, absl::StrCat(failure.what, "; the run was ended"), SIGTERM);
}

void Launch::OnEarlyAgentEnd(const Failure& failure) {
  const uint32_t node = At(failure.child).index;
  const NodeLife& life = nodes_.at(node);
  // Options that the agent has refused would be refused again.
  const bool is_refused = failure.exit_status == kExitUsage;
  if (!is_refused) TellNode(failure.child, false);
  if (is_refused || life.lost()) {
    NoteFirst(failure);
    return End(failure.exit_status, absl::StrCat(failure.what, "; the run was ended"), SIGTERM);
  }
  waiting_.insert(failure.child);  // The phase waits for its successor.
  SetTimer({Timer::kPhase, 0},
           std::max(timers_[{Timer::kPhase, 0}],
                    life.start_at_ns() + static_cast<int64_t>(plan_.ready_timeout_ms) * 1'000'000));
  SayOfFailure(node, failure.what);
}

void Launch::OnNodeFailure(const Failure& failure) {
  const auto [role, node, local_rank] = At(failure.child);
  NodeLife& life = nodes_.at(node);
  if (life.over() || life.state() == NodeState::kEnding || life.state() == NodeState::kPausing) {
    return TellNode(failure.child, false);  // The node is ending, so its processes had to.
  }
  TellNode(failure.child, false);
  if (plan_.goes_on) {
    if (life.lost()) NoteFirst(failure);
    SayOfFailure(node, failure.what);
    return EndIfDone();
  }
  // All other nodes need this one, and would fail one by one.
  bool any_over = life.lost();
  for (auto& [other, other_life] : nodes_) {
    if (other == node || ending()) continue;
    Do(other, other_life.Fail(NowNs()));
    any_over |= other_life.over();
  }
  if (!any_over) return SayOfFailure(node, failure.what);
  NoteFirst(failure);
  const char* others = role == Role::kRank ? "; all other ranks were ended" : "; the run was ended";
  End(failure.exit_status, absl::StrCat(failure.what, others), SIGTERM);
}

void Launch::SayOfFailure(uint32_t node, const std::string& what) {
  const NodeLife& life = nodes_.at(node);
  if (!life.lost()) {
    const RestartPolicy& policy = life.restarts().policy();
    const std::string again =
        phase_ < Phase::kRanks ? absl::StrCat("the agent of node ", node, " is started again")
        : life.state() == NodeState::kBereft ? absl::StrCat("the agent of node ", node,
                                                            " is started again, its "
                                                            "ranks wait for it")
        : plan_.goes_on                      ? absl::StrCat("node ", node, " is started again")
                                             : "all nodes are started again";
    supervisor_.Say(absl::StrCat("talweg: run: ", again, " (", life.restarts().count(NowNs()),
                                 " of ", policy.count_max, " times in ",
                                 policy.window_ns / 1'000'000'000, " s): ", what));
    return;
  }
  const auto is_left = [](const auto& each) { return !each.second.over(); };
  if (!std::any_of(nodes_.begin(), nodes_.end(), is_left)) return;
  supervisor_.Say(absl::StrCat("talweg: run: node ", node, " is lost, the others go on: ", what));
}

void Launch::TellNode(ChildId child, bool well) {
  const auto [role, node, local_rank] = At(child);
  NodeLife& life = nodes_.at(node);
  const int64_t now_ns = NowNs();
  // A job that needs all its nodes fails with any of their agents.
  const bool may_outlive = plan_.goes_on || plan_.node_count() == 1;
  const bool is_outlived = !well && may_outlive && marks_.AllOutlive(node);
  Do(node, role == Role::kAgent ? life.OnAgentEnds(well, now_ns, is_outlived)
                                : life.OnRankEnds(well, now_ns));
  if (role == Role::kAgent || well || !suspects_.contains(node)) return;
  // This rank is why its agent has ended.
  suspects_.erase(node);
  CancelTimer({Timer::kSuspicion, node});
  Do(node, life.OnAgentEnds(false, now_ns));
}

void Launch::Do(uint32_t node, NodeAction action) {
  if (ending()) return;
  switch (action) {
    case NodeAction::kNone: return;
    case NodeAction::kStartAgent: return StartAgent(node);
    case NodeAction::kStartRanks: return StartRanks(node);
    case NodeAction::kAwaitNeed: return SetTimer({Timer::kNode, node}, NowNs() + kNeedNs);
    case NodeAction::kEndAll:
      CancelTimer({Timer::kServes, node});
      SetTimer({Timer::kGrace, node}, NowNs() + static_cast<int64_t>(plan_.grace_ms) * 1'000'000);
      // The agent has told the scheduler, or is dead. So the node's other processes cannot go on.
      return SignalNode(node, SIGTERM);
    case NodeAction::kPause:
    case NodeAction::kForget: {
      const NodeLife& life = nodes_.at(node);
      CancelTimer({Timer::kGrace, node});
      if (life.state() != NodeState::kBereft) KillLeftBy(node);
      if (life.lost()) return;
      return SetTimer({Timer::kNode, node}, life.start_at_ns());
    }
    case NodeAction::kFinish: return EndIfDone();
  }
}

void Launch::EndIfDone() {
  const bool any_done = std::any_of(nodes_.begin(), nodes_.end(), [](const auto& each) {
    return each.second.state() == NodeState::kDone;
  });
  std::vector<uint32_t> lost, late, missing;
  for (const auto& [node, life] : nodes_) {
    if (life.state() == NodeState::kDone) continue;
    missing.push_back(node);
    if (life.lost()) {
      lost.push_back(node);
    } else if (plan_.goes_on && any_done) {
      // A node that starts again after the others have ended well finds nobody. If its ranks work,
      // they have been let in, or look for an agent that lets them in.
      if (life.works() && !(life.has_failed() && marks_.AnyNeedsAgent(node))) {
        if (life.has_failed()) SetTimer({Timer::kLate, 0}, NowNs() + kNeedNs);
        return;
      }
      late.push_back(node);
    } else {
      return;
    }
  }
  if (missing.empty()) return End(0, "", 0);
  if (lost.size() == nodes_.size()) {
    // In a job of several machines this launcher does not know the other nodes.
    const std::string left =
        plan_.node_rank ? absl::StrCat("node ", *plan_.node_rank, " has ended, others may go on")
                        : "no node is left";
    return End(first_->exit_status, absl::StrCat(first_->what, "; ", left), SIGTERM);
  }
  std::string report =
      absl::StrCat("the run has ended well without node ", absl::StrJoin(missing, ", "),
                   first_ ? absl::StrCat(": ", first_->what) : "");
  if (!late.empty()) {
    absl::StrAppend(&report, "; the others had ended before node ", absl::StrJoin(late, ", "),
                    " was back");
  }
  End(0, report, SIGTERM);
}

void Launch::OnSignal(int signal_number) {
  if (signalled_) {
    // A second signal means: do not wait.
    SignalRoles({Role::kRank, Role::kAgent, Role::kAggregator, Role::kScheduler}, SIGKILL);
    return;
  }
  signalled_ = true;
  first_.reset();
  End(128 + signal_number,
      absl::StrCat("ended by signal ", signal_number, " (", strsignal(signal_number), ")"),
      signal_number == SIGINT ? SIGINT : SIGTERM);
}

void Launch::SetTimer(TimerKey key, int64_t at_ns) {
  timers_[key] = at_ns;
  // There is no such timer: this only arms the earliest one.
  CancelTimer({Timer::kPhase, ~uint32_t{0}});
}

void Launch::CancelTimer(TimerKey key) {
  timers_.erase(key);
  int64_t first_ns = 0;
  for (const auto& [each, at_ns] : timers_) {
    if (first_ns == 0 || at_ns < first_ns) first_ns = at_ns;
  }
  supervisor_.SetTimer(first_ns);
}

void Launch::OnTimer() {
  const int64_t now_ns = NowNs();
  std::vector<TimerKey> due;
  for (const auto& [key, at_ns] : timers_) {
    if (at_ns <= now_ns) due.push_back(key);
  }
  for (const TimerKey& key : due) {
    // One timer's action may have cancelled, or put off, another timer.
    const auto timer = timers_.find(key);
    if (timer == timers_.end() || timer->second > now_ns) continue;
    CancelTimer(key);
    OnTimerOf(key);
  }
}

void Launch::OnTimerOf(TimerKey key) {
  const auto [timer, index] = key;
  if (ending()) return SignalRoles(RolesOfPhase(), SIGKILL);
  switch (timer) {
    case Timer::kPhase: {
      std::vector<std::string> names;
      for (const ChildId child : waiting_) names.push_back(supervisor_.name(child));
      const std::string what =
          absl::StrCat(absl::StrJoin(names, ", "), " did not serve within ", plan_.ready_timeout_ms,
                       " ms; raise --ready-timeout-ms if this machine is only slow");
      NoteFirst({*waiting_.begin(), kExitFailed, what});
      return End(kExitFailed, what, SIGTERM);
    }
    case Timer::kServes: return SignalNode(index, SIGKILL);
    case Timer::kSuspicion: {
      const auto first = FirstToFail();
      if (!std::exchange(suspects_.at(index).rank_fails, true) && first) {
        return SetTimer(key, NowNs() + kFailingNs - kSuspicionNs);
      }
      Failure failure = suspects_.extract(index).mapped().failure;
      if (!first) return OnNodeFailure(failure);
      failure.cause = first->second;
      const auto [role, node, local_rank] = At(first->second);
      failure.exit_status = marks_.FailsWith(node, local_rank).value_or(failure.exit_status);
      absl::StrAppend(&failure.what, ", after the program of ", supervisor_.name(first->second),
                      " (pid ", supervisor_.pid(first->second), ") had ended");
      return OnNodeFailure(failure);
    }
    case Timer::kHeld: return ReleaseHeld(true);
    case Timer::kNode: return Do(index, nodes_.at(index).OnTime(marks_.AnyNeedsAgent(index)));
    case Timer::kLate: return EndIfDone();
    case Timer::kGrace: return SignalNode(index, SIGKILL);
    case Timer::kScheduler: return StartScheduler();
    case Timer::kAggregator: return StartAggregator(index);
  }
}

void Launch::OnOutputGone() { End(128 + SIGPIPE, "", SIGTERM); }

void Launch::End(int exit_status, const std::string& report, int signal_number) {
  if (ending()) return;
  result_.exit_status = exit_status;
  result_.report = report;
  ending_signal_ = signal_number;
  // Mutes the daemons: their messages about being ended are no news.
  for (uint32_t i = 0; i < children_.size(); ++i) {
    if (children_[i].role != Role::kRank && exit_status != 0) supervisor_.Mute(ChildId(i));
  }
  Enter(Phase::kEndingRanks);
}

void Launch::Ask(const std::set<Role>& roles, int signal_number) {
  if (!AnyRunning(roles)) return Enter(static_cast<Phase>(static_cast<int>(phase_) + 1));
  SetTimer({Timer::kPhase, 0}, NowNs() + static_cast<int64_t>(plan_.grace_ms) * 1'000'000);
  SignalRoles(roles, signal_number);
}

void Launch::SignalRoles(const std::set<Role>& roles, int signal_number) {
  for (uint32_t i = 0; i < children_.size(); ++i) {
    if (roles.count(children_[i].role) > 0) supervisor_.Signal(ChildId(i), signal_number);
  }
}

void Launch::SignalNode(uint32_t node, int signal_number) {
  for (uint32_t i = 0; i < children_.size(); ++i) {
    const auto [role, index, local_rank] = children_[i];
    const bool has_node = role == Role::kRank || role == Role::kAgent;
    if (has_node && index == node) supervisor_.Signal(ChildId(i), signal_number);
  }
}

void Launch::KillLeftBy(uint32_t node) {
  for (uint32_t i = 0; i < plan_.ranks_per_node[node]; ++i) {
    const std::string mark = absl::StrCat("TALWEG_RUN_NEEDS=", NeedsPath(plan_, node, i));
    if (const int count = KillDescendants(mark); count > 0) {
      supervisor_.Say(absl::StrCat("talweg: run: node ", node, " had left ",
                                   count == 1 ? "a process" : absl::StrCat(count, " processes"),
                                   " of local rank ", i, ", killed"));
    }
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
