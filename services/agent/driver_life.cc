// SPDX-License-Identifier: Apache-2.0
//
// The agent's life: events of the scheduler, Stop, and the end.
#include <unistd.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "libs/base/counted.h"
#include "libs/pipeline/names.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "libs/transport/proof/data_key.h"
#include "services/agent/agent_driver.h"

namespace talweg::agent {
namespace {

// Returns the view with addresses that hold this member's keys for the epoch, if the scheduler
// gives seeds for keys.
view::View WithKeys(view::View view) {
  for (view::ViewAggregator& aggregator : view.aggregators) {
    aggregator.data_address = transport::AddressInEpoch(aggregator.data_address, view.epoch);
  }
  return view;
}

}  // namespace

void AgentDriver::OnView(const view::View& view) {
  job_ = view.job;
  entry_.End();
  if (!link_->IsAlone()) {
    telemetry::Log(telemetry::LogLevel::kInfo, "view of epoch ", view.epoch, ": ",
                   Counted(view.members.size(), "member"), ", ", Counted(view.RankCount(), "rank"),
                   ", ", Counted(view.aggregators.size(), "aggregator"));
    const std::string problem = options_.view_problem ? options_.view_problem(view) : "";
    if (!problem.empty()) {
      link_->ReportLost({.text = problem, .rank = std::nullopt});
      return runner_.FailJob(problem);
    }
  }
  desk_->OnNewestView(view.epoch);  // Before ranks go on in the new view.
  runner_.Deliver(
      [this, view](pipeline::Effects& out) { runner_.core().OnView(view, NowNs(), out); });
  if (!core().views().has_failed()) desk_->SetView(view, core().config().self);
}

void AgentDriver::OnMemberEvent(const rpc::MemberEvent& event) {
  std::visit(
      [&](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, rpc::Joined>) {
          job_ = e.job;
          entry_.OnJoined(NowNs());
          telemetry::Log(telemetry::LogLevel::kInfo, "joined job '", options_.job_name, "' (",
                         e.job, ") as node ", options_.self.node.value());
        } else if constexpr (std::is_same_v<E, rpc::JoinRefused>) {
          runner_.FailJob("cannot join job '" + options_.job_name +
                          "': " + status::StatusText(e.status));
        } else if constexpr (std::is_same_v<E, rpc::ViewPublished>) {
          OnView(WithKeys(e.view));
        } else if constexpr (std::is_same_v<E, rpc::JobFailed> ||
                             std::is_same_v<E, rpc::LeaseLost>) {
          runner_.FailJob(e.text);
          entry_.End();
        } else if constexpr (std::is_same_v<E, rpc::QuiesceRequested>) {
          runner_.Deliver([this, e](pipeline::Effects& out) {
            runner_.core().OnQuiesce(e.id, e.step, NowNs(), out);
          });
        } else if constexpr (std::is_same_v<E, rpc::QuiesceCancelled>) {
          runner_.Deliver([this, id = e.id](pipeline::Effects& out) {
            runner_.core().OnResume(id, NowNs(), out);
          });
        } else if constexpr (std::is_same_v<E, rpc::MemberLeft>) {
          runner_.core().OnMemberLeft(e.id, e.text);
        } else if constexpr (std::is_same_v<E, rpc::JoinDelayed>) {
          telemetry::Log(telemetry::LogLevel::kWarning, "not let in yet: ", e.text);
        } else if constexpr (std::is_same_v<E, rpc::Unreachable>) {
          if (scheduler_.OnUnreachable(e.text, NowNs())) {
            telemetry::Log(telemetry::LogLevel::kWarning, "the scheduler at ", options_.scheduler,
                           " cannot be reached: ", e.text,
                           job_ == JobId{0} ? "; trying again" : "; running steps go on");
            // Before the agent has joined, the time limit of joining applies instead.
            if (job_ != JobId{0}) runner_.core().OnSchedulerSilent(NowNs());
          }
        } else {
          static_assert(std::is_same_v<E, rpc::Reachable>);
          if (scheduler_.OnReachable()) {
            telemetry::Log(telemetry::LogLevel::kInfo, "the scheduler answers again");
          }
          runner_.core().OnSchedulerAnswers(e.lease_ns, NowNs());
        }
      },
      event);
}

bool AgentDriver::Stop(const std::string& why) {
  if (!life_.OnStop(why, NowNs())) return false;
  telemetry::Log(telemetry::LogLevel::kInfo, life_.why_it_stops(), "; ranks have ",
                 options_.drain_ns / 1'000'000, " ms to finish");
  return true;
}

absl::Status AgentDriver::Leave() {
  const LifeEnd& end = life_.how_it_ends();
  return link_->Leave(
      end.finished ? JobLink::LeaveReason::kFinished : JobLink::LeaveReason::kStopped,
      left_without_.empty() ? end.text
                            : end.text + "; they left without the result of " + left_without_);
}

LifeSight AgentDriver::Look() const {
  return {.any_attached = desk_->AnyAttached(),
          .gpus_are_idle = devices_ == nullptr || devices_->IsIdle(),
          .words_have_left = link_->Drained()};
}

void AgentDriver::Live() {
  if (const std::optional<int64_t> waited_s = entry_.Notice(NowNs())) {
    telemetry::Log(telemetry::LogLevel::kWarning, "node ", options_.self.node.value(),
                   " waits since ", *waited_s, " s to take part in job '", options_.job_name,
                   "': other nodes, ranks or an aggregator are missing; talweg status --scheduler=",
                   options_.scheduler, " says which");
  }
  switch (life_.Advance(Look(), NowNs())) {
    case LifeStep::kNone: return;
    case LifeStep::kServeOthers: return Restart();
    case LifeStep::kFailTheRanks: {
      const std::string text = "the agent of node " + std::to_string(options_.self.node.value()) +
                               " (pid " + std::to_string(getpid()) +
                               ") ends: " + life_.why_it_stops();
      runner_.FailJob(text);
      return;
    }
    case LifeStep::kLeave:
      if (life_.how_it_ends().finished) {
        left_without_ = pipeline::AwaitedRounds(core().tensors());
      }
      if (!left_without_.empty()) {
        telemetry::Log(telemetry::LogLevel::kWarning, "the ranks have left without the result of ",
                       left_without_,
                       ", which other nodes may need still: wait for every call before shutdown()");
      }
      runner_.Deliver([this](pipeline::Effects& out) { runner_.core().Leave(out); });
      return;
    case LifeStep::kEnd: options_.on_end(); return;
  }
}

void AgentDriver::Restart() {
  telemetry::Log(telemetry::LogLevel::kInfo, "all ranks have left; ready for the next");
  desk_->Restart();
  orders_.Forget();
  memory_->DropNicRegions();
  if (devices_ != nullptr) devices_->ForgetTensors();
  memory_->Forget();
  rank_server_->DropTensorMemory();
  timeline_.ForgetOpen();
  NewMember();
  link_->Join(core().config().self);
}

}  // namespace talweg::agent
