// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/scheduler_core.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/membership/turn.h"

namespace talweg::membership {
namespace {

constexpr size_t kGoneMax = 256;       // Records of members that are gone, a job.
constexpr size_t kComplaintsMax = 32;  // A job.

Answer Refuse(Code code, std::string text) { return {.code = code, .text = std::move(text)}; }

Answer Unproven(const view::MemberIdentity& id) {
  return Refuse(Code::kUnproven, "the caller does not show the secret that the agent of node " +
                                     std::to_string(id.node.value()) +
                                     " has joined with; only that agent may speak for it");
}

}  // namespace

bool LiveJob::Pending(const LiveMember& member) const {
  return state == JobState::kRunning && !view->IndexOf(member.record.member.id);
}

bool LiveJob::MayEnter(const LiveMember& member) const {
  // A job that runs would wait for ranks that are not there yet.
  return member.stream.has_value() && (member.ranks_attached || state == JobState::kForming);
}

bool LiveJob::IsStandby(const LiveMember& member) const {
  if (!view) return false;
  const std::optional<MemberIndex> index = view->IndexOf(member.record.member.id);
  return index && view->members[index->value()].standby;
}

bool LiveJob::MayEnterSteps(const LiveMember& member) const {
  return IsStandby(member) && member.stream && member.ranks_ready.value_or(true);
}

JobRecord RecordOf(const LiveJob& job) {
  JobRecord record{.id = job.id,
                   .name = job.name,
                   .spec = job.spec,
                   .state = job.state,
                   .text = job.text,
                   .epoch_floor = job.epoch_floor,
                   .created_unix_ns = job.created_unix_ns,
                   .view = job.view ? std::optional(*job.view) : std::nullopt};
  for (const auto& [node, member] : job.members) record.members.push_back(member.record);
  record.members.insert(record.members.end(), job.gone.begin(), job.gone.end());
  return record;
}

SchedulerCore::SchedulerCore(const Config& config, const Snapshot& snapshot, int64_t now_ns,
                             std::vector<Effect>& out)
    : config_(config),
      start_count_(snapshot.start_count + 1),
      start_ns_(now_ns),
      job_next_(snapshot.job_next),
      last_ns_(now_ns) {
  const uint64_t numbers_from = NumbersFrom(config.start_unix_ns);
  quiesce_last_ = std::max(numbers_from, start_count_ << 32);
  job_next_ = std::max(job_next_, JobId{numbers_from + 1});
  for (const JobRecord& record : snapshot.jobs) {
    LiveJob job{.id = record.id,
                .name = record.name,
                .spec = record.spec,
                .state = record.state,
                .text = record.text,
                .epoch_floor = record.epoch_floor,
                .epoch_start = Epoch{numbers_from},
                .epoch_stored = record.epoch_floor,
                .created_unix_ns = record.created_unix_ns,
                .view = record.view ? std::make_shared<const view::View>(*record.view) : nullptr,
                .recovers = record.state == JobState::kRunning,
                .join_deadline_ns = now_ns + record.spec.join_timeout_ns};
    for (const MemberRecord& member : record.members) {
      if (member.state != MemberState::kJoined) {
        job.gone.push_back(member);
        continue;
      }
      job.members[member.member.id.node] = {.record = member,
                                            .from_store = true,
                                            .attached_before = true,
                                            .lease_end_ns = now_ns + config_.lease_ns};
    }
    if (job.Over() && job.members.empty()) job.over_at_ns = now_ns;
    job_next_ = std::max(job_next_, record.id.Next());
    jobs_[record.id] = std::move(job);
  }
  job_next_stored_ = job_next_;
  for (const AggregatorRecord& record : snapshot.aggregators) {
    const Incarnation id = record.aggregator.incarnation;
    aggregators_[id] = {
        .record = record, .attached_before = true, .lease_end_ns = now_ns + config_.lease_ns};
    if (record.state == AggregatorState::kLost) aggregators_lost_.push_back(id);
  }
  Perform(now_ns, out, [&](Turn& turn) {
    turn.write.start_count = start_count_;
    for (const auto& [id, job] : jobs_) turn.Touch(job);
    return 0;
  });
}

void SchedulerCore::ObserveGap(int64_t now_ns) {
  const int64_t silence_ns = now_ns - last_ns_;
  last_ns_ = std::max(now_ns, last_ns_);
  if (silence_ns <= config_.lease_ns / 2) return;
  // Everybody's renewals may be waiting behind this event.
  for (auto& [id, job] : jobs_) {
    job.join_deadline_ns += silence_ns;
    if (job.gather_end_ns) *job.gather_end_ns += silence_ns;
    for (auto& [node, member] : job.members) member.lease_end_ns = now_ns + config_.lease_ns;
  }
  for (auto& [id, aggregator] : aggregators_) aggregator.lease_end_ns = now_ns + config_.lease_ns;
  streams_count_from_ns_ = now_ns + config_.lease_ns;
}

void SchedulerCore::OnTick(int64_t now_ns, std::vector<Effect>& out) {
  Perform(now_ns, out, [&](Turn& turn) {
    ExpireLeases(turn);
    Collect(turn);
    CollectAggregators(turn);
    ForgetWaiting(turn.now_ns);
    return 0;
  });
}

void SchedulerCore::ExpireLeases(Turn& turn) {
  // The last tick before its end counts: whoever is silent holds nobody up for longer than a lease.
  const int64_t lapsed_ns = turn.now_ns + config_.TickNs();
  for (auto& [id, job] : jobs_) {
    std::vector<NodeRank> silent;
    for (const auto& [node, member] : job.members) {
      if (member.lease_end_ns <= lapsed_ns) silent.push_back(node);
    }
    for (const NodeRank node : silent) {
      Remove(job, node, MemberState::kLost,
             "was silent for " + SecondsText(config_.lease_ns) + " (its lease has lapsed)", turn);
    }
    const bool is_due = job.join_deadline_ns <= turn.now_ns ||
                        (job.gather_end_ns && *job.gather_end_ns <= turn.now_ns);
    if (job.state == JobState::kForming && is_due) turn.Touch(job);
  }
  for (auto& [id, aggregator] : aggregators_) {
    if (aggregator.record.state != AggregatorState::kLost && aggregator.lease_end_ns <= lapsed_ns) {
      Lose(aggregator,
           "was silent for " + SecondsText(config_.lease_ns) + " (its lease has lapsed)", turn);
    }
  }
}

void SchedulerCore::Collect(Turn& turn) {
  std::vector<std::pair<int64_t, JobId>> over;
  for (const auto& [id, job] : jobs_) {
    if (job.Over() && job.members.empty()) over.emplace_back(job.over_at_ns, id);
  }
  std::sort(over.begin(), over.end());
  size_t kept = over.size();
  for (const auto& [over_at_ns, id] : over) {
    if (kept <= config_.history_jobs_max && turn.now_ns - over_at_ns < config_.history_ns) break;
    jobs_.erase(id);
    turn.write.jobs_removed.push_back(id);
    --kept;
  }
}

// Members -----------------------------------------------------------------------------------------

JoinAnswer SchedulerCore::OnJoin(const JoinRequest& request, int64_t now_ns,
                                 std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) { return Join(request, turn); });
}

