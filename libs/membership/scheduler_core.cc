// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/scheduler_core.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <variant>

#include "libs/base/counted.h"
#include "libs/membership/quiesce.h"
#include "libs/membership/texts.h"

namespace talweg::membership {
namespace {

constexpr size_t kComplaintsMax = 32;  // In each job.

}  // namespace

SchedulerCore::SchedulerCore(const Config& config, const Snapshot& snapshot, int64_t now_ns,
                             std::vector<Effect>& out)
    : config_(config),
      leases_(config, now_ns),
      numbers_(config, snapshot, now_ns),
      jobs_(config, snapshot, numbers_.epoch_start(), now_ns),
      pool_(config, snapshot, now_ns, &leases_, &streams_),
      admission_(&jobs_),
      life_(JobLife::Parts{
          .pool = &pool_, .admission = &admission_, .streams = &streams_, .numbers = &numbers_}) {
  Perform(now_ns, out, [&](Turn& turn) {
    turn.write.start_count = numbers_.start_count();
    for (const auto& [id, job] : jobs_.all()) turn.Touch(job);
    return 0;
  });
}

void SchedulerCore::Finish(Turn& turn, std::vector<Effect>& out) {
  for (const Incarnation lost : turn.lost_aggregators) {
    for (const auto& [id, job] : jobs_.all()) {
      if (job.state == JobState::kRunning && job.view->IndexOfAggregator(lost)) turn.Touch(job);
    }
  }
  for (const JobId id : turn.touched) {
    LiveJob* const job = jobs_.Find(id);
    if (job != nullptr) life_.Advance(*job, turn);
  }
  // Drops views that this same turn has already replaced by newer ones.
  std::erase_if(turn.effects, [this](const Effect& effect) {
    const view::View* view = nullptr;
    if (const auto* tell = std::get_if<TellMember>(&effect)) {
      const auto* shared = std::get_if<SharedView>(&tell->message);
      if (shared != nullptr) view = &**shared;
    } else if (const auto* tell = std::get_if<TellAggregator>(&effect)) {
      const auto* job_view = std::get_if<JobView>(&tell->message);
      if (job_view != nullptr) view = &*job_view->view;
    }
    return view != nullptr && view->epoch < jobs_.all().at(view->job).view->epoch;
  });
  for (const JobId id : turn.dirty) {
    const LiveJob* const job = jobs_.Find(id);
    if (job != nullptr) turn.write.jobs.push_back(job->Record());
  }
  for (const Incarnation id : turn.dirty_aggregators) {
    const LiveAggregator* const aggregator = pool_.Find(id);
    if (aggregator != nullptr) turn.write.aggregators.push_back(aggregator->record);
  }
  if (!turn.write.empty()) out.push_back(Persist{std::move(turn.write)});
  std::move(turn.effects.begin(), turn.effects.end(), std::back_inserter(out));
}

void SchedulerCore::ObserveGap(int64_t now_ns) {
  const int64_t gap_ns = leases_.ObserveGap(now_ns);
  if (gap_ns == 0) return;
  // The renewals of all members may wait in line after this event.
  for (auto& [id, job] : jobs_.all()) {
    job.join_deadline_ns += gap_ns;
    if (job.gather_end_ns) *job.gather_end_ns += gap_ns;
    for (auto& [node, member] : job.members) member.lease_end_ns = leases_.EndNs(now_ns);
  }
  pool_.RenewAll(now_ns);
}

void SchedulerCore::OnTick(int64_t now_ns, std::vector<Effect>& out) {
  Perform(now_ns, out, [&](Turn& turn) {
    ExpireLeases(turn);
    jobs_.Collect(turn);
    pool_.Collect(turn);
    admission_.ForgetWaiting(turn.now_ns);
    return 0;
  });
}

void SchedulerCore::ExpireLeases(Turn& turn) {
  for (auto& [id, job] : jobs_.all()) {
    std::vector<NodeRank> silent;
    for (const auto& [node, member] : job.members) {
      if (leases_.HasLapsed(member.lease_end_ns, turn.now_ns)) silent.push_back(node);
    }
    for (const NodeRank node : silent) {
      const std::string text = leases_.LapseText(job.members.at(node).shut_out);
      life_.Remove(job, node, MemberState::kLost, text, turn);
    }
    const bool is_due = job.join_deadline_ns <= turn.now_ns ||
                        (job.gather_end_ns && *job.gather_end_ns <= turn.now_ns);
    if (job.state == JobState::kForming && is_due) turn.Touch(job);
  }
  pool_.ExpireLeases(turn);
}

void SchedulerCore::OnQuotas(Quotas quotas, int64_t now_ns, std::vector<Effect>& out) {
  Perform(now_ns, out, [&](Turn& turn) {
    const Quotas before = admission_.SetQuotas(std::move(quotas));
    for (const auto& [id, job] : jobs_.all()) {
      if (job.Over()) continue;
      turn.Touch(job);
      const view::JobQuota share = QuotaOf(job).share;
      if (job.state != JobState::kRunning || share == before.For(job.name, job.spec.tenant).share) {
        continue;
      }
      pool_.Tell(JobQuotaChanged{id, share}, turn);
    }
    return 0;
  });
}

std::string SchedulerCore::StateText(const LiveJob& job) const {
  return membership::StateText(job, admission_.MembersToBegin(job), leases_.last_ns());
}

// Members -----------------------------------------------------------------------------------------

JoinAnswer SchedulerCore::OnJoin(const JoinRequest& request, int64_t now_ns,
                                 std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) { return Join(request, turn); });
}

