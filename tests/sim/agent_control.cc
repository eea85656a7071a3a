// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "tests/sim/agent_process.h"
#include "tests/sim/joiner_checks.h"

// What rpc::SchedulerClient does for an agent, over simulated calls and streams.
namespace talweg::sim {
namespace {

constexpr int64_t kLeaseNs = membership::Config{}.lease_ns;

using EffectList = std::vector<membership::Effect>;

}  // namespace

void AgentProcess::Out(const std::string& text) {
  if (std::exchange(out_, true)) return;
  Run([this, &text](pipeline::Effects& out) { core_.OnJobFailed(text, timeline_->now_ns(), out); });
}

void AgentProcess::NoteAnswer(bool answered) {
  const int64_t now_ns = timeline_->now_ns();
  if (answered) {
    if (!silent_since_ns_) return;
    silent_since_ns_.reset();
    answers_since_ns_ = now_ns;
    return core_.OnSchedulerAnswers(kLeaseNs, now_ns);
  }
  if (silent_since_ns_) return;
  silent_since_ns_ = now_ns;
  relapsed_ = answers_since_ns_ && now_ns < *answers_since_ns_ + 2 * kLeaseNs;
  if (!relapsed_) undecided_since_ns_ = now_ns;
  core_.OnSchedulerSilent(now_ns);
}

// Section 8: nobody is given up while the scheduler answers, or while it is connected itself. What
// the scheduler says may quote others.
void AgentProcess::CheckGivenUp(const std::string& text) {
  if (out_ || text.find(" gave up job ") != std::string::npos) return;
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (says("has not reached aggregator")) return trace_->Reached("given up: an aggregator");
  const bool is_of_the_dead = says("which has had no connection");
  const bool is_its_word = says("has not begun") || says("is about to join");
  if (is_of_the_dead) {
    trace_->Reached(text.starts_with("epoch ") ? "given up: a member that an epoch needs"
                                               : "given up: a member that a round needs");
    static constexpr std::string_view kNeeds = " needs node ";
    const size_t node = text.find(kNeeds) + kNeeds.size();
    config_.on_given_up(NodeRank{static_cast<uint32_t>(std::stoul(text.substr(node)))});
  } else if (says("that the scheduler has not told this node of")) {
    trace_->Reached("given up: a view that did not reach this agent");
  } else if (is_its_word) {
    trace_->Reached("given up: a word that the scheduler alone has");
  } else {
    return;
  }
  const int64_t now_ns = timeline_->now_ns();
  const int64_t limit_ns = config_.profile->unreachable_ns;
  if (silent_since_ns_ && now_ns - *silent_since_ns_ >= limit_ns) return;
  // Its own word it may give while it answers.
  const bool is_undecided =
      relapsed_ && now_ns - undecided_since_ns_ >= limit_ns &&
      (silent_since_ns_ || (is_of_the_dead && now_ns < *answers_since_ns_ + 2 * kLeaseNs));
  if (is_undecided && (is_of_the_dead || is_its_word)) {
    return trace_->Reached("given up: while the scheduler comes and goes");
  }
  throw Violation{name_ + ": gives up, though the scheduler answers: " + text};
}

int64_t AgentProcess::RetryNs() const {
  return std::min(500 * kMillisecond, 5 * config_.profile->delay_max_ns + kMillisecond);
}

membership::JoinRequest AgentProcess::JoinRequest() const {
  membership::JoinRequest request;
  request.job_name = config_.job_name;
  request.spec.min_members = config_.profile->min_members;
  request.spec.max_members = static_cast<uint32_t>(config_.profile->rank_counts.size());
  request.spec.slice_bytes_max = config_.profile->slice_bytes_max;
  request.spec.loss_policy = config_.profile->loss_policy;
  request.spec.join_timeout_ns = 30 * kSecond;
  request.member = {.id = core_.config().self,
                    .rank_count = config_.rank_count,
                    .name = name_,
                    .host_id = config_.host_id};
  return request;
}

void AgentProcess::Join() {
  if (out_ || left_) return;
  auto answer = std::make_shared<membership::JoinAnswer>();
  const membership::JoinRequest request = JoinRequest();
  scheduler_->Call(
      host_,
      [answer, request, trace = trace_](membership::Membership& core, int64_t now_ns,
                                        EffectList& out) {
        for (const auto& [id, job] : core.jobs()) {
          const auto member = job.members.find(request.member.id.node);
          if (member != job.members.end() && member->second.record.member.id == request.member.id) {
            trace->Reached("a Join is repeated");
          }
        }
        *answer = core.OnJoin(request, now_ns, out);
      },
      [this, answer](bool answered) {
        if (answered) joining_since_ns_.reset();
        if (!answered && !joining_since_ns_) joining_since_ns_ = timeline_->now_ns();
        if (joining_since_ns_ && timeline_->now_ns() > *joining_since_ns_ + 30 * kSecond) {
          return Out("the scheduler does not answer");
        }
        if (answered && answer->answer.ok()) {
          job_ = answer->job;
          ledger_ = &(*ledgers_)[job_];
          Attach();
          Renew();
          return;
        }
        if (answered && answer->answer.code != membership::Code::kHeld &&
            answer->answer.code != membership::Code::kFull &&
            answer->answer.code != membership::Code::kNotYet) {
          return Out(answer->answer.text);
        }
        timeline_->After(RetryNs(), [this, life = network_->host(host_).life()] {
          network_->host(host_).Deliver(life, [this] { Join(); });
        });
      });
}

void AgentProcess::Attach() {
  if (out_ || left_) return;
  const uint64_t attachment = ++attachment_;
  const auto again = [this, attachment] {
    timeline_->After(RetryNs() / 5, [this, attachment, life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this, attachment] {
        if (attachment == attachment_) Attach();
      });
    });
  };
  const membership::StreamId stream = scheduler_->NewStream(
      host_, {.on_message =
                  [this, attachment](const SchedulerProcess::Message& message) {
                    if (attachment != attachment_) return;
                    OnMemberMessage(std::get<membership::MemberMessage>(message));
                  },
              .on_end =
                  [this, attachment, again](const std::optional<membership::Answer>& answer) {
                    if (attachment != attachment_ || left_) return;
                    if (answer && !answer->ok()) return Out(answer->text);
                    NoteAnswer(answer.has_value());
                    again();
                  }});
  auto answer = std::make_shared<membership::Answer>();
  const Epoch held = core_.newest_view() != nullptr ? core_.newest_view()->epoch : Epoch{0};
  scheduler_->CallOnce(
      host_,
      [=, this, id = core_.config().self, job = job_, ranks_attached = ranks_attached_](
          membership::Membership& core, int64_t now_ns, EffectList& out) {
        *answer = core.OnMemberAttached(stream, {job, id, held}, ranks_attached, now_ns, out);
        if (!answer->ok()) return;
        if (attachment > 1) trace_->Reached("a member re-attaches");
        if (core.jobs().at(job).Over()) trace_->Reached("a member attaches to a job that is over");
        scheduler_->NoteAttached(stream);
      },
      [this, answer, stream, again](bool answered) {
        NoteAnswer(answered);
        if (answered && answer->ok()) return;
        scheduler_->DropStream(stream);
        if (answered) return OnRefused(*answer);
        again();
      });
}

