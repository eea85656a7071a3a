// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scheduler_process.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "libs/membership/perform.h"

namespace talweg::sim {
namespace {

constexpr int64_t kCallDeadlineNs = 2 * kSecond;
constexpr size_t kBackupsMax = 8;
constexpr int64_t kForGoodNs = 1'000'000 * kSecond;
// The most times that the scheduler comes back for less than a lease.
constexpr uint64_t kRelapsesMax = 16;

// The scheduler gets no events of the network: only calls and streams reach it.
class NoData : public Process {
 public:
  void OnFrameBytes(ConnectionId, std::span<const std::byte>) override {}
  void OnLinkOpen(ConnectionId) override {}
  void OnLinkLost(ConnectionId, const std::string&) override {}
  void OnWriteLanded(ConnectionId, uint64_t) override {}
  CellTarget Target(ConnectionId, wire::RemoteRef, uint64_t) override { return {}; }
};
NoData no_data;

template <typename Record, typename Id>
void Replace(std::vector<Record>& records, const Record& record, Id id_of) {
  const auto found = std::find_if(records.begin(), records.end(), [&](const Record& other) {
    return id_of(other) == id_of(record);
  });
  if (found == records.end()) {
    records.push_back(record);
  } else {
    *found = record;
  }
}

}  // namespace

SchedulerProcess::SchedulerProcess(Timeline* timeline, Trace* trace, Network* network, Host* host,
                                   const Profile* profile, std::map<JobId, Ledger>* ledgers)
    : timeline_(timeline),
      trace_(trace),
      network_(network),
      host_(host),
      profile_(profile),
      ledgers_(ledgers) {}

void SchedulerProcess::Start() {
  host_->Start(&no_data);
  down_since_ns_.reset();
  started_ns_ = timeline_->now_ns();
  const uint64_t life = ++life_;
  std::vector<membership::Effect> effects;
  last_run_ns_ = steady_since_ns_ = timeline_->now_ns();
  core_ = std::make_unique<membership::SchedulerCore>(
      // The scheduler's clock goes on while it is down, however short that is.
      membership::Config{.history_ns = profile_->history_ns,
                         .start_unix_ns = kStartUnixNs + timeline_->now_ns() +
                                          static_cast<int64_t>(restarts_) * 2 * kMillisecond},
      store_, timeline_->now_ns(), effects);
  if (profile_->place_bytes_max > 0) {
    const std::string limit = " memory_bytes_max=" + std::to_string(profile_->place_bytes_max);
    const auto rules = membership::Quotas::Parse(
        profile_->rule_is_of_tenant ? "job * tenant=t\ntenant t" + limit : "job *" + limit);
    core_->OnQuotas(std::get<membership::Quotas>(rules), timeline_->now_ns(), effects);
  }
  Perform(effects);
  Tick(life);
  if (relapses_left_ == 0) return;
  --relapses_left_;
  timeline_->After(NextSeconds(8), [this, life] {
    if (life == life_) Restart(NextSeconds(8));
  });
}

// Returns from 1 to `most` seconds.
int64_t SchedulerProcess::NextSeconds(uint64_t most) {
  return static_cast<int64_t>(1 + timeline_->random().Below(most)) * kSecond;
}

void SchedulerProcess::Tick(uint64_t life) {
  if (life != life_ || core_ == nullptr) return;
  host_->Deliver(host_->life(), [this] {
    Run([](membership::SchedulerCore& core, int64_t now_ns, std::vector<membership::Effect>& out) {
      core.OnTick(now_ns, out);
    });
  });
  if (life != life_) return;  // The scheduler died in this tick.
  timeline_->After(core_->config().TickNs(), [this, life] { Tick(life); });
}

void SchedulerProcess::Restart(int64_t down_ns) {
  if (core_ == nullptr) return;
  trace_->Add(timeline_->now_ns(), "scheduler", "ends");
  core_.reset();
  down_since_ns_ = timeline_->now_ns();
  // When a scheduler starts, all get fresh leases, and may renew them until the first one ends. So
  // it has declared the dead lost only after two leases, as agents count, too.
  if (*down_since_ns_ >= started_ns_ + 2 * membership::Config{}.lease_ns) {
    undecided_since_ns_ = *down_since_ns_;
  }
  ++life_;
  ++restarts_;
  host_->End();
  for (auto& [id, stream] : streams_) EndStream(id, std::nullopt);
  if (timeline_->random().OneIn(profile_->older_store_one_in)) MaybeRestoreBackup();
  backups_.clear();
  timeline_->After(down_ns, [this] { Start(); });
}

void SchedulerProcess::Lose() {
  if (core_ == nullptr) return;
  for (auto& [id, stream] : streams_) stream.cut |= timeline_->random().OneIn(2);
  if (timeline_->random().OneIn(4)) {
    relapses_left_ = 1 + timeline_->random().Below(kRelapsesMax);
    return Restart(NextSeconds(8));
  }
  const int64_t down_ns = NextSeconds(100);
  Restart(timeline_->random().OneIn(2) ? kForGoodNs : down_ns);
}

void SchedulerProcess::Run(const Request& request) {
  std::vector<membership::Effect> effects;
  if (timeline_->now_ns() - last_run_ns_ > core_->config().lease_ns / 2) {
    steady_since_ns_ = timeline_->now_ns();
    trace_->Reached("scheduler: a gap: leases start afresh");
  }
  last_run_ns_ = timeline_->now_ns();
  request(*core_, timeline_->now_ns(), effects);
  CheckBeginnings();
  Perform(effects);
}

void SchedulerProcess::OnViewTold(const view::View& view) {
  CheckStored(view);
  Ledger& ledger = (*ledgers_)[view.job];
  const auto& views = ledger.views();
  if (!views.empty() && views.rbegin()->first < view.epoch) view_check_(view);
  // This view may have been stored but told to nobody when an older store was put back. It may be
  // told now: whoever has heard of newer views ignores it.
  ledger.OnView(view, trace_->HasReached(kOlderStore));
}

// Rule 15: a view is stored before it is sent.
void SchedulerProcess::CheckStored(const view::View& view) const {
  for (const membership::JobRecord& job : store_.jobs) {
    if (job.id != view.job || !job.view || job.view->epoch < view.epoch) continue;
    return;
  }
  throw Violation{"scheduler: epoch " + std::to_string(view.epoch.value()) +
                  " is sent before it is stored"};
}

// Rule 15: after a gap no member is declared lost before its lease has run once more, except for
// its last tick.
void SchedulerProcess::CheckNote(const std::string& text) const {
  const membership::Config& config = core_->config();
  if (timeline_->now_ns() >= steady_since_ns_ + config.lease_ns - config.TickNs()) return;
  // The lapse must be the note's own. A member that leaves a failed job may quote an earlier lapse.
  const size_t who_ends = text.find(") ");
  if (who_ends != std::string::npos && who_ends == text.find(") was silent for ")) {
    throw Violation{"scheduler: after a gap: " + text};
  }
}

// A job begins with fewer members than it should only after it has waited for the others.
void SchedulerProcess::CheckBeginnings() {
  const int64_t now_ns = timeline_->now_ns();
  for (const auto& [id, job] : core_->jobs()) {
    if (job.state == membership::JobState::kForming) {
      const auto ready =
          std::count_if(job.members.begin(), job.members.end(),
                        [](const auto& entry) { return entry.second.stream.has_value(); });
      if (ready >= job.spec.min_members) {
        gathers_since_ns_.emplace(id, now_ns);
      } else {
        gathers_since_ns_.erase(id);
      }
    }
    if (job.state != membership::JobState::kRunning || !begun_.insert(id).second) continue;
    const int64_t gather_ns = job.spec.gather_ns;
    if (job.view->members.size() >= job.spec.BeginMembers()) {
      if (gather_ns > 0)
        trace_->Reached("a job begins at once, as all the members that it waits for have come");
      continue;
    }
    if (gather_ns == 0 || job.join_deadline_ns <= now_ns) continue;
    const auto since_ns = gathers_since_ns_.find(id);
    if (since_ns == gathers_since_ns_.end() || now_ns < since_ns->second + gather_ns) {
      throw Violation{"scheduler: job '" + job.name + "' begins with " +
                      std::to_string(job.view->members.size()) + " of " +
                      std::to_string(job.spec.BeginMembers()) + ", but has not waited for more"};
    }
    trace_->Reached("a job begins with fewer members, as its waiting time is over");
  }
}

void SchedulerProcess::NoteText(const std::string& text) {
  const auto says = [&text](const char* words) { return text.find(words) != std::string::npos; };
  if (says("the store is older than its members")) {
    trace_->Reached("an epoch above the stored one is reported");
  }
  if (says("may have missed the view of epoch")) {
    trace_->Reached("a member may have missed a view that the store does not know");
  }
  if (says("that the scheduler's store does not know, which is older")) {
    trace_->Reached("a member is in a view that the store does not know");
  }
  if (says("could enter")) trace_->Reached("all of a view have left, others are pending");
  if (says("its lease has lapsed")) trace_->Reached("a lease lapses");
}

void SchedulerProcess::Store(const membership::StoreWrite& write) {
  backups_.push_back(store_);
  if (backups_.size() > kBackupsMax) backups_.erase(backups_.begin());
  if (write.start_count) store_.start_count = *write.start_count;
  if (write.job_next) store_.job_next = *write.job_next;
  for (const membership::JobRecord& job : write.jobs) {
    Replace(store_.jobs, job, [](const membership::JobRecord& record) { return record.id; });
  }
  for (const JobId id : write.jobs_removed) {
    std::erase_if(store_.jobs, [id](const membership::JobRecord& job) { return job.id == id; });
  }
  const auto incarnation_of = [](const membership::AggregatorRecord& record) {
    return record.aggregator.incarnation;
  };
  for (const membership::AggregatorRecord& aggregator : write.aggregators) {
    Replace(store_.aggregators, aggregator, incarnation_of);
  }
  for (const Incarnation id : write.aggregators_removed) {
    std::erase_if(store_.aggregators,
                  [&](const auto& record) { return incarnation_of(record) == id; });
  }
}

// Puts an older copy of the store in its place. Where agents wait for ever, that copy brings back
// no job that is over: its aggregators are done with it.
void SchedulerProcess::MaybeRestoreBackup() {
  const auto over = [](const membership::JobRecord& job) {
    return job.state == membership::JobState::kFailed ||
           job.state == membership::JobState::kFinished;
  };
  const auto revives = [&](const membership::Snapshot& backup) {
    return std::any_of(backup.jobs.begin(), backup.jobs.end(), [&](const auto& job) {
      const auto now = std::find_if(store_.jobs.begin(), store_.jobs.end(),
                                    [&](const auto& other) { return other.id == job.id; });
      return !over(job) && (now == store_.jobs.end() || over(*now));
    });
  };
  if (!profile_->older_stores_revive) std::erase_if(backups_, revives);
  if (backups_.empty()) return;
  const membership::Snapshot& backup = backups_[timeline_->random().Below(backups_.size())];
  trace_->Add(timeline_->now_ns(), "scheduler", "an older store is put in its place");
  trace_->Reached(kOlderStore);
  if (revives(backup)) trace_->Reached("an older store brings back a job that is over");
  store_ = backup;
}

bool SchedulerProcess::MayDie(Fault fault) const {
  return profile_->fault_weights[static_cast<int>(fault)] > 0 &&
         timeline_->now_ns() < kSecond + profile_->fault_end_ns;
}

// The scheduler may be killed when it has told a view to some and not yet to others.
bool SchedulerProcess::DiesBehind(const membership::Effect& told) {
  const auto* member = std::get_if<membership::TellMember>(&told);
  const auto* view =
      member == nullptr ? nullptr : std::get_if<membership::SharedView>(&member->message);
  if (view == nullptr || !MayDie(Fault::kLoseScheduler)) return false;
  // It dies more often when the view is not the job's first one.
  if (!timeline_->random().OneIn((*view)->epoch == Epoch{1} ? 32 : 4)) return false;
  trace_->Reached(
      "scheduler: killed after it sent a view to some members and before it sent it to all");
  Lose();
  return true;
}

// The scheduler may be killed when it has stored what nobody has been told yet. Or it stops because
// its store fails.
bool SchedulerProcess::DiesAt(const membership::StoreWrite& write) {
  if (!MayDie(Fault::kRestartScheduler) || write.jobs.empty() || !timeline_->random().OneIn(16))
    return false;
  if (timeline_->random().OneIn(4)) {
    trace_->Reached("scheduler: its store fails, and it stops");
  } else {
    Store(write);
    trace_->Reached("scheduler: killed after it stored a change and before it sent it");
  }
  Restart(network_->Delay() * 10);
  return true;
}

// Performs effects as the daemon does. After the scheduler was killed, nothing is performed.
void SchedulerProcess::Perform(std::vector<membership::Effect>& effects) {
  class Performer final : public membership::EffectSink {
   public:
    explicit Performer(SchedulerProcess* scheduler) : scheduler_(scheduler) {}

    bool Store(const membership::StoreWrite& write) override {
      if (scheduler_->DiesAt(write)) return false;
      scheduler_->Store(write);
      return true;
    }
    void Tell(const membership::TellMember& told) override {
      is_killed_ = is_killed_ || scheduler_->DiesBehind(told);
      if (is_killed_) return;
      const auto* const view = std::get_if<membership::SharedView>(&told.message);
      if (view != nullptr) scheduler_->OnViewTold(**view);
      scheduler_->Tell(told.stream, told.message);
    }
    void Tell(const membership::TellAggregator& told) override {
      if (is_killed_) return;
      const auto* const view = std::get_if<membership::JobView>(&told.message);
      if (view != nullptr) scheduler_->OnViewTold(*view->view);
      scheduler_->Tell(told.stream, told.message);
    }
    void Close(const membership::CloseStream& closed) override {
      if (!is_killed_) scheduler_->EndStream(closed.stream, closed.why);
    }
    void Say(const membership::Note& note) override {
      if (is_killed_) return;
      scheduler_->trace_->Add(scheduler_->timeline_->now_ns(), "scheduler", note.text);
      scheduler_->NoteText(note.text);
      if (scheduler_->core_ != nullptr) scheduler_->CheckNote(note.text);
    }

   private:
    SchedulerProcess* const scheduler_;
    bool is_killed_ = false;
  };
  Performer performer(this);
  membership::Perform(effects, performer);
}

void SchedulerProcess::CallTimes(int copies, HostIndex from, Request request,
                                 std::function<void(bool)> done) {
  const uint64_t life = network_->host(from).life();
  auto finished = std::make_shared<bool>(false);
  // All copies of a call write their answer into one place. A copy that killed the scheduler was
  // never answered, but may have overwritten another copy's answer that is still on its way.
  auto overwritten = std::make_shared<bool>(false);
  const auto answer = [this, from, life, finished, overwritten, done](bool answered) {
    network_->host(from).Deliver(life, [finished, overwritten, done, answered] {
      if (std::exchange(*finished, true)) return;
      done(answered && !*overwritten);
    });
  };
  timeline_->After(kCallDeadlineNs, [answer] { answer(false); });
  for (int i = 0; i < copies; ++i) {
    timeline_->After(network_->Delay(), [this, from, request, overwritten, answer] {
      if (!network_->Reachable(from, host_->index())) return;
      host_->Deliver(host_->life(), [this, from, request, overwritten, answer] {
        if (core_ == nullptr) return;
        const uint64_t scheduler_life = life_;
        Run(request);
        if (life_ != scheduler_life) {  // The scheduler died in this call.
          *overwritten = true;
          return;
        }
        if (Lost() || !network_->Reachable(from, host_->index())) return;
        timeline_->After(network_->Delay(), [answer] { answer(true); });
      });
    });
  }
}

membership::StreamId SchedulerProcess::NewStream(HostIndex from, StreamHandler handler) {
  const membership::StreamId id{next_stream_++};
  streams_[id] = {.host = from, .life = network_->host(from).life(), .handler = std::move(handler)};
  return id;
}

void SchedulerProcess::DropStream(membership::StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.open) return;
  found->second.open = false;
  BreakLater(id);
}

