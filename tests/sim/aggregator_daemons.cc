// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/aggregator_daemons.h"

#include <algorithm>
#include <utility>

namespace talweg::sim {

AggregatorDaemons::AggregatorDaemons(Timeline* timeline, Trace* trace, Network* network,
                                     SchedulerProcess* scheduler, const Profile* profile,
                                     std::function<Incarnation()> new_incarnation)
    : timeline_(timeline),
      trace_(trace),
      network_(network),
      scheduler_(scheduler),
      profile_(profile),
      new_incarnation_(std::move(new_incarnation)) {}

void AggregatorDaemons::AddHosts() {
  for (uint32_t place = 0; place < profile_->aggregator_count; ++place) {
    if (place % profile_->lane_count == 0) daemons_.push_back(std::make_unique<Daemon>());
    Daemon& daemon = *daemons_.back();
    lanes_.push_back(std::make_unique<Lane>(
        Lane{.daemon = &daemon, .place = place, .host = network_->AddHost().index()}));
    daemon.lanes.push_back(lanes_.back().get());
  }
}

void AggregatorDaemons::Start() {
  for (const auto& daemon : daemons_) {
    if (profile_->members_first) {
      timeline_->After(kSecond + 4 * network_->Delay(),
                       [this, &daemon = *daemon] { StartDaemon(daemon); });
    } else {
      StartDaemon(*daemon);
    }
  }
}

void AggregatorDaemons::StartDaemon(Daemon& daemon) {
  daemon.told_to_stop = daemon.starts_again = false;
  daemon.host_id = NextHostId(daemon);
  for (Lane* const lane : daemon.lanes) StartLane(*lane);
}

void AggregatorDaemons::StartLater(Daemon& daemon) {
  timeline_->After(network_->Delay() * 20, [this, &daemon] {
    // It was started meanwhile.
    for (const Lane* const lane : daemon.lanes) {
      if (lane->process != nullptr) return;
    }
    StartDaemon(daemon);
  });
}

// A daemon that is started again may be on another host.
std::string AggregatorDaemons::NextHostId(const Daemon& daemon) {
  const std::vector<std::string>& hosts = profile_->aggregator_hosts;
  if (hosts.empty()) return daemon.host_id;
  if (daemon.host_id.empty()) return hosts[daemon.lanes.front()->place];
  if (!timeline_->random().OneIn(3)) return daemon.host_id;
  return hosts[timeline_->random().Below(hosts.size())];
}

void AggregatorDaemons::StartLane(Lane& lane) {
  lane.process = std::make_unique<AggregatorProcess>(
      timeline_, trace_, network_, scheduler_,
      AggregatorProcess::Config{
          .host = lane.host,
          .place = lane.place,
          .incarnation = new_incarnation_(),
          .host_id = lane.daemon->host_id,
          .profile = profile_,
          .on_ended = [this, &lane](const AggregatorProcess* ended) { OnEnded(lane, ended); }});
  network_->host(lane.host).Start(lane.process->process());
  trace_->Add(timeline_->now_ns(), lane.process->name(), "starts");
  lane.process->Start();
}

void AggregatorDaemons::Crash(Lane& struck) {
  if (struck.process == nullptr) return;
  Daemon& daemon = *struck.daemon;
  uint64_t serving = 0;
  for (const Lane* const lane : daemon.lanes) {
    if (lane->process == nullptr) continue;
    if (!lane->process->jobs().empty()) ++serving;
    for (const aggregation::AggregatorCore* const job : lane->process->jobs()) {
      for (const auto& [key, tensor] : job->tensors()) {
        if (tensor.decision && tensor.decision->verdict == wire::Verdict::kFinish) {
          trace_->Reached("an owner dies that has decided to finish a round");
        }
      }
    }
    trace_->Add(timeline_->now_ns(), lane->process->name(), "crashes");
  }
  if (serving > 1) trace_->Reached("lanes of one process die together");
  (void)EndDaemon(daemon, timeline_->random().OneIn(6));
  StartLater(daemon);
}

uint64_t AggregatorDaemons::EndDaemon(Daemon& daemon, bool silently) {
  uint64_t ended = 0;
  for (Lane* const lane : daemon.lanes) {
    if (lane->process == nullptr) continue;
    EndHost(*lane, silently);
    ++ended;
  }
  return ended;
}

void AggregatorDaemons::EndHost(Lane& lane, bool silently) {
  scheduler_->OnHostEnded(lane.host, silently);
  network_->EndHost(lane.host);
  network_->host(lane.host).End();
  past_.push_back(std::move(lane.process));
}

// A daemon that was told to stop waits for all its lanes, and stays away. One that the scheduler
// has refused ends at once, and is started again.
void AggregatorDaemons::OnEnded(Lane& ended, const AggregatorProcess* process) {
  if (ended.process.get() != process) return;
  trace_->Add(timeline_->now_ns(), process->name(), "ends");
  Daemon& daemon = *ended.daemon;
  const bool refused = process->refused();
  trace_->Reached(refused ? "an aggregator is refused" : "an aggregator ends when it has left");
  daemon.starts_again |= refused;
  EndHost(ended, false);
  if (!daemon.told_to_stop && EndDaemon(daemon, false) > 0) {
    trace_->Reached("a lane that is refused ends the others");
  }
  for (const Lane* const lane : daemon.lanes) {
    if (lane->process != nullptr) return;
  }
  if (daemon.starts_again) return StartLater(daemon);
  if (daemon.lanes.size() > 1) trace_->Reached("a daemon ends when all its lanes have left");
}

void AggregatorDaemons::CrashSome() {
  if (lanes_.empty()) return;
  const auto crash = [this](Lane& lane) {
    return [this, &lane, process = lane.process.get()] {
      if (lane.process.get() == process) Crash(lane);
    };
  };
  if (profile_->aggregators_die_together && timeline_->random().OneIn(2)) {
    const Daemon* const spared = Some().daemon;
    for (const auto& lane : lanes_) {
      if (lane->process == nullptr || lane->daemon == spared) continue;
      lane->process->AtDanger(crash(*lane));
    }
    return;
  }
  Lane& lane = Some();
  if (lane.process == nullptr || timeline_->random().OneIn(3)) return Crash(lane);
  lane.process->AtDanger(crash(lane));
  // Crashes a second one as well, when it decides.
  Lane& other = Some();
  if (other.process == nullptr || &other == &lane) return;
  other.process->AtDecision(crash(other));
}

void AggregatorDaemons::DrainSome() {
  if (lanes_.empty()) return;
  const Lane& some = Some();
  if (some.process == nullptr || network_->host(some.host).stopped()) return;
  some.daemon->told_to_stop = true;
  for (const Lane* const lane : some.daemon->lanes) {
    if (lane->process != nullptr) lane->process->Drain();
  }
}

std::vector<HostIndex> AggregatorDaemons::HostsTogether(HostIndex host) const {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [host](const auto& lane) { return lane->host == host; });
  if (found == lanes_.end()) return {host};
  std::vector<HostIndex> hosts;
  for (const Lane* const lane : (*found)->daemon->lanes) hosts.push_back(lane->host);
  return hosts;
}

bool AggregatorDaemons::Settled() const {
  return std::none_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane->process != nullptr && lane->process->draining();
  });
}

std::string AggregatorDaemons::Unsettled() const {
  std::string text;
  for (const auto& lane : lanes_) {
    if (lane->process == nullptr || !lane->process->draining()) continue;
    text += "\n  " + lane->process->name() + " was told to stop";
  }
  return text;
}

void AggregatorDaemons::CheckMemory() const {
  for (const auto& lane : lanes_) {
    if (lane->process != nullptr) lane->process->CheckMemory();
  }
}

void AggregatorDaemons::ForEach(
    const std::function<void(const AggregatorProcess& process)>& visit) const {
  for (const auto& process : past_) visit(*process);
  for (const auto& lane : lanes_) {
    if (lane->process != nullptr) visit(*lane->process);
  }
}

}  // namespace talweg::sim