std::optional<JoinAnswer> SchedulerCore::JoinedBefore(const JoinRequest& request) const {
  for (const auto& [id, job] : jobs_) {
    if (job.name != request.job_name) continue;
    const auto member = job.members.find(request.member.id.node);
    const bool alive =
        member != job.members.end() && member->second.record.member.id == request.member.id;
    if (alive && !SameSecret(member->second.record.secret, request.secret)) {
      return JoinAnswer{Unproven(request.member.id), JobId{0}, job.state};
    }
    if (alive && !job.Over()) return JoinAnswer{{}, id, job.state};
    if (alive) return JoinAnswer{Refuse(Code::kRefused, job.text), id, job.state};
    for (const MemberRecord& gone : job.gone) {
      if (gone.member.id != request.member.id) continue;
      if (!SameSecret(gone.secret, request.secret)) {
        return JoinAnswer{Unproven(request.member.id), JobId{0}, job.state};
      }
      return JoinAnswer{
          Refuse(Code::kRefused, gone.text + "; it must join with a new incarnation (restart "
                                             "the agent)"),
          id, job.state};
    }
  }
  return std::nullopt;
}

LiveJob* SchedulerCore::OpenJob(const std::string& name) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second.name == name && !entry.second.Over();
  });
  return found == jobs_.end() ? nullptr : &found->second;
}