JoinAnswer SchedulerCore::Join(const JoinRequest& request, Turn& turn) {
  const std::string problem = ProblemOf(request);
  if (!problem.empty()) return {Refuse(Code::kInvalid, problem), JobId{0}};
  if (const std::optional<JoinAnswer> before = jobs_.JoinedBefore(request)) {
    if (before->answer.ok()) {
      jobs_.Find(before->job)->members.at(request.member.id.node).lease_end_ns =
          leases_.EndNs(turn.now_ns);
    }
    return *before;
  }
  if (const Answer tenant = admission_.CheckTenant(request); !tenant.ok()) {
    return {tenant, JobId{0}};
  }
  LiveJob* job = jobs_.FindOpen(request.job_name);
  if (job == nullptr) {
    if (request.not_after_finish && jobs_.HasFinished(request.job_name)) {
      return {Refuse(Code::kRefused, "job '" + request.job_name + "' has finished before node " +
                                         std::to_string(request.member.id.node.value()) +
                                         " could enter"),
              JobId{0}};
    }
    if (jobs_.OpenCount() >= config_.jobs_max) {
      return {Refuse(Code::kFull, "job '" + request.job_name + "' would be one more than the " +
                                      Counted(config_.jobs_max, "job") +
                                      " that this scheduler takes at once"),
              JobId{0}};
    }
    if (const Answer admitted = admission_.AdmitJob(request, turn); !admitted.ok()) {
      return {admitted, JobId{0}};
    }
    job = &jobs_.Add(numbers_.NextJob(turn), request, turn.now_ns);
  } else if (const Answer room = MakeRoom(*job, request, turn); !room.ok()) {
    return {room, job->id, job->state};
  }
  admission_.EndWait(request);
  job->members[request.member.id.node] = {
      .record = {.member = request.member, .secret = request.secret},
      .lease_end_ns = leases_.EndNs(turn.now_ns)};
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
    const std::string held = name + ": node rank " + std::to_string(node.value()) +
                             " is held by the " + AgentText(holder->second.record.member) + ", ";
    if (holder->second.stream) {
      return Refuse(Code::kHeld,
                    held + "which is alive; give this node another rank or stop that agent");
    }
    if (holder->second.attached_before) return Refuse(Code::kNotYet, held + kSilentHolder);
    // The older process has only asked to join; it may have died before it opened its stream.
    life_.Remove(job, node, MemberState::kLost,
                 "was replaced by incarnation " + view::HexText(request.member.id.incarnation) +
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
    return Refuse(Code::kFull, name + " has all its " + Counted(job.spec.max_members, "member") +
                                   " (" + NodesText({places.begin(), places.end()}) +
                                   "); raise max_members or give the job another name");
  }
  return admission_.AdmitMember(job, request, places.size() + (places.contains(node) ? 0 : 1),
                                turn);
}

