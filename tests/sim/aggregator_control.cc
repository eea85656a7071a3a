// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "tests/sim/aggregator_process.h"

// What rpc::AggregatorRegistration does, over simulated calls and streams.
namespace talweg::sim {
namespace {

using EffectList = std::vector<membership::Effect>;

}  // namespace

void AggregatorProcess::Drain() {
  auto answer = std::make_shared<membership::DeregisterAnswer>();
  const auto deregister = [this, answer](bool leave) {
    scheduler_->Call(
        host_,
        [answer, leave, self = incarnation_](membership::Membership& core, int64_t now_ns,
                                             EffectList& out) {
          *answer = core.OnDeregister({self}, leave, "told to stop", now_ns, out);
        },
        [](bool) {});
  };
  deregister(false);
  Later(40 * network_->Delay(), [deregister] { deregister(true); });
}

void AggregatorProcess::Register() {
  if (out_) return;
  const ViewAggregator self{.incarnation = incarnation_,
                            .name = name_,
                            .data_address = std::to_string(host_),
                            .host_id = name_};
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      host_,
      [answer, self](membership::Membership& core, int64_t now_ns, EffectList& out) {
        *answer = core.OnRegister(self, {}, now_ns, out);
      },
      [this, answer](bool answered) {
        if (answered && answer->ok()) {
          Attach();
          return Renew();
        }
        if (answered && answer->code != membership::Code::kHeld) {
          out_ = true;
          return;
        }
        Later(500 * kMillisecond, [this] { Register(); });
      });
}

void AggregatorProcess::Attach() {
  if (out_) return;
  const uint64_t attachment = ++attachment_;
  const auto again = [this, attachment] {
    Later(100 * kMillisecond, [this, attachment] {
      if (attachment == attachment_) Attach();
    });
  };
  const membership::StreamId stream = scheduler_->NewStream(
      host_, {.on_message =
                  [this, attachment](const SchedulerProcess::Message& message) {
                    if (attachment != attachment_) return;
                    OnAggregatorMessage(std::get<membership::AggregatorMessage>(message));
                  },
              .on_end =
                  [this, attachment, again](const std::optional<membership::Answer>& answer) {
                    if (attachment != attachment_) return;
                    if (answer && !answer->ok()) {
                      out_ = true;
                      return;
                    }
                    again();
                  }});
  std::vector<membership::HeldJob> held;
  for (const auto& [job, core] : jobs_) held.push_back({job, core->view().epoch});
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->CallOnce(
      host_,
      [=, this, self = incarnation_](membership::Membership& core, int64_t now_ns,
                                     EffectList& out) {
        *answer = core.OnAggregatorAttached(stream, {self}, held, now_ns, out);
        if (!answer->ok()) return;
        if (!held.empty()) trace_->Reached("an aggregator re-attaches with jobs");
        scheduler_->NoteAttached(stream);
      },
      [this, answer, stream, again](bool answered) {
        if (answered && answer->ok()) return;
        scheduler_->DropStream(stream);
        if (!answered) return again();
        // A store that was put back may be older than this aggregator.
        if (answer->code == membership::Code::kUnknown) return Register();
        out_ = true;
      });
}

void AggregatorProcess::Renew() {
  if (out_) return;
  auto answer = std::make_shared<membership::Answer>();
  scheduler_->Call(
      host_,
      [answer, self = incarnation_](membership::Membership& core, int64_t now_ns, EffectList& out) {
        *answer = core.OnRenewAggregator({self}, now_ns, out);
      },
      [this, answer](bool answered) {
        out_ |= answered && !answer->ok() && answer->code != membership::Code::kUnknown;
      });
  Later(2 * kSecond, [this] { Renew(); });
}

}  // namespace talweg::sim
