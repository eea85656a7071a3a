// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/aggregator_link.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "tests/sim/lease.h"

namespace talweg::sim {
namespace {

constexpr int64_t kRetryNs = 500 * kMillisecond;
constexpr int64_t kReattachNs = 100 * kMillisecond;

}  // namespace

AggregatorLink::AggregatorLink(Timeline* timeline, Trace* trace, Network* network,
                               SchedulerProcess* scheduler, HostIndex host, OnEvent on_event)
    : timeline_(timeline),
      trace_(trace),
      network_(network),
      scheduler_(scheduler),
      host_(host),
      on_event_(std::make_shared<OnEvent>(std::move(on_event))) {}

AggregatorLink::~AggregatorLink() { *here_ = false; }

std::function<void()> AggregatorLink::WhileHere(std::function<void()> event) const {
  return [here = here_, event = std::move(event)] {
    if (*here) event();
  };
}

void AggregatorLink::Later(int64_t delay_ns, std::function<void()> event) {
  timeline_->After(delay_ns, [network = network_, host = host_, life = network_->host(host_).life(),
                              event = WhileHere(std::move(event))] {
    network->host(host).Deliver(life, event);
  });
}

// The event may destroy this link.
void AggregatorLink::Tell(const rpc::AggregatorEvent& event) {
  const std::shared_ptr<OnEvent> on_event = on_event_;
  if (on_event != nullptr) (*on_event)(event);
}

void AggregatorLink::NoteAnswer(bool answered) {
  if (std::exchange(reachable_, answered) == answered) return;
  if (answered) return Tell(rpc::Reachable{.lease_ns = kLeaseNs});
  Tell(rpc::Unreachable{"the scheduler does not answer"});
}

void AggregatorLink::OnRefused(const membership::Answer& answer) {
  if (std::exchange(out_, true)) return;
  if (registered_) return Tell(rpc::LeaseLost{answer.text});
  Tell(rpc::RegistrationRefused{absl::FailedPreconditionError(answer.text)});
}

void AggregatorLink::Register(view::ViewAggregator self) {
  self_ = std::move(self);
  Enter();
  Renew();
}

void AggregatorLink::Enter() {
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      host_,
      [answer, self = self_](membership::SchedulerCore& core, int64_t now_ns, EffectList& out) {
        *answer = core.OnRegister(self, {}, now_ns, out);
      },
      [this, here = here_, answer](bool answered) {
        if (!*here || out_) return;
        if (answered && answer->ok()) {
          if (!std::exchange(registered_, true)) Tell(rpc::Registered{.lease_ns = kLeaseNs});
          if (*here) Attach();
          return;
        }
        if (answered && answer->code != membership::Code::kHeld &&
            answer->code != membership::Code::kNotYet) {
          return OnRefused(*answer);
        }
        Later(kRetryNs, [this] { Enter(); });
      });
}

void AggregatorLink::Attach() {
  if (out_) return;
  const uint64_t attachment = ++attachment_;
  const auto again = [this, attachment] {
    Later(kReattachNs, [this, attachment] {
      if (attachment == attachment_) Attach();
    });
  };
  const auto is_over = [this, here = here_, attachment] {
    return !*here || attachment != attachment_ || out_;
  };
  const membership::StreamId stream = scheduler_->NewStream(
      host_,
      {.on_message =
           [this, is_over](const SchedulerProcess::Message& message) {
             if (is_over()) return;
             OnMessage(std::get<membership::AggregatorMessage>(message));
           },
       .on_end =
           [this, is_over, here = here_, again](const std::optional<membership::Answer>& answer) {
             if (is_over()) return;
             if (answer && !answer->ok()) return OnRefused(*answer);
             NoteAnswer(answer.has_value());
             if (*here) again();
           }});
  std::vector<membership::HeldJob> held;
  for (const auto& [job, epoch] : held_) held.push_back({job, epoch});
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->CallOnce(
      host_,
      [=, trace = trace_, scheduler = scheduler_, self = self_.incarnation](
          membership::SchedulerCore& core, int64_t now_ns, EffectList& out) {
        *answer =
            core.OnAggregatorAttached(stream, {self}, held, now_ns, out, self.value() % 16 != 0);
        if (!answer->ok()) return;
        if (!held.empty()) trace->Reached("an aggregator re-attaches with jobs");
        scheduler->NoteAttached(stream);
      },
      [this, here = here_, scheduler = scheduler_, answer, stream, again](bool answered) {
        const bool is_attached = answered && answer->ok();
        if (!is_attached) scheduler->DropStream(stream);
        if (!*here || out_) return;
        // Somebody may have put an older store back, which does not know this aggregator.
        if (answered && answer->code == membership::Code::kUnknown) return Enter();
        if (answered && !answer->ok()) return OnRefused(*answer);
        NoteAnswer(answered);
        if (*here && !answered) again();
      });
}