// Finds the caller's member, renews its lease and notes the epoch that it holds. A caller that is
// not believed changes nothing. Sets `job` also for a member that is gone.
Answer SchedulerCore::Find(const Caller& caller, Turn& turn, LiveJob*& job, LiveMember*& member) {
  const auto& [job_id, id, held, secret] = caller;
  LiveJob* const found = jobs_.Find(job_id);
  if (found == nullptr) {
    return Refuse(Code::kUnknown, "this scheduler knows no job " + std::to_string(job_id.value()) +
                                      ": it has ended, or the scheduler has lost its store; start "
                                      "the job again");
  }
  const auto alive = found->members.find(id.node);
  if (alive != found->members.end() && alive->second.record.member.id == id) {
    if (!SameSecret(alive->second.record.secret, secret)) return Unproven(id);
    const bool in_view = found->view && found->view->IndexOf(id).has_value();
    const Answer epoch =
        numbers_.CheckEpoch(*found, alive->second.from_store, in_view, held, turn.now_ns);
    if (!epoch.ok()) return epoch;
    job = found;
    member = &alive->second;
    member->lease_end_ns = leases_.EndNs(turn.now_ns);
    member->epoch_held = std::max(member->epoch_held, held);
    if (!std::exchange(member->heard_of, true) && job->recovers) turn.Touch(*job);
    JobLife::ObserveEpoch(*job, held, turn);
    if (!life_.LoseIfInUnknownView(*job, *member, held, turn)) return {};
    return Refuse(Code::kRefused, job->Over() ? job->text : job->gone.back().text);
  }
  if (const MemberRecord* gone = found->FindGone(id)) {
    if (!SameSecret(gone->secret, secret)) return Unproven(id);
    job = found;
    return Refuse(Code::kRefused, gone->text);
  }
  return Refuse(Code::kRefused, "job '" + found->name + "' has no member of node " +
                                    std::to_string(id.node.value()) + " and incarnation " +
                                    view::HexText(id.incarnation) + "; it must join as a new one");
}

Answer SchedulerCore::OnRenew(const Caller& caller, const RanksWord& ranks, int64_t now_ns,
                              std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveJob* job = nullptr;
    LiveMember* member = nullptr;
    const Answer answer = Find(caller, turn, job, member);
    if (!answer.ok()) return answer;
    if (ranks.attached && member->ranks.attached != ranks.attached) {
      member->ranks.attached = ranks.attached;
      turn.Touch(*job);
    }
    if (ranks.ready && member->ranks.ready != ranks.ready) {
      member->ranks.ready = ranks.ready;
      turn.Touch(*job);
    }
    if (ranks.have_state) member->ranks.have_state = ranks.have_state;
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
      // The member has said so before.
      for (const MemberRecord& gone : job->gone) {
        if (gone.member.id == id && gone.state == MemberState::kLeft) return Answer{};
      }
      return answer;
    }
    // A job that is over can lose no member.
    if (reason == LeaveReason::kFinished || job->Over()) {
      const std::string why = "has left" + (text.empty() ? "" : ": " + text);
      const bool in_view = job->state == JobState::kRunning && job->view->IndexOf(id).has_value();
      life_.Remove(*job, id.node, MemberState::kLeft, why, turn);
      if (in_view) JobLife::TellMembers(*job, MemberLeft{id, job->gone.back().text}, turn);
    } else {
      life_.Remove(*job, id.node, MemberState::kLost,
                   "was stopped" + (text.empty() ? "" : ": " + text), turn);
    }
    return Answer{};
  });
}