JoinAnswer SchedulerCore::Join(const JoinRequest& request, Turn& turn) {
  const std::string problem = ProblemOf(request);
  if (!problem.empty()) return {Refuse(Code::kInvalid, problem), JobId{0}};
  if (const std::optional<JoinAnswer> before = JoinedBefore(request)) {
    if (before->answer.ok()) {
      jobs_.at(before->job).members.at(request.member.id.node).lease_end_ns =
          turn.now_ns + config_.lease_ns;
    }
    return *before;
  }
  const Quota quota = quotas_.For(request.job_name, request.spec.tenant);
  if (const Answer tenant = CheckTenant(request, quota); !tenant.ok()) return {tenant, JobId{0}};
  LiveJob* job = OpenJob(request.job_name);
  if (job == nullptr) {
    const auto open_jobs = static_cast<size_t>(std::count_if(
        jobs_.begin(), jobs_.end(), [](const auto& entry) { return !entry.second.Over(); }));
    if (open_jobs >= config_.jobs_max) {
      return {Refuse(Code::kFull, "job '" + request.job_name + "' would be one more than the " +
                                      std::to_string(config_.jobs_max) +
                                      " jobs that this scheduler takes at once"),
              JobId{0}};
    }
    if (const Answer admitted = AdmitJob(request, quota, turn); !admitted.ok()) {
      return {admitted, JobId{0}};
    }
    const JobId id = job_next_;
    job_next_ = job_next_.Next();
    turn.write.job_next = job_next_;
    job = &jobs_[id];
    job->id = id;
    job->name = request.job_name;
    job->spec = request.spec;
    job->created_unix_ns = request.unix_ns;
    job->join_deadline_ns = turn.now_ns + request.spec.join_timeout_ns;
  } else if (const Answer room = MakeRoom(*job, request, turn); !room.ok()) {
    return {room, job->id, job->state};
  }
  EndWait(request);
  job->members[request.member.id.node] = {
      .record = {.member = request.member, .secret = request.secret},
      .lease_end_ns = turn.now_ns + config_.lease_ns};
  turn.Store(*job);
  turn.Touch(*job);
  turn.Log("job '" + job->name + "': " + AgentText(request.member) +
           " joined, ranks: " + std::to_string(request.member.rank_count));
  return {{}, job->id, job->state};
}

Answer SchedulerCore::MakeRoom(LiveJob& job, const JoinRequest& request, Turn& turn) {
  const std::string name = "job '" + job.name + "'";
  const std::string difference = DifferenceOf(job.spec, request.spec);
  if (!difference.empty()) {
    return Refuse(Code::kRefused, name + ": " + difference +
                                      "; all members must ask for the same, or give the job "
                                      "another name");
  }
  const NodeRank node = request.member.id.node;
  const auto holder = job.members.find(node);
  if (holder != job.members.end()) {
    if (holder->second.attached_before) {
      return Refuse(Code::kHeld, name + ": node rank " + std::to_string(node.value()) +
                                     " is held by the " + AgentText(holder->second.record.member) +
                                     ", which is alive; give this node another rank or stop that "
                                     "agent");
    }
    // It has only asked to join; perhaps it died before it opened its stream.
    Remove(job, node, MemberState::kLost,
           "was replaced by incarnation " + HexText(request.member.id.incarnation) +
               " before it opened its stream",
           turn);
  }
  std::set<NodeRank> places;
  for (const auto& [taken, member] : job.members) places.insert(taken);
  if (job.view) {
    for (const view::ViewMember& member : job.view->members) {
      const bool dropped_later = job.spec.loss_policy == LossPolicy::kContinue;
      if (!dropped_later) places.insert(member.id.node);
    }
  }
  if (places.contains(node) && !job.members.contains(node)) {
    return Refuse(Code::kNotYet, name + ": node " + std::to_string(node.value()) +
                                     " has left and the job is about to end; try again when it "
                                     "has, or give the job another name");
  }
  if (places.size() >= job.spec.max_members) {
    return Refuse(Code::kFull, name + " has all its " + std::to_string(job.spec.max_members) +
                                   " members (" + NodesText({places.begin(), places.end()}) +
                                   "); raise max_members or give the job another name");
  }
  return AdmitMember(job, request, places.size() + (places.contains(node) ? 0 : 1), turn);
}

