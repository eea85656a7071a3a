// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/agent_link.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "tests/sim/lease.h"

namespace talweg::sim {
namespace {

// The same values as in libs/rpc.
constexpr int64_t kJoinNs = 30 * kSecond;
constexpr int64_t kLeaveNs = 2 * kSecond;

using EffectList = std::vector<membership::Effect>;

}  // namespace

AgentLink::AgentLink(Timeline* timeline, Trace* trace, Network* network,
                     SchedulerProcess* scheduler, agent::AgentDataPlane* data_plane,
                     SimTransport* transport, const Config& config)
    : ConnectedLink(data_plane, transport),
      timeline_(timeline),
      trace_(trace),
      network_(network),
      scheduler_(scheduler),
      config_(config) {}

void AgentLink::Later(int64_t delay_ns, std::function<void()> event) {
  timeline_->After(
      delay_ns,
      [network = network_, host = config_.host, life = network_->host(config_.host).life(),
       event = std::move(event)] { network->host(host).Deliver(life, event); });
}

void AgentLink::Do(pipeline::Send& effect) {
  config_.before_send(effect);
  ConnectedLink::Do(effect);
}

void AgentLink::Out(const rpc::MemberEvent& event) {
  if (std::exchange(out_, true) || leaves_) return;
  Tell(event);
}

void AgentLink::NoteAnswer(bool answered) {
  if (std::exchange(reachable_, answered) == answered || leaves_) return;
  if (answered) return Tell(rpc::Reachable{.lease_ns = kLeaseNs});
  Tell(rpc::Unreachable{"scheduler does not answer"});
}

int64_t AgentLink::RetryNs() const {
  return std::min(500 * kMillisecond, 5 * config_.profile->delay_max_ns + kMillisecond);
}

membership::JoinRequest AgentLink::JoinRequest() const {
  membership::JoinRequest request;
  request.job_name = config_.job_name;
  request.spec.min_members = config_.profile->min_members;
  request.spec.max_members = static_cast<uint32_t>(config_.profile->rank_counts.size());
  request.spec.begin_members = config_.profile->begin_members;
  request.spec.gather_ns = config_.profile->gather_ns;
  request.spec.slice_bytes_max = config_.profile->slice_bytes_max;
  request.spec.dealing = config_.profile->dealing;
  request.spec.loss_policy = config_.profile->loss_policy;
  request.spec.join_timeout_ns = 30 * kSecond;
  request.member = {.id = self_,
                    .rank_count = config_.rank_count,
                    .name = config_.name,
                    .host_id = config_.host_id};
  return request;
}

void AgentLink::Join(const view::MemberIdentity& self) {
  self_ = self;
  Enter();
}

void AgentLink::Enter() {
  if (out_ || leaves_) return;
  auto answer = std::make_shared<membership::JoinAnswer>();
  const membership::JoinRequest request = JoinRequest();
  scheduler_->Call(
      config_.host,
      [answer, request, trace = trace_](membership::SchedulerCore& core, int64_t now_ns,
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
        if (out_ || leaves_) return;
        if (answered) joining_since_ns_.reset();
        if (!answered && !joining_since_ns_) joining_since_ns_ = timeline_->now_ns();
        if (joining_since_ns_ && timeline_->now_ns() > *joining_since_ns_ + kJoinNs) {
          return Out(rpc::JoinRefused{absl::UnavailableError("the scheduler does not answer")});
        }
        if (answered && answer->answer.ok()) {
          job_ = answer->job;
          Tell(rpc::Joined{.job = job_, .lease_ns = kLeaseNs});
          Attach();
          return Renew();
        }
        if (answered && answer->answer.code != membership::Code::kHeld &&
            answer->answer.code != membership::Code::kFull &&
            answer->answer.code != membership::Code::kNotYet) {
          return Out(rpc::JoinRefused{absl::FailedPreconditionError(answer->answer.text)});
        }
        Later(RetryNs(), [this] { Enter(); });
      });
}

void AgentLink::Attach() {
  if (out_ || leaves_) return;
  const uint64_t attachment = ++attachment_;
  const auto again = [this, attachment] {
    Later(RetryNs() / 5, [this, attachment] {
      if (attachment == attachment_) Attach();
    });
  };
  const membership::StreamId stream = scheduler_->NewStream(
      config_.host,
      {.on_message =
           [this, attachment](const SchedulerProcess::Message& message) {
             if (attachment != attachment_ || leaves_) return;
             OnMessage(std::get<membership::MemberMessage>(message));
           },
       .on_end =
           [this, attachment, again](const std::optional<membership::Answer>& answer) {
             if (attachment != attachment_ || leaves_) return;
             if (answer && !answer->ok()) return Out(rpc::LeaseLost{answer->text});
             NoteAnswer(answer.has_value());
             again();
           }});
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->CallOnce(
      config_.host,
      [=, this, id = self_, job = job_, held = held_, ranks = ranks_](
          membership::SchedulerCore& core, int64_t now_ns, EffectList& out) {
        *answer = core.OnMemberAttached(stream, {job, id, held}, ranks, now_ns, out);
        if (!answer->ok()) return;
        if (attachment > 1) trace_->Reached("a member re-attaches");
        if (core.jobs().at(job).Over()) trace_->Reached("a member attaches to a job that is over");
        scheduler_->NoteAttached(stream);
      },
      [this, answer, stream, again](bool answered) {
        if (!answered || !answer->ok()) scheduler_->DropStream(stream);
        if (leaves_) return;
        NoteAnswer(answered);
        if (answered && answer->ok()) return;
        if (answered) return OnRefused(*answer);
        again();
      });
}

void AgentLink::OnRefused(const membership::Answer& answer) {
  Out(rpc::LeaseLost{answer.text});
  if (answer.code == membership::Code::kUnknown)
    trace_->Reached("a request that names an unknown job");
  if (answer.code != membership::Code::kRefused) return;
  trace_->Reached("a Join or Renew of an incarnation that is lost");
  // It does not listen: this incarnation asks again.
  auto again = std::make_shared<membership::JoinAnswer>();
  scheduler_->Call(
      config_.host,
      [again, job = job_, request = JoinRequest()](membership::SchedulerCore& core, int64_t now_ns,
                                                   EffectList& out) {
        if (!core.jobs().contains(job)) {  // The scheduler has forgotten the job meanwhile.
          again->answer.code = membership::Code::kRefused;
          return;
        }
        *again = core.OnJoin(request, now_ns, out);
      },
      [this, again](bool answered) {
        if (answered && again->answer.ok() && !trace_->HasReached(kOlderStore)) {
          throw Violation{config_.name + ": an incarnation that was lost is let in again"};
        }
      });
}

void AgentLink::Renew() {
  if (out_ || leaves_) return;
  SendRenewal();
  Later(kRenewNs, [this] { Renew(); });
}

void AgentLink::SendRenewal() {
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      config_.host,
      [=, id = self_, job = job_, held = held_, ranks = ranks_](membership::SchedulerCore& core,
                                                                int64_t now_ns, EffectList& out) {
        *answer = core.OnRenew({job, id, held}, ranks, now_ns, out);
      },
      [this, answer](bool answered) {
        if (leaves_) return;
        NoteAnswer(answered);
        if (answered && !answer->ok()) OnRefused(*answer);
      });
}