void SchedulerProcess::NoteAttached(membership::StreamId id) {
  const Stream& stream = streams_.at(id);
  if (!stream.open || stream.broken) BreakLater(id);
}

void SchedulerProcess::BreakLater(membership::StreamId id) {
  streams_.at(id).broken = true;
  timeline_->After(network_->Delay(), [this, id] {
    host_->Deliver(host_->life(), [this, id] {
      if (core_ == nullptr) return;
      Run([id](membership::SchedulerCore& core, int64_t now_ns,
               std::vector<membership::Effect>& out) { core.OnStreamBroken(id, now_ns, out); });
    });
  });
}

void SchedulerProcess::Tell(membership::StreamId id, Message message) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.open) return;
  Stream& stream = found->second;
  stream.last_arrival_ns =
      std::max(stream.last_arrival_ns + 1, timeline_->now_ns() + network_->Delay());
  timeline_->At(stream.last_arrival_ns, [this, id, message = std::move(message)] {
    Stream& open = streams_[id];
    if (!open.open || open.cut) return;
    network_->host(open.host).Deliver(open.life, [this, id, message] {
      Stream& still = streams_[id];
      if (still.open && !still.cut) still.handler.on_message(message);
    });
  });
}

void SchedulerProcess::EndStream(membership::StreamId id,
                                 std::optional<membership::Answer> answer) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second.open) return;
  Stream& stream = found->second;
  const int64_t at_ns =
      std::max(stream.last_arrival_ns + 1, timeline_->now_ns() + network_->Delay());
  timeline_->At(at_ns, [this, id, answer] {
    Stream& open = streams_[id];
    network_->host(open.host).Deliver(open.life, [this, id, answer] {
      Stream& still = streams_[id];
      if (!std::exchange(still.open, false)) return;
      still.handler.on_end(answer);
    });
  });
}

void SchedulerProcess::OnHostEnded(HostIndex host, bool silently) {
  for (auto& [id, stream] : streams_) {
    if (stream.host != host || !stream.open) continue;
    stream.open = false;
    // If it is silent, a cable was cut and no process ended: only the lease reveals that.
    if (!silently) BreakLater(id);
  }
}

bool SchedulerProcess::BreakSomeStream() {
  std::vector<membership::StreamId> open;
  for (const auto& [id, stream] : streams_) {
    if (stream.open) open.push_back(id);
  }
  if (open.empty()) return false;
  const membership::StreamId id = open[timeline_->random().Below(open.size())];
  EndStream(id, std::nullopt);
  BreakLater(id);
  return true;
}

}  // namespace talweg::sim