// The caller's word counts from here on; before that nothing has changed. `job` is set with it, and
// for a member that is gone.
Answer SchedulerCore::Find(const Caller& caller, Turn& turn, LiveJob*& job, LiveMember*& member) {
  const auto& [job_id, id, held, secret] = caller;
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) {
    return Refuse(Code::kUnknown, "this scheduler knows no job " + std::to_string(job_id.value()) +
                                      ": it has ended, or the scheduler has lost its store; start "
                                      "the job again");
  }
  const auto alive = found->second.members.find(id.node);
  if (alive != found->second.members.end() && alive->second.record.member.id == id) {
    if (!SameSecret(alive->second.record.secret, secret)) return Unproven(id);
    const bool in_view = found->second.view && found->second.view->IndexOf(id).has_value();
    const Answer epoch =
        CheckEpoch(found->second, alive->second.from_store, in_view, held, turn.now_ns);
    if (!epoch.ok()) return epoch;
    job = &found->second;
    member = &alive->second;
    member->lease_end_ns = turn.now_ns + config_.lease_ns;
    member->epoch_held = std::max(member->epoch_held, held);
    if (!std::exchange(member->heard_of, true) && job->recovers) turn.Touch(*job);
    ObserveEpoch(*job, held, turn);
    if (!HoldsWhatIsNotKnown(*job, *member, held, turn)) return {};
    return Refuse(Code::kRefused, job->Over() ? job->text : job->gone.back().text);
  }
  for (const MemberRecord& gone : found->second.gone) {
    if (gone.member.id != id) continue;
    if (!SameSecret(gone.secret, secret)) return Unproven(id);
    job = &found->second;
    return Refuse(Code::kRefused, gone.text);
  }
  return Refuse(Code::kRefused, "job '" + found->second.name + "' has no member of node " +
                                    std::to_string(id.node.value()) + " and incarnation " +
                                    HexText(id.incarnation) + "; it must join as a new one");
}

Answer SchedulerCore::OnRenew(const Caller& caller, std::optional<bool> ranks_attached,
                              int64_t now_ns, std::vector<Effect>& out,
                              std::optional<bool> ranks_ready) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveJob* job = nullptr;
    LiveMember* member = nullptr;
    const Answer answer = Find(caller, turn, job, member);
    if (!answer.ok()) return answer;
    if (ranks_attached && member->ranks_attached != *ranks_attached) {
      member->ranks_attached = *ranks_attached;
      turn.Touch(*job);
    }
    if (ranks_ready && member->ranks_ready != ranks_ready) {
      member->ranks_ready = ranks_ready;
      turn.Touch(*job);
    }
    return answer;
  });
}

Answer SchedulerCore::OnLeave(const Caller& caller, LeaveReason reason, const std::string& text,
                              int64_t now_ns, std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    const view::MemberIdentity id = caller.id;
    LiveJob* job = nullptr;
    LiveMember* member = nullptr;
    const Answer answer = Find(caller, turn, job, member);
    if (!answer.ok()) {
      if (job == nullptr) return answer;
      // Said before.
      for (const MemberRecord& gone : job->gone) {
        if (gone.member.id == id && gone.state == MemberState::kLeft) return Answer{};
      }
      return answer;
    }
    // A job that is over can lose nobody.
    if (reason == LeaveReason::kFinished || job->Over()) {
      const std::string why = "has left" + (text.empty() ? "" : ": " + text);
      const bool in_view = job->state == JobState::kRunning && job->view->IndexOf(id).has_value();
      Remove(*job, id.node, MemberState::kLeft, why, turn);
      if (in_view) TellMembers(*job, MemberLeft{id, job->gone.back().text}, turn);
    } else {
      Remove(*job, id.node, MemberState::kLost, "was stopped" + (text.empty() ? "" : ": " + text),
             turn);
    }
    return Answer{};
  });
}