void AgentProcess::OnRefused(const membership::Answer& answer) {
  Out(answer.text);
  if (answer.code == membership::Code::kUnknown) trace_->Reached("a word of an unknown job");
  if (answer.code != membership::Code::kRefused) return;
  trace_->Reached("a Join or Renew of a lost incarnation");
  // It does not listen: this incarnation asks again.
  auto again = std::make_shared<membership::JoinAnswer>();
  scheduler_->Call(
      host_,
      [again, job = job_, request = JoinRequest()](membership::Membership& core, int64_t now_ns,
                                                   EffectList& out) {
        if (!core.jobs().contains(job)) {  // Forgotten meanwhile.
          again->answer.code = membership::Code::kRefused;
          return;
        }
        *again = core.OnJoin(request, now_ns, out);
      },
      [this, again](bool answered) {
        if (answered && again->answer.ok() && !trace_->HasReached(kOlderStore)) {
          throw Violation{name_ + ": an incarnation that was lost is let in again"};
        }
      });
}

void AgentProcess::Renew() {
  if (out_ || left_) return;
  SendRenewal();
  timeline_->After(2 * kSecond, [this, life = network_->host(host_).life()] {
    network_->host(host_).Deliver(life, [this] { Renew(); });
  });
}

void AgentProcess::AttachRanks() {
  ranks_attached_ = true;
  if (job_ == JobId{0} || out_ || left_) return;
  trace_->Reached("ranks come after their agent");
  SendRenewal();
}

void AgentProcess::SendRenewal() {
  auto answer = std::make_shared<membership::Answer>();
  const Epoch held = core_.newest_view() != nullptr ? core_.newest_view()->epoch : Epoch{0};
  scheduler_->Call(
      host_,
      [=, id = core_.config().self, job = job_, ranks_attached = ranks_attached_](
          membership::Membership& core, int64_t now_ns, EffectList& out) {
        *answer = core.OnRenew({job, id, held}, ranks_attached, now_ns, out);
      },
      [this, answer](bool answered) {
        NoteAnswer(answered);
        if (answered && !answer->ok()) OnRefused(*answer);
      });
}

