// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/life.h"

#include <malloc.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "tests/sim/agent_process.h"
#include "tests/sim/aggregator_daemons.h"
#include "tests/sim/joiner_checks.h"
#include "tests/sim/ledger.h"
#include "tests/sim/log_sink.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/reached.h"
#include "tests/sim/scheduler_process.h"
#include "tests/sim/silence_checks.h"
#include "tests/sim/timeline.h"

namespace talweg::sim {
namespace {

// Far above what any life needs after its faults, with leases, back-offs and retries.
constexpr int64_t kSettleNs = 450 * kSecond;
constexpr uint64_t kEventsMax = 3'000'000;

class World {
 public:
  World(Kind kind, uint64_t seed, bool with_trace)
      : timeline_(SeedOfChance(kind, seed)),
        trace_(with_trace),
        profile_(DrawProfile(kind, seed, timeline_.random())),
        network_(&timeline_, profile_.delay_max_ns) {}

  // Processes close their connections when they are destroyed.
  ~World() { network_.Forget(); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  LifeResult Live();

 private:
  struct AgentHost {
    std::string job_name;
    uint32_t node = 0;
    HostIndex host = 0;
    std::string host_id;
    std::unique_ptr<AgentProcess> process;
  };
  void Build();
  std::string NextHostId(const AgentHost& agent);
  void StartAgent(AgentHost& agent);
  void CrashAgent(AgentHost& agent);
  void EndAgent(AgentHost& agent, bool silently);
  void LeaveAgent(AgentHost& agent, const AgentProcess* process);
  void CheckDeathIsSeen(const view::MemberIdentity& member);
  void CheckJoiners(const view::View& view) const;
  void CheckSilence();
  void CheckGivenUp(const AgentHost& by, NodeRank node);
  void NextFault();
  void Do(Fault fault);
  void StopSomeProcess();
  void Stop(Host& host, int64_t stop_ns);
  void NoteZombie(const AgentProcess& process);
  bool Settled() const;
  uint64_t OutcomeCount() const;  // Results that ranks have taken and found right.
  void CheckAllDone() const;
  void Gather(LifeResult& result);

  template <typename List>
  auto& Some(List& list) {
    return list[timeline_.random().Below(list.size())];
  }
  bool Quiet() const {
    return profile_.fault_gap_ns == 0 || timeline_.now_ns() >= profile_.fault_end_ns;
  }
  Incarnation NewIncarnation() { return Incarnation{++last_incarnation_}; }

  Timeline timeline_;
  Trace trace_;
  const Profile profile_;
  Network network_;
  std::map<JobId, Ledger> ledgers_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  HostIndex scheduler_host_ = 0;
  std::vector<AgentHost> agents_;
  std::unique_ptr<AggregatorDaemons> aggregators_;
  // A process stays here after its end, so that its pending events still find it and see that it is
  // over.
  std::vector<std::unique_ptr<AgentProcess>> past_agents_;
  uint64_t last_incarnation_ = 0;
  Deaths deaths_;
  std::map<std::string, uint64_t> faults_;
};

void World::Build() {
  if (profile_.severing) network_.SeverAt(*profile_.severing);
  Host& scheduler = network_.AddHost();
  scheduler_host_ = scheduler.index();
  scheduler_ = std::make_unique<SchedulerProcess>(&timeline_, &trace_, &network_, &scheduler,
                                                  &profile_, &ledgers_);
  scheduler_->SetViewCheck([this](const view::View& view) { CheckJoiners(view); });
  scheduler_->Start();
  aggregators_ =
      std::make_unique<AggregatorDaemons>(&timeline_, &trace_, &network_, scheduler_.get(),
                                          &profile_, [this] { return NewIncarnation(); });
  aggregators_->AddHosts();
  for (uint32_t job = 0; job < profile_.job_count; ++job) {
    for (uint32_t node = 0; node < profile_.rank_counts.size(); ++node) {
      agents_.push_back({.job_name = "job" + std::to_string(job),
                         .node = node,
                         .host = network_.AddHost().index()});
    }
  }
  aggregators_->Start();
  const bool some_late = profile_.fault_weights[static_cast<int>(Fault::kLateJoin)] > 0;
  for (AgentHost& agent : agents_) {
    // Aggregators start first: a job takes those that are there when it starts.
    const bool waits = profile_.aggregator_count > 0 && !profile_.members_first;
    int64_t delay_ns = waits ? kSecond + network_.Delay() : 0;
    if (some_late && timeline_.random().OneIn(3)) {
      delay_ns += static_cast<int64_t>(
          timeline_.random().Below(static_cast<uint64_t>(profile_.fault_end_ns) + 1));
      ++faults_[FaultName(Fault::kLateJoin)];
    }
    timeline_.After(delay_ns, [this, &agent] { StartAgent(agent); });
  }
  if (profile_.fault_gap_ns > 0) {
    timeline_.After(kSecond + profile_.fault_start_ns, [this] { NextFault(); });
  }
  if (profile_.fault_weights[static_cast<int>(Fault::kLoseScheduler)] > 0) CheckSilence();
}

// Returns the host for the next start of an agent.
std::string World::NextHostId(const AgentHost& agent) {
  const std::vector<std::string>& hosts = profile_.node_hosts;
  if (hosts.empty()) return agent.host_id;
  if (agent.host_id.empty()) return hosts[agent.node];
  return timeline_.random().OneIn(3) ? Some(hosts) : agent.host_id;
}

void World::StartAgent(AgentHost& agent) {
  if (agent.process != nullptr) return;
  agent.host_id = NextHostId(agent);
  Host& host = network_.host(agent.host);
  agent.process = std::make_unique<AgentProcess>(
      &timeline_, &trace_, &network_, scheduler_.get(), &ledgers_, agent.host,
      AgentProcess::Config{
          .job_name = agent.job_name,
          .node = agent.node,
          .rank_count = profile_.rank_counts[agent.node],
          .incarnation = NewIncarnation(),
          .host_id = agent.host_id,
          .profile = &profile_,
          .on_given_up = [this, &agent](NodeRank node) { CheckGivenUp(agent, node); },
          .on_ended = [this, &agent](const AgentProcess* ended) { LeaveAgent(agent, ended); }});
  host.Start(agent.process->process());
  trace_.Add(timeline_.now_ns(), agent.process->name(), "starts");
  agent.process->Start();
}

void World::CrashAgent(AgentHost& agent) {
  if (agent.process == nullptr) return;
  trace_.Add(timeline_.now_ns(), agent.process->name(), "crashes");
  const bool silently = timeline_.random().OneIn(6);
  if (silently) trace_.Reached("a host falls silent");
  EndAgent(agent, silently);
  if (timeline_.random().OneIn(4)) return;  // The agent stays away.
  timeline_.After(network_.Delay() * 20, [this, &agent] { StartAgent(agent); });
}

// The agent ends by itself. Its object stays: later checks look at how its ranks ended.
void World::LeaveAgent(AgentHost& agent, const AgentProcess* process) {
  if (agent.process.get() != process) return;
  trace_.Add(timeline_.now_ns(), process->name(), "ends");
  scheduler_->OnHostEnded(agent.host, false);
  network_.EndHost(agent.host);
  network_.host(agent.host).End();
}

void World::EndAgent(AgentHost& agent, bool silently) {
  if (!silently) CheckDeathIsSeen(agent.process->core().config().self);
  deaths_[agent.process->core().config().self] = timeline_.now_ns();
  scheduler_->OnHostEnded(agent.host, silently);
  network_.EndHost(agent.host);
  network_.host(agent.host).End();
  past_agents_.push_back(std::move(agent.process));
}

// Invariant 5: a process that is killed is missed at once, not after its lease.
void World::CheckDeathIsSeen(const view::MemberIdentity& member) {
  const auto is_attached = [this, member] {
    if (scheduler_->core() == nullptr) return false;
    for (const auto& [id, job] : scheduler_->core()->jobs()) {
      const auto found = job.members.find(member.node);
      if (found != job.members.end() && found->second.record.member.id == member) {
        return found->second.attached_before;
      }
    }
    return false;
  };
  const int64_t steady_since_ns = scheduler_->steady_since_ns();
  const bool may_doubt = network_.host(scheduler_host_).stopped() ||
                         timeline_.now_ns() < steady_since_ns + 11 * kSecond;
  if (!is_attached() || (may_doubt && steady_since_ns > 0)) return;
  timeline_.After(kSecond, [this, is_attached, member, steady_since_ns] {
    if (scheduler_->steady_since_ns() != steady_since_ns || !is_attached() ||
        network_.host(scheduler_host_).stopped()) {
      return;
    }
    throw Violation{"node " + std::to_string(member.node.value()) +
                    " was killed a second ago, but is still a member"};
  });
}

// For each member, a joiner is one that is not in the view which that member has. A view between
// that one and this one may have reached only members that have left.
void World::CheckJoiners(const view::View& view) const {
  if (trace_.HasReached(kForged)) return;
  std::vector<const pipeline::AgentCore*> members;
  for (const AgentHost& agent : agents_) {
    if (agent.process == nullptr || agent.process->Failed()) continue;
    const pipeline::AgentCore& core = agent.process->core();
    const view::View* const held = core.views().newest();
    if (held == nullptr || held->job != view.job || !view.IndexOf(core.config().self)) continue;
    if (!HasJoiner(*held, view)) continue;
    const std::optional<MemberIndex> self = held->IndexOf(core.config().self);
    if (self && held->members[self->value()].standby) continue;
    members.push_back(&core);
    agent.process->CheckAtBoundary(view);
  }
  CheckNothingOpen(members, view);
}

void World::CheckSilence() {
  if (scheduler_->down_since_ns()) {
    for (const AgentHost& agent : agents_) {
      if (agent.process == nullptr || network_.host(agent.host).stopped()) continue;
      CheckWaitsForNoneDead(*agent.process, deaths_, scheduler_->undecided_since_ns(),
                            profile_.unreachable_ns, timeline_.now_ns());
    }
  }
  timeline_.After(5 * kSecond, [this] { CheckSilence(); });
}

void World::CheckGivenUp(const AgentHost& by, NodeRank node) {
  for (const AgentHost& agent : agents_) {
    if (agent.job_name != by.job_name || agent.node != node.value()) continue;
    // An agent on a stopped host does not know yet which of its connections are broken.
    if (agent.process == nullptr || network_.host(agent.host).stopped()) continue;
    CheckWasAbsent(*by.process, *agent.process, by.process->frame_sent_ns());
  }
}

void World::StopSomeProcess() {
  const auto some = static_cast<HostIndex>(timeline_.random().Below(network_.host_count()));
  if (!network_.host(some).alive() || network_.host(some).stopped()) return;
  // The stop is often short. If it outlasts the lease, the host goes on as a zombie.
  const int64_t stop_ns = timeline_.random().OneIn(3) ? 12 * kSecond : network_.Delay() * 10;
  for (const HostIndex index : aggregators_->HostsTogether(some)) {
    if (network_.host(index).alive()) Stop(network_.host(index), stop_ns);
  }
}

void World::Stop(Host& host, int64_t stop_ns) {
  trace_.Add(timeline_.now_ns(), "host " + std::to_string(host.index()), "is stopped");
  host.Stop();
  timeline_.After(stop_ns, [this, &host, life = host.life()] {
    if (host.life() != life) return;
    trace_.Add(timeline_.now_ns(), "host " + std::to_string(host.index()), "is continued");
    for (const AgentHost& agent : agents_) {
      if (agent.host == host.index()) NoteZombie(*agent.process);
    }
    host.Continue();
  });
}

void World::NoteZombie(const AgentProcess& process) {
  const view::View* const view = process.core().views().present();
  if (view == nullptr || scheduler_->core() == nullptr) return;
  const auto job = scheduler_->core()->jobs().find(view->job);
  if (job == scheduler_->core()->jobs().end() || !job->second.view) return;
  if (!job->second.view->IndexOf(process.core().config().self)) {
    trace_.Reached("a process that was stopped goes on after a view without it");
  }
}

void World::Do(Fault fault) {
  switch (fault) {
    case Fault::kCrashAgent: return CrashAgent(Some(agents_));
    case Fault::kCrashAggregator: return aggregators_->CrashSome();
    case Fault::kConfuseRank:
    case Fault::kForge: {
      AgentHost& agent = Some(agents_);
      if (agent.process == nullptr || network_.host(agent.host).stopped()) return;
      if (fault == Fault::kForge) return agent.process->Forge();
      const uint32_t count = profile_.rank_counts[agent.node];
      return agent.process->ConfuseRank(
          LocalRank{static_cast<uint32_t>(timeline_.random().Below(count))});
    }
    case Fault::kRestartScheduler: return scheduler_->Restart(network_.Delay() * 10);
    case Fault::kLoseScheduler: return scheduler_->Lose();
    case Fault::kBreakLink: network_.BreakSomeLink(false); return;
    case Fault::kHalfBreakLink: network_.BreakSomeLink(true); return;
    case Fault::kStallLink:
      network_.StallSomeLink(timeline_.random().OneIn(2) ? network_.Delay() * 40 : 2 * kSecond);
      return;
    case Fault::kPauseProcess: return StopSomeProcess();
    case Fault::kPartition: {
      const auto a = static_cast<HostIndex>(timeline_.random().Below(network_.host_count()));
      const auto b = static_cast<HostIndex>(timeline_.random().Below(network_.host_count()));
      const int64_t length_ns = timeline_.random().OneIn(4) ? 15 * kSecond : network_.Delay() * 20;
      for (const HostIndex one : aggregators_->HostsTogether(a)) {
        for (const HostIndex other : aggregators_->HostsTogether(b)) {
          if (one != other) network_.Partition(one, other, timeline_.now_ns() + length_ns);
        }
      }
      return;
    }
    case Fault::kKillRank: {
      AgentHost& agent = Some(agents_);
      if (agent.process == nullptr || network_.host(agent.host).stopped()) return;
      const uint32_t count = profile_.rank_counts[agent.node];
      agent.process->KillRank(LocalRank{static_cast<uint32_t>(timeline_.random().Below(count))});
      return;
    }
    case Fault::kBreakStream: scheduler_->BreakSomeStream(); return;
    case Fault::kClockGap: {
      Host& host = network_.host(scheduler_host_);
      if (!host.alive() || host.stopped()) return;
      host.Stop();
      timeline_.After(25 * kSecond, [&host, life = host.life()] {
        if (host.life() == life) host.Continue();
      });
      return;
    }
    case Fault::kLateJoin:
      for (AgentHost& agent : agents_) {
        // Whoever starts agents starts an agent again whose job has failed.
        if (agent.process != nullptr && agent.process->Settled() && agent.process->Failed() &&
            !network_.host(agent.host).stopped()) {
          EndAgent(agent, false);
        }
        StartAgent(agent);
      }
      return;
    case Fault::kConfuseAgent: {
      AgentHost& agent = Some(agents_);
      if (agent.process != nullptr && !network_.host(agent.host).stopped()) {
        agent.process->Confuse();
      }
      return;
    }
    case Fault::kLeave: {
      AgentHost& agent = Some(agents_);
      if (agent.process == nullptr || network_.host(agent.host).stopped()) return;
      agent.process->Stop();
      return;
    }
    case Fault::kDrainAggregator: return aggregators_->DrainSome();
  }
}

void World::NextFault() {
  if (timeline_.now_ns() >= kSecond + profile_.fault_end_ns) return;
  uint32_t total = 0;
  for (const uint32_t weight : profile_.fault_weights) total += weight;
  if (total > 0) {
    uint64_t draw = timeline_.random().Below(total);
    int fault = 0;
    while (draw >= profile_.fault_weights[fault]) draw -= profile_.fault_weights[fault++];
    ++faults_[FaultName(Fault{static_cast<uint8_t>(fault)})];
    trace_.Add(timeline_.now_ns(), "fault", FaultName(Fault{static_cast<uint8_t>(fault)}));
    Do(Fault{static_cast<uint8_t>(fault)});
  }
  // Now and then the next fault strikes while the cluster still deals with this one.
  const int64_t gap_ns = timeline_.random().OneIn(3)
                             ? std::min(network_.Delay() * 4, profile_.fault_gap_ns)
                             : 2 * profile_.fault_gap_ns;
  timeline_.After(1 + static_cast<int64_t>(timeline_.random().Below(static_cast<uint64_t>(gap_ns))),
                  [this] { NextFault(); });
}

// Every rank has finished or been told why not, and every process that was told to stop has done
// so.
bool World::Settled() const {
  return std::all_of(agents_.begin(), agents_.end(),
                     [](const AgentHost& agent) {
                       return agent.process == nullptr ||
                              (agent.process->Settled() && !agent.process->Lingers());
                     }) &&
         aggregators_->Settled();
}

uint64_t World::OutcomeCount() const {
  uint64_t count = 0;
  for (const auto& [name, ledger] : ledgers_) count += ledger.outcomes();
  return count;
}

// All finish where only a connection breaks.
void World::CheckAllDone() const {
  for (const AgentHost& agent : agents_) {
    if (agent.process != nullptr && agent.process->AllRanksDone()) continue;
    throw Violation{agent.job_name + ": a rank has not finished, though only a connection broke"};
  }
}

LifeResult World::Live() {
  LifeResult result;
  const LogSink sink([this](const std::string& text) { trace_.AddLog(timeline_.now_ns(), text); });
  try {
    Build();
    const int64_t faults_end_ns = 2 * kSecond + profile_.fault_end_ns;
    int64_t end_ns = faults_end_ns + kSettleNs;
    uint64_t outcomes = 0;
    while (result.events < kEventsMax && timeline_.RunOne(end_ns)) {
      ++result.events;
      if (result.events % 64 != 0 || timeline_.now_ns() <= faults_end_ns) continue;
      if (Settled()) break;
      // Slow ranks may need long. A life that is stuck takes no results.
      if (std::exchange(outcomes, OutcomeCount()) != outcomes) {
        end_ns = timeline_.now_ns() + kSettleNs;
      }
    }
    aggregators_->CheckMemory();
    if (!Settled()) {
      std::string text = "the life does not end:";
      for (const AgentHost& agent : agents_) {
        if (agent.process == nullptr) continue;
        if (!agent.process->Settled()) text += "\n  " + agent.process->Unsettled();
        if (agent.process->Lingers()) text += "\n  " + agent.process->name() + " lingers";
      }
      text += aggregators_->Unsettled();
      throw Violation{text};
    }
    if (profile_.severing) CheckAllDone();
  } catch (const Violation& violation) {
    result.violation = violation.text;
  } catch (const std::exception& error) {
    // An effect names memory, a tensor or a job that is gone.
    result.violation = std::string("an effect that the simulation cannot perform: ") + error.what();
  }
  Gather(result);
  return result;
}

void World::Gather(LifeResult& result) {
  if (network_.has_severed()) trace_.Reached(kSevered);
  result.trace = trace_.lines();
  result.coverage = trace_.reached();
  result.outcomes = OutcomeCount();
  for (const auto& [name, ledger] : ledgers_) GatherLedger(ledger, result.coverage);
  for (const auto& [name, count] : faults_) result.coverage["fault: " + name] += count;
  const auto gather_job = [&](const aggregation::Counters& counters) {
    GatherJob(counters, result.coverage);
    if (counters.contradictions > 0 && result.violation.empty() &&
        !trace_.HasReached(kFalseReport)) {
      result.violation = "reports of honest members contradict each other";
    }
  };
  aggregators_->ForEach([&](const AggregatorProcess& process) {
    for (const aggregation::AggregatorCore* const job : process.jobs()) gather_job(job->counters());
    for (const aggregation::AggregatorCore* const job : process.leaving_jobs())
      gather_job(job->counters());
    const aggregator::AggregatorDataPlane::Totals totals = process.totals();
    gather_job(totals.ended);
    result.coverage["a result waits for others"] += totals.results_queued;
    result.coverage["a result that waits leaves before a FenceAck"] += totals.results_hurried;
  });
  for (const auto& process : past_agents_) GatherAgent(*process, result.coverage);
  for (const AgentHost& agent : agents_) {
    if (agent.process != nullptr) GatherAgent(*agent.process, result.coverage);
  }
  if (scheduler_->restarts() > 0) ++result.coverage["scheduler: a restart over its store"];
}

}  // namespace

LifeResult Live(Kind kind, uint64_t seed, bool with_trace) {
  // Keeps the memory that a life has freed for the next life. New pages would take a sixth of the
  // time.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return World(kind, seed, with_trace).Live();
}

}  // namespace talweg::sim