Answer SchedulerCore::OnLowerBeginMembers(const std::string& job_name, uint32_t begin_members,
                                          bool& has_begun, int64_t now_ns,
                                          std::vector<Effect>& out) {
  std::optional<JobId> found;
  const Answer answer = Perform(now_ns, out, [&](Turn& turn) {
    LiveJob* const job = OpenJob(job_name);
    if (job == nullptr) {
      return Refuse(Code::kUnknown, "no job '" + job_name + "' forms or runs");
    }
    found = job->id;
    if (job->state != JobState::kForming) return Answer{};
    job->begin_members_most = std::min(begin_members, job->begin_members_most.value_or(UINT32_MAX));
    turn.Touch(*job);
    turn.Log("job '" + job_name + "': no more than " + std::to_string(*job->begin_members_most) +
             " members come to begin it");
    return Answer{};
  });
  const auto job = found ? jobs_.find(*found) : jobs_.end();
  has_begun = job != jobs_.end() && job->second.view != nullptr;
  return answer;
}

Answer SchedulerCore::OnReportLost(const Caller& caller, const Lost& lost, const std::string& text,
                                   int64_t now_ns, std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    const view::MemberIdentity id = caller.id;
    LiveJob* job = nullptr;
    LiveMember* member = nullptr;
    const Answer answer = Find(caller, turn, job, member);
    if (!answer.ok() || job->Over()) return answer;
    const std::string seen = text.empty() ? "" : ": " + text;
    const auto* rank = std::get_if<LostRank>(&lost);
    const auto* peer = std::get_if<LostMember>(&lost);
    if (rank != nullptr || (peer != nullptr && peer->id == id)) {
      const std::string why =
          (rank != nullptr ? "reports that rank " + std::to_string(rank->rank.value()) + " has died"
                           : "gives up") +
          seen;
      if (job->state == JobState::kRunning && job->spec.loss_policy == LossPolicy::kFailJob &&
          !job->Pending(*member)) {
        // The reporter stays, so that its other ranks are told as everybody's are.
        Fail(*job, AgentText(member->record.member) + " " + why, turn);
      } else {
        Remove(*job, id.node, MemberState::kLost, why, turn);
      }
      return Answer{};
    }
    Complaint complaint{.reporter = id, .text = text, .at_ns = turn.now_ns};
    if (peer != nullptr) {
      complaint.about = "agent of node " + std::to_string(peer->id.node.value()) +
                        " (incarnation " + HexText(peer->id.incarnation) + ")";
    } else {
      const Incarnation incarnation = std::get<LostAggregator>(lost).incarnation;
      const auto aggregator = aggregators_.find(incarnation);
      complaint.about = aggregator == aggregators_.end()
                            ? "aggregator of incarnation " + HexText(incarnation)
                            : AggregatorText(aggregator->second.record.aggregator);
    }
    turn.Log("job '" + job->name + "': " + AgentText(member->record.member) + " cannot reach the " +
             complaint.about + seen);
    job->complaints.push_back(std::move(complaint));
    if (job->complaints.size() > kComplaintsMax) job->complaints.erase(job->complaints.begin());
    return Answer{};
  });
}

Answer SchedulerCore::OnQuiesced(const Caller& caller, QuiesceId quiesce, uint64_t step,
                                 int64_t now_ns, std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveJob* job = nullptr;
    LiveMember* member = nullptr;
    const Answer answer = Find(caller, turn, job, member);
    if (answer.ok() && job->quiesce && job->quiesce->id == quiesce &&
        job->quiesce->waits_for.erase(caller.id) > 0) {
      job->quiesce->latest_step = std::max(job->quiesce->latest_step, step);
      // Nothing follows from the others' answers.
      if (job->quiesce->waits_for.empty()) turn.Touch(*job);
    }
    return answer;
  });
}

