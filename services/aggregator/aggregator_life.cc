// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator_life.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "libs/base/fingerprint.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"

namespace talweg::aggregator {
namespace {

// How long Deregister may take after draining has used up the drain timeout.
constexpr int64_t kGoodbyeNs = 1'000'000'000;

}  // namespace

AggregatorLife::AggregatorLife(Options options, AggregatorDataPlane* data_plane,
                               const runtime::Clock* clock, MakeLink make_link,
                               std::function<void()> on_ended)
    : options_(std::move(options)),
      data_plane_(data_plane),
      clock_(clock),
      make_link_(std::move(make_link)),
      on_ended_(std::move(on_ended)),
      incarnation_(options_.self.incarnation) {}

void AggregatorLife::Start() {
  if (state_ == State::kServing) Register();
}

void AggregatorLife::Register() {
  link_ = make_link_(incarnation_, [this, incarnation = incarnation_](const auto& event) {
    if (incarnation == incarnation_) OnSchedulerEvent(event);
  });
  view::ViewAggregator self = options_.self;
  self.incarnation = incarnation_;
  link_->Register(std::move(self));
}

void AggregatorLife::OnSchedulerEvent(const rpc::AggregatorEvent& event) {
  if (state_ == State::kEnded) return;
  if (std::holds_alternative<rpc::Registered>(event)) {
    was_registered_ = true;
    scheduler_reachable_ = true;
    scheduler_text_.clear();
    telemetry::Log(telemetry::LogLevel::kInfo, "registered with the scheduler at ",
                   options_.scheduler);
  } else if (const auto* refused = std::get_if<rpc::RegistrationRefused>(&event)) {
    result_ = refused->status;
    End();
  } else if (const auto* published = std::get_if<rpc::JobViewPublished>(&event)) {
    data_plane_->OnJobView(published->job_name, published->view, published->quota, published->gone);
  } else if (const auto* quota = std::get_if<rpc::JobQuotaPublished>(&event)) {
    data_plane_->OnJobQuota(quota->job, quota->quota);
  } else if (const auto* closed = std::get_if<rpc::JobClosed>(&event)) {
    data_plane_->OnJobClosed(closed->job, closed->text);
  } else if (const auto* lost = std::get_if<rpc::LeaseLost>(&event)) {
    OnLeaseLost(lost->text);
  } else if (const auto* unreachable = std::get_if<rpc::Unreachable>(&event)) {
    scheduler_reachable_ = false;
    scheduler_text_ = unreachable->text;
    // Before it is registered, nobody sends it anything.
    telemetry::Log(
        telemetry::LogLevel::kWarning, "the scheduler does not answer, ",
        was_registered_ ? "steps go on: " : "and is asked again for a while: ", unreachable->text);
  } else if (std::holds_alternative<rpc::Reachable>(event)) {
    scheduler_reachable_ = true;
    scheduler_text_.clear();
    telemetry::Log(telemetry::LogLevel::kInfo, "the scheduler answers again");
  }
}

void AggregatorLife::OnLeaseLost(const std::string& text) {
  telemetry::Log(telemetry::LogLevel::kError,
                 "the scheduler takes this incarnation for lost: ", text);
  if (state_ != State::kServing) return End();
  // An incarnation that was declared lost never comes back. A new incarnation may get new jobs.
  incarnation_ = Incarnation{Mix64(incarnation_.value())};
  data_plane_->Restart(incarnation_,
                       "aggregator '" + options_.self.name + "' lost its lease: " + text);
  scheduler_reachable_ = false;
  scheduler_text_ = text;
  Register();
}

int64_t AggregatorLife::LeftNs() const {
  return std::max(drain_end_ns_ - clock_->NowNs(), kGoodbyeNs);
}

void AggregatorLife::Shutdown(const std::string& text) {
  if (state_ != State::kServing) return;
  state_ = State::kDraining;
  shutdown_text_ = text;
  drain_end_ns_ = clock_->NowNs() + options_.drain_timeout_ns;
  if (link_ == nullptr) return End();  // Start was never called.
  link_->Drain(text, LeftNs(), [this](const absl::StatusOr<uint32_t>& jobs) { OnDrained(jobs); });
}

void AggregatorLife::OnDrained(const absl::StatusOr<uint32_t>& jobs) {
  if (state_ != State::kDraining) return;
  if (!jobs.ok()) {
    telemetry::Log(telemetry::LogLevel::kWarning, "draining: ", status::StatusText(jobs.status()));
    return Leave();
  }
  if (*jobs == 0) return Leave();
  telemetry::Log(telemetry::LogLevel::kInfo, "draining: ", *jobs,
                 *jobs == 1 ? " job uses" : " jobs use", " this aggregator and may take ",
                 std::max<int64_t>(drain_end_ns_ - clock_->NowNs(), 0) / 1'000'000,
                 " ms to end or to move to other aggregators");
  awaits_its_jobs_ = true;
}

void AggregatorLife::Tick() {
  data_plane_->Tick();
  if (state_ != State::kDraining || !awaits_its_jobs_) return;
  if (IsUsed() && clock_->NowNs() < drain_end_ns_) return;
  Leave();
}

bool AggregatorLife::IsUsed() const {
  const std::vector<const aggregation::AggregatorCore*> jobs = data_plane_->jobs();
  return std::any_of(jobs.begin(), jobs.end(), [](const aggregation::AggregatorCore* job) {
    return !job->closed() && job->self().has_value();
  });
}

void AggregatorLife::Leave() {
  state_ = State::kLeaving;
  link_->Deregister(shutdown_text_, LeftNs(), [this](const absl::Status& told) {
    if (!told.ok())
      telemetry::Log(telemetry::LogLevel::kWarning, "leaving: ", status::StatusText(told));
    End();
  });
}

void AggregatorLife::End() {
  if (std::exchange(state_, State::kEnded) != State::kEnded) on_ended_();
}

}  // namespace talweg::aggregator