void AgentProcess::OnMemberMessage(const membership::MemberMessage& message) {
  const int64_t now_ns = timeline_->now_ns();
  if (const auto* view = std::get_if<View>(&message)) {
    const bool is_newer =
        core_.newest_view() == nullptr || core_.newest_view()->epoch < view->epoch;
    const membership::QuiesceId over = quiesce_.OnView(is_newer);
    if (over != membership::QuiesceId{0}) {
      trace_->Reached("a member that re-attaches holds a quiesce that is over");
      ResumeFromQuiesce(over);
    }
    ledger_->OnView(*view);
    trace_->Add(now_ns, name_, "view of epoch " + std::to_string(view->epoch.value()));
    OnView(*view);
  } else if (const auto* quiesce = std::get_if<membership::Quiesce>(&message)) {
    if (!quiesce_.OnQuiesce(quiesce->id)) return;
    Run([&](pipeline::Effects& out) {
      core_.OnQuiesce(quiesce->id.value(), quiesce->step, now_ns, out);
    });
  } else if (const auto* cancelled = std::get_if<membership::QuiesceCancelled>(&message)) {
    if (quiesce_.OnCancelled(cancelled->id)) ResumeFromQuiesce(cancelled->id);
  } else if (const auto* attached = std::get_if<membership::Attached>(&message)) {
    quiesce_.OnAttached(attached->quiesce);
  } else if (const auto* gone = std::get_if<membership::MemberLeft>(&message)) {
    core_.OnMemberLeft(gone->id, gone->text);
  } else if (const auto* failed = std::get_if<membership::JobFailed>(&message)) {
    trace_->Reached("an agent hears from the scheduler that its job has failed");
    if (failed->text.empty()) throw Violation{name_ + ": the job failed without a reason"};
    Out(failed->text);
  }
}

void AgentProcess::ResumeFromQuiesce(membership::QuiesceId id) {
  Run([&](pipeline::Effects& out) { core_.OnResume(id.value(), timeline_->now_ns(), out); });
}

void AgentProcess::OnView(const View& view) {
  const pipeline::Phase before = core_.phase();
  const View* const held = core_.newest_view();
  const bool newer = held == nullptr || held->epoch < view.epoch;
  if (newer && before == pipeline::Phase::kFencing) {
    trace_->Reached("a newer view while an agent fences");
  }
  if (newer && before == pipeline::Phase::kReporting) {
    trace_->Reached("a newer view while an agent waits for decisions");
  }
  // Rule 8: whoever is told of joiners has kept what it promised for their sake.
  const bool has_joiner = held != nullptr && HasJoiner(*held, view);
  if (newer && has_joiner && view.IndexOf(core_.config().self) && !trace_->HasReached(kForged)) {
    CheckNothingOpen({&core_}, view);
    CheckAtBoundary(view);
  }
  Run([&](pipeline::Effects& out) { core_.OnView(view, timeline_->now_ns(), out); });
  if (core_.phase() != pipeline::Phase::kFailed) {
    if (!told_view_) told_view_ = view;
    return StartRanks();
  }
  if (before != pipeline::Phase::kFailed) trace_->Reached("an agent is out of the next view");
}

void AgentProcess::ConfirmQuiesced(membership::QuiesceId id, uint64_t step) {
  auto answer = std::make_shared<membership::Answer>();
  const Epoch held = core_.newest_view() != nullptr ? core_.newest_view()->epoch : Epoch{0};
  scheduler_->Call(
      host_,
      [=, this, self = core_.config().self, job = job_](membership::Membership& core,
                                                        int64_t now_ns, EffectList& out) {
        const auto known = core.jobs().find(job);
        if (known != core.jobs().end() &&
            (!known->second.quiesce || known->second.quiesce->id != id ||
             !known->second.quiesce->waits_for.contains(self))) {
          trace_->Reached("a quiesce is answered twice, or too late");
        }
        *answer = core.OnQuiesced({job, self, held}, id, step, now_ns, out);
      },
      [this, id, step](bool answered) {
        if (!answered && !out_) ConfirmQuiesced(id, step);
      });
}

void AgentProcess::Report(const pipeline::ReportLost& lost) {
  if (left_) return;
  auto answer = std::make_shared<membership::Answer>();
  const View* view = core_.newest_view();
  const Epoch held = view != nullptr ? view->epoch : Epoch{0};
  scheduler_->Call(
      host_,
      [=, self = core_.config().self, job = job_](membership::Membership& core, int64_t now_ns,
                                                  EffectList& out) {
        if (lost.rank) {
          *answer = core.OnReportLost({job, self, held}, membership::LostRank{*lost.rank},
                                      lost.text, now_ns, out);
        } else {
          *answer = core.OnLeave({job, self, held}, membership::LeaveReason::kStopped, lost.text,
                                 now_ns, out);
        }
      },
      [this, lost](bool answered) {
        if (!answered) Report(lost);
      });
}

void AgentProcess::LeaveJob(membership::LeaveReason reason) {
  auto answer = std::make_shared<membership::Answer>();
  const Epoch held = core_.newest_view() != nullptr ? core_.newest_view()->epoch : Epoch{0};
  scheduler_->Call(
      host_,
      [=, self = core_.config().self, job = job_](membership::Membership& core, int64_t now_ns,
                                                  EffectList& out) {
        *answer = core.OnLeave({job, self, held}, reason, "", now_ns, out);
      },
      [this, reason](bool answered) {
        if (!answered) return LeaveJob(reason);
        left_ = true;
      });
}

}  // namespace talweg::sim