Answer SchedulerCore::OnMemberAttached(StreamId stream, const Caller& caller, bool ranks_attached,
                                       int64_t now_ns, std::vector<Effect>& out,
                                       std::optional<bool> ranks_ready) {
  TALWEG_CHECK(!streams_.contains(stream));
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveJob* job = nullptr;
    LiveMember* member = nullptr;
    const Answer answer = Find(caller, turn, job, member);
    if (!answer.ok()) return answer;
    member->ranks_attached = ranks_attached;
    member->ranks_ready = ranks_ready;
    Attach(stream, *job, *member, turn);
    return answer;
  });
}

void SchedulerCore::Attach(StreamId stream, LiveJob& job, LiveMember& member, Turn& turn) {
  EndStream(member.stream, Refuse(Code::kReplaced, "the member has opened a newer stream"), turn);
  const view::MemberIdentity id = member.record.member.id;
  member.stream = stream;
  member.attached_before = true;
  streams_[stream] = {.job = job.id, .member = id};
  const bool in_view = job.state == JobState::kRunning && !job.Pending(member);
  // A standby is in no step that it could stop after.
  const bool stops = in_view && job.quiesce && !job.IsStandby(member);
  const QuiesceId quiesce = stops ? job.quiesce->id : QuiesceId{0};
  turn.Say(TellMember{stream, Attached{quiesce}});
  if (job.Over()) turn.Say(TellMember{stream, JobFailed{job.text}});
  if (in_view) {
    turn.Say(TellMember{stream, SharedView{job.view}});
    for (const MemberRecord& gone : job.gone) {
      if (gone.state == MemberState::kLeft && job.view->IndexOf(gone.member.id)) {
        turn.Say(TellMember{stream, MemberLeft{gone.member.id, gone.text}});
      }
    }
    // After the view, which would end it.
    if (stops) {
      turn.Say(TellMember{stream, Quiesce{quiesce, PendingNodes(job), job.quiesce->step}});
    }
  }
  turn.Touch(job);
}

void SchedulerCore::EndStream(std::optional<StreamId>& stream, const Answer& why, Turn& turn) {
  if (!stream) return;
  streams_.erase(*stream);
  turn.Say(CloseStream{*stream, why});
  stream.reset();
}

void SchedulerCore::OnStreamBroken(StreamId stream, int64_t now_ns, std::vector<Effect>& out) {
  Perform(now_ns, out, [&](Turn& turn) {
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return 0;
    const StreamOwner owner = found->second;
    streams_.erase(found);
    const bool counts = turn.now_ns >= streams_count_from_ns_;
    if (owner.job == JobId{0}) {
      LiveAggregator& aggregator = aggregators_.at(owner.aggregator);
      aggregator.stream.reset();
      if (counts) Lose(aggregator, "closed its connection", turn);
      return 0;
    }
    LiveJob& job = jobs_.at(owner.job);
    job.members.at(owner.member.node).stream.reset();
    if (counts) {
      Remove(job, owner.member.node, MemberState::kLost, "closed its connection", turn);
    } else {
      turn.Touch(job);  // One that is not ready any more.
    }
    return 0;
  });
}

void SchedulerCore::Remove(LiveJob& job, NodeRank node, MemberState how, const std::string& text,
                           Turn& turn) {
  const auto found = job.members.find(node);
  TALWEG_CHECK(found != job.members.end());
  LiveMember& member = found->second;
  member.record.state = how;
  member.record.text = AgentText(member.record.member) + " " + text;
  turn.Log("job '" + job.name + "': " + member.record.text);
  EndStream(member.stream,
            how == MemberState::kLeft ? Answer{} : Refuse(Code::kRefused, member.record.text),
            turn);
  job.gone.push_back(std::move(member.record));
  if (job.gone.size() > kGoneMax) job.gone.erase(job.gone.begin());
  job.members.erase(found);
  if (job.Over() && job.members.empty()) job.over_at_ns = turn.now_ns;
  turn.Store(job);
  turn.Touch(job);
}

}  // namespace talweg::membership