Answer SchedulerCore::OnLowerBeginMembers(const std::string& job_name, uint32_t begin_members,
                                          bool& has_begun, int64_t now_ns,
                                          std::vector<Effect>& out) {
  std::optional<JobId> found;
  const Answer answer = Perform(now_ns, out, [&](Turn& turn) {
    LiveJob* const job = jobs_.FindOpen(job_name);
    if (job == nullptr) {
      return Refuse(Code::kUnknown, "no job '" + job_name + "' forms or runs");
    }
    found = job->id;
    if (job->state != JobState::kForming) return Answer{};
    job->begin_members_most = std::min(begin_members, job->begin_members_most.value_or(UINT32_MAX));
    turn.Touch(*job);
    turn.Log("job '" + job_name + "': no more than " + Counted(*job->begin_members_most, "member") +
             (*job->begin_members_most == 1 ? " comes" : " come") + " to begin it");
    return Answer{};
  });
  const LiveJob* const job = found ? jobs_.Find(*found) : nullptr;
  has_begun = job != nullptr && job->view != nullptr;
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
        // The reporter stays, so that its other ranks are told as all ranks are.
        life_.Fail(*job, AgentText(member->record.member) + " " + why, turn);
      } else {
        life_.Remove(*job, id.node, MemberState::kLost, why, turn);
      }
      return Answer{};
    }
    Complaint complaint{.reporter = id, .text = text, .at_ns = turn.now_ns};
    if (peer != nullptr) {
      complaint.about = "agent of node " + std::to_string(peer->id.node.value()) +
                        " (incarnation " + view::HexText(peer->id.incarnation) + ")";
    } else {
      const Incarnation incarnation = std::get<LostAggregator>(lost).incarnation;
      const LiveAggregator* const aggregator = pool_.Find(incarnation);
      complaint.about = aggregator == nullptr
                            ? "aggregator of incarnation " + view::HexText(incarnation)
                            : AggregatorText(aggregator->record.aggregator);
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
    if (answer.ok()) OnQuiesceAnswer(*job, caller.id, quiesce, step, turn);
    return answer;
  });
}

Answer SchedulerCore::OnMemberAttached(StreamId stream, const Caller& caller,
                                       const RanksWord& ranks, int64_t now_ns,
                                       std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveJob* job = nullptr;
    LiveMember* member = nullptr;
    const Answer answer = Find(caller, turn, job, member);
    if (!answer.ok()) return answer;
    member->ranks = ranks;
    Attach(stream, *job, *member, turn);
    return answer;
  });
}

void SchedulerCore::Attach(StreamId stream, LiveJob& job, LiveMember& member, Turn& turn) {
  streams_.End(member.stream, Refuse(Code::kReplaced, "the member has opened a newer stream"),
               turn);
  streams_.Open(stream, Streams::MemberOfJob{job.id, member.record.member.id}, member.stream);
  member.shut_out.clear();
  member.attached_before = true;
  const bool in_view = job.state == JobState::kRunning && !job.Pending(member);
  // A standby takes part in no step after which it could stop.
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
    // After the view, which would end the quiesce.
    if (stops) {
      turn.Say(TellMember{stream, Quiesce{quiesce, job.JoiningNodes(), job.quiesce->step}});
    }
  }
  turn.Touch(job);
}

void SchedulerCore::OnStreamBroken(StreamId stream, int64_t now_ns, std::vector<Effect>& out,
                                   const std::string& shut_out) {
  Perform(now_ns, out, [&](Turn& turn) {
    const std::optional<Streams::Owner> owner = streams_.Break(stream);
    if (!owner) return 0;
    const bool counts = shut_out.empty() && leases_.StreamsCount(turn.now_ns);
    if (const auto* aggregator = std::get_if<Incarnation>(&*owner)) {
      pool_.OnStreamBroken(*aggregator, counts, shut_out, turn);
      return 0;
    }
    const auto& [id, member] = std::get<Streams::MemberOfJob>(*owner);
    LiveJob& job = jobs_.all().at(id);
    LiveMember& live = job.members.at(member.node);
    live.stream.reset();
    live.shut_out = shut_out;
    if (counts) {
      life_.Remove(job, member.node, MemberState::kLost, "closed its connection", turn);
    } else {
      turn.Touch(job);  // The member is not ready any more.
    }
    return 0;
  });
}

}  // namespace talweg::membership
