// SPDX-License-Identifier: Apache-2.0
// What the scheduler, people and signals say to an agent, and how it ends.
#include <unistd.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/agent/agent.h"
#include "services/agent/agent_open.h"

namespace talweg::agent {
void Agent::OnMail(Mail mail) {
  std::visit(
      [this](auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, rpc::MemberEvent>) {
          OnMemberEvent(m);
        } else if constexpr (std::is_same_v<M, HostFound>) {
          link_->OnHostFound(m.connection, m.literal);
        } else if constexpr (std::is_same_v<M, StopRequested>) {
          OnStop(m.why);
        } else if constexpr (std::is_same_v<M, StatusRequested>) {
          m.done(MakeStatus(m.request));
        } else if constexpr (std::is_same_v<M, SetTraceRequested>) {
          constexpr uint64_t kBufferBytes = 64 * kMiB;
          const uint64_t bytes = m.request.buffer_bytes() == 0
                                     ? kBufferBytes
                                     : std::min<uint64_t>(m.request.buffer_bytes(), kGiB);
          timeline_.Record(m.request.enabled(), bytes / sizeof(TimelineEvent));
          m.done(v1::SetTraceResponse{});
        } else {
          m.done(MakeTrace());
        }
      },
      mail);
}

void Agent::OnMemberEvent(const rpc::MemberEvent& event) {
  const auto fail = [this](const std::string& text) {
    Deliver([this, text](pipeline::Effects& out) { member_->OnJobFailed(text, NowNs(), out); });
  };
  std::visit(
      [&](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, rpc::Joined>) {
          job_ = e.job;
          Log(LogLevel::kInfo, "joined job '", config_.job, "' (", e.job, ") as node ",
              config_.node_rank);
        } else if constexpr (std::is_same_v<E, rpc::JoinRefused>) {
          fail("cannot join job '" + config_.job + "': " + StatusText(e.status));
        } else if constexpr (std::is_same_v<E, rpc::ViewPublished>) {
          job_ = e.view.job;
          if (!link_->IsAlone()) {
            Log(LogLevel::kInfo, "view of epoch ", e.view.epoch, ": ", e.view.members.size(),
                " members, ", e.view.RankCount(), " ranks, ", e.view.aggregators.size(),
                " aggregators");
            if (const std::string problem = SettingProblem(config_, e.view); !problem.empty()) {
              link_->ReportLost({.text = problem, .rank = std::nullopt});
              fail(problem);
              return;
            }
          }
          desk_->OnNewestView(e.view.epoch);  // Before ranks go on in it.
          Deliver([this, view = e.view](pipeline::Effects& out) {
            member_->OnView(view, NowNs(), out);
          });
          if (member_->phase() != pipeline::Phase::kFailed) {
            desk_->SetView(e.view, member_->config().self);
          }
        } else if constexpr (std::is_same_v<E, rpc::JobFailed> ||
                             std::is_same_v<E, rpc::LeaseLost>) {
          fail(e.text);
        } else if constexpr (std::is_same_v<E, rpc::QuiesceRequested>) {
          Deliver([this, e](pipeline::Effects& out) {
            member_->OnQuiesce(e.id, e.step, NowNs(), out);
          });
        } else if constexpr (std::is_same_v<E, rpc::QuiesceCancelled>) {
          Deliver(
              [this, id = e.id](pipeline::Effects& out) { member_->OnResume(id, NowNs(), out); });
        } else if constexpr (std::is_same_v<E, rpc::MemberLeft>) {
          member_->OnMemberLeft(e.id, e.text);
        } else if constexpr (std::is_same_v<E, rpc::JoinDelayed>) {
          Log(LogLevel::kWarning, "not let in yet: ", e.text);
        } else if constexpr (std::is_same_v<E, rpc::Unreachable>) {
          if (scheduler_silent_since_ns_ == 0) {
            Log(LogLevel::kWarning, "the scheduler at ", config_.scheduler,
                " cannot be reached: ", e.text,
                job_ == JobId{0} ? "; trying again" : "; running steps go on");
            scheduler_silent_since_ns_ = NowNs();
            // Until it has joined, the time limit is that of joining.
            if (job_ != JobId{0}) member_->OnSchedulerSilent(NowNs());
          }
          scheduler_text_ = e.text;
        } else {
          static_assert(std::is_same_v<E, rpc::Reachable>);
          if (scheduler_silent_since_ns_ != 0) {
            Log(LogLevel::kInfo, "the scheduler answers again");
          }
          scheduler_silent_since_ns_ = 0;
          scheduler_text_.clear();
          member_->OnSchedulerAnswers(e.lease_ns, NowNs());
        }
      },
      event);
}

std::string Agent::SchedulerSilenceText() const {
  const int64_t seconds = (NowNs() - scheduler_silent_since_ns_) / 1'000'000'000;
  return "for " + std::to_string(seconds) + " s the " + scheduler_text_ +
         " (start it again, and then this job)";
}

void Agent::OnStop(const std::string& why) {
  if (!life_.OnStop(why, NowNs())) return;
  admin_->SetServing("", false);
  Log(LogLevel::kInfo, life_.why_it_stops(), "; ranks have ", config_.drain_timeout_ms,
      " ms to finish");
}

LifeSight Agent::Look() const {
  return {.any_attached = desk_->AnyAttached(),
          .gpus_are_idle = gpus_ == nullptr || gpus_->stage().IsIdle(),
          .words_have_left = link_->Drained()};
}

void Agent::Live() {
  switch (life_.Advance(Look(), NowNs())) {
    case LifeStep::kNone: return;
    case LifeStep::kServeOthers: return Restart();
    case LifeStep::kFailTheRanks: {
      const std::string text = "the agent of node " + std::to_string(config_.node_rank) + " (pid " +
                               std::to_string(getpid()) + ") ends: " + life_.why_it_stops();
      Deliver([this, text](pipeline::Effects& out) { member_->OnJobFailed(text, NowNs(), out); });
      return;
    }
    case LifeStep::kLeave: Deliver([this](pipeline::Effects& out) { member_->Leave(out); }); return;
    case LifeStep::kEnd: loop_->Stop(); return;
  }
}

void Agent::Restart() {
  Log(LogLevel::kInfo, "all ranks have left; ready for the next");
  desk_->Restart();
  memory_->DropNicRegions();
  if (gpus_ != nullptr) gpus_->stage().ForgetTensors();
  memory_->Forget();
  rank_server_->DropTensorMemory();
  missing_nodes_.clear();
  timeline_.ForgetOpen();
  NewMember();
  link_->Join(member_->config().self);
}

}  // namespace talweg::agent