void AggregatorLink::OnMessage(const membership::AggregatorMessage& message) {
  if (const auto* view = std::get_if<membership::JobView>(&message)) {
    Epoch& held = held_[view->view->job];
    if (view->view->epoch <= held) {
      return Tell(rpc::JobQuotaPublished{view->view->job, view->quota});
    }
    held = view->view->epoch;
    Tell(rpc::JobViewPublished{view->job_name, *view->view, view->quota});
  } else if (const auto* quota = std::get_if<membership::JobQuotaChanged>(&message)) {
    if (held_.contains(quota->job)) Tell(rpc::JobQuotaPublished{quota->job, quota->quota});
  } else if (const auto* closed = std::get_if<membership::JobClosed>(&message)) {
    if (held_.erase(closed->job) > 0) Tell(rpc::JobClosed{closed->job, closed->text});
  }
}

void AggregatorLink::Renew() {
  if (out_) return;
  Later(kRenewNs, [this] { Renew(); });
  if (!registered_) return;
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      host_,
      [answer, self = self_.incarnation](membership::SchedulerCore& core, int64_t now_ns,
                                         EffectList& out) {
        *answer = core.OnRenewAggregator({self}, now_ns, out);
      },
      [this, here = here_, answer](bool answered) {
        if (!*here || out_) return;
        // An unknown aggregator registers again when its stream ends.
        if (answered && answer->code == membership::Code::kUnknown) return;
        if (answered && !answer->ok()) return OnRefused(*answer);
        NoteAnswer(answered);
      });
}

void AggregatorLink::Say(bool leave, const std::string& text, int64_t end_ns,
                         std::function<void(absl::StatusOr<uint32_t>)> done) {
  // The aggregator is not registered, or it is out: there is nothing to leave.
  if (!registered_ || out_) return Later(1, [done = std::move(done)] { done(0U); });
  auto answer = std::make_shared<membership::DeregisterAnswer>();
  scheduler_->Call(
      host_,
      [answer, leave, text, self = self_.incarnation](membership::SchedulerCore& core,
                                                      int64_t now_ns, EffectList& out) {
        *answer = core.OnDeregister({self}, leave, text, now_ns, out);
      },
      [this, here = here_, answer, leave, text, end_ns, done = std::move(done)](bool answered) {
        if (!*here) return;
        if (answered) return done(answer->job_count);
        if (timeline_->now_ns() >= end_ns) {
          return done(absl::UnavailableError("the scheduler does not answer"));
        }
        Say(leave, text, end_ns, done);
      });
}

void AggregatorLink::Drain(std::string text, int64_t timeout_ns,
                           std::function<void(absl::StatusOr<uint32_t>)> done) {
  Say(false, text, timeline_->now_ns() + timeout_ns, std::move(done));
}

void AggregatorLink::Deregister(std::string text, int64_t timeout_ns,
                                std::function<void(absl::Status)> done) {
  Say(true, text, timeline_->now_ns() + timeout_ns,
      [done = std::move(done)](const absl::StatusOr<uint32_t>& jobs) { done(jobs.status()); });
  on_event_ = nullptr;
  out_ = true;
}

}  // namespace talweg::sim