void AgentLink::SetRanksAttached(bool attached) {
  if (std::exchange(ranks_.attached, attached) == attached) return;
  if (job_ == JobId{0} || out_ || leaves_) return;
  if (attached) trace_->Reached("ranks come after their agent");
  SendRenewal();
}

void AgentLink::SetRanksReady(bool ready) {
  if (!config_.knows_standbys || std::exchange(ranks_.ready, ready) == ready) return;
  if (job_ == JobId{0} || out_ || leaves_) return;
  SendRenewal();
}

void AgentLink::OnMessage(const membership::MemberMessage& message) {
  if (out_) return;
  if (const auto* shared = std::get_if<membership::SharedView>(&message)) {
    const view::View& view = **shared;
    const bool is_newer = held_ < view.epoch;
    const membership::QuiesceId over = quiesce_.OnView(is_newer);
    if (over != membership::QuiesceId{0}) {
      trace_->Reached("a member that re-attaches holds a quiesce that is over");
      Tell(rpc::QuiesceCancelled{over.value()});
    }
    if (!is_newer) return;
    held_ = view.epoch;
    Tell(rpc::ViewPublished{view});
  } else if (const auto* quiesce = std::get_if<membership::Quiesce>(&message)) {
    if (!quiesce_.OnQuiesce(quiesce->id)) return;
    Tell(rpc::QuiesceRequested{quiesce->id.value(), quiesce->step});
  } else if (const auto* cancelled = std::get_if<membership::QuiesceCancelled>(&message)) {
    if (quiesce_.OnCancelled(cancelled->id)) Tell(rpc::QuiesceCancelled{cancelled->id.value()});
  } else if (const auto* attached = std::get_if<membership::Attached>(&message)) {
    quiesce_.OnAttached(attached->quiesce);
  } else if (const auto* gone = std::get_if<membership::MemberLeft>(&message)) {
    Tell(rpc::MemberLeft{gone->id, gone->text});
  } else if (const auto* failed = std::get_if<membership::JobFailed>(&message)) {
    trace_->Reached("an agent hears from the scheduler that its job has failed");
    if (failed->text.empty()) throw Violation{config_.name + ": the job failed without a reason"};
    Out(rpc::JobFailed{failed->text});
  }
}

void AgentLink::Quiesced(uint64_t id, uint64_t step) {
  const membership::QuiesceId quiesce{id};
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      config_.host,
      [=, this, self = self_, job = job_, held = held_](membership::SchedulerCore& core,
                                                        int64_t now_ns, EffectList& out) {
        const auto known = core.jobs().find(job);
        if (known != core.jobs().end() &&
            (!known->second.quiesce || known->second.quiesce->id != quiesce ||
             !known->second.quiesce->waits_for.contains(self))) {
          trace_->Reached("a quiesce is answered twice, or too late");
        }
        *answer = core.OnQuiesced({job, self, held}, quiesce, step, now_ns, out);
      },
      [this, id, step](bool answered) {
        if (!answered && !out_ && !leaves_) Quiesced(id, step);
      });
}

void AgentLink::ReportLost(const pipeline::ReportLost& lost) {
  if (leaves_) return;
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      config_.host,
      [=, self = self_, job = job_, held = held_](membership::SchedulerCore& core, int64_t now_ns,
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
        if (!answered) ReportLost(lost);
      });
}

absl::Status AgentLink::Leave(LeaveReason reason, const std::string& text) {
  CloseAll();
  leaves_ = true;
  SayLeave(reason, text, timeline_->now_ns() + kLeaveNs);
  return absl::OkStatus();
}

void AgentLink::SayLeave(LeaveReason reason, const std::string& text, int64_t end_ns) {
  // The agent never joined: there is nothing to leave.
  if (job_ == JobId{0}) return Later(1, [this] { config_.on_left(true); });
  const membership::LeaveReason why = reason == LeaveReason::kFinished
                                          ? membership::LeaveReason::kFinished
                                          : membership::LeaveReason::kStopped;
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      config_.host,
      [=, self = self_, job = job_, held = held_](membership::SchedulerCore& core, int64_t now_ns,
                                                  EffectList& out) {
        *answer = core.OnLeave({job, self, held}, why, text, now_ns, out);
      },
      [this, reason, text, end_ns](bool answered) {
        if (answered || timeline_->now_ns() >= end_ns) return config_.on_left(answered);
        SayLeave(reason, text, end_ns);
      });
}

}  // namespace talweg::sim
