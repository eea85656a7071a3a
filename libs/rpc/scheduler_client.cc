// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/scheduler_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "libs/base/check.h"
#include "libs/membership/quiesce_follower.h"
#include "libs/rpc/channel.h"
#include "libs/rpc/conversion.h"
#include "libs/rpc/sealed_caller.h"
#include "libs/rpc/secret.h"
#include "libs/rpc/session.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"

namespace talweg::rpc {
namespace {

using membership::QuiesceId;
using scheduler::v1::MembershipService;
using scheduler::v1::PoolService;

// The calls, as libs/rpc/authorization.cc names them.
constexpr std::string_view kJoin = "/talweg.scheduler.v1.MembershipService/Join";
constexpr std::string_view kRenew = "/talweg.scheduler.v1.MembershipService/RenewLease";
constexpr std::string_view kLeave = "/talweg.scheduler.v1.MembershipService/Leave";
constexpr std::string_view kReportLost = "/talweg.scheduler.v1.MembershipService/ReportLost";
constexpr std::string_view kQuiesced = "/talweg.scheduler.v1.MembershipService/Quiesced";
constexpr std::string_view kWatchViews = "/talweg.scheduler.v1.MembershipService/WatchViews";
constexpr std::string_view kRegister = "/talweg.scheduler.v1.PoolService/RegisterAggregator";
constexpr std::string_view kRenewAggregator = "/talweg.scheduler.v1.PoolService/RenewAggregator";
constexpr std::string_view kDeregister = "/talweg.scheduler.v1.PoolService/DeregisterAggregator";
constexpr std::string_view kWatchJobs = "/talweg.scheduler.v1.PoolService/WatchJobs";

// Both sides refuse a major version that is not theirs.
grpc::Status CheckVersion(const Version& ours, const scheduler::v1::ProtocolVersion& theirs,
                          const std::string& address) {
  const std::string problem =
      VersionProblem(ours, FromProto(theirs), "the scheduler at " + address);
  if (problem.empty()) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, problem);
}

// gRPC's own error would only say that parsing failed.
grpc::Status CheckText(const char* field, const std::string& text) {
  if (IsUtf8(text)) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                      std::string(field) + " '" + CleanUtf8(text) + "' is not UTF-8");
}

}  // namespace

class SchedulerClient::Impl : private Session::Peer {
 public:
  Impl(SchedulerLinkOptions options, OnEvent on_event)
      : options_(std::move(options)),
        on_event_(std::move(on_event)),
        session_(options_, this),
        stub_(MembershipService::NewStub(session_.channel())),
        calls_(Daemon::kScheduler, options_.job_secret, session_.channel(), options_.address) {}
  ~Impl() { session_.Stop(); }

  void JoinJob(JoinSpec spec) {
    TALWEG_CHECK(!std::exchange(started_, true));
    spec_ = std::move(spec);
    session_.Start();
  }

  template <typename Change>
  void ReportLost(Change change, std::string text) {
    session_.Send([this, change, text = std::move(text)](grpc::ClientContext& context) {
      scheduler::v1::ReportLostRequest request;
      Identify(request);
      change(request);
      request.set_text(CleanUtf8(text));
      scheduler::v1::ReportLostResponse response;
      return Ask(kReportLost, &MembershipService::Stub::ReportLost, context, request, &response);
    });
  }

  void ReportLostSelf(std::string text) {
    const auto self = ToProto(spec_.member.id);
    ReportLost(
        [self](scheduler::v1::ReportLostRequest& request) { *request.mutable_member() = self; },
        std::move(text));
  }

  void Quiesced(uint64_t id, uint64_t step) {
    session_.Send([this, id, step](grpc::ClientContext& context) {
      scheduler::v1::QuiescedRequest request;
      Identify(request);
      request.set_quiesce_id(id);
      request.set_step(step);
      scheduler::v1::QuiescedResponse response;
      return Ask(kQuiesced, &MembershipService::Stub::Quiesced, context, request, &response);
    });
  }

  void SetRanksAttached(bool attached) {
    if (ranks_attached_.exchange(attached) == attached || !session_.entered()) return;
    session_.Send([this](grpc::ClientContext& context) { return Renew(context); });
  }

  void SetRanksReady(bool ready) {
    if (ranks_ready_.exchange(ready) == ready || !session_.entered()) return;
    session_.Send([this](grpc::ClientContext& context) { return Renew(context); });
  }

  void SetRanksHaveState(bool have_state) {
    if (ranks_have_state_.exchange(have_state) == have_state || !session_.entered()) return;
    session_.Send([this](grpc::ClientContext& context) { return Renew(context); });
  }

  absl::Status Leave(LeaveReason reason, const std::string& text, int64_t timeout_ns) {
    // Once the scheduler was told there is no further event, not even for the end of the stream.
    left_ = true;
    grpc::Status status;
    if (session_.entered()) {
      status = session_.CallNow(
          [&](grpc::ClientContext& context) {
            scheduler::v1::LeaveRequest request;
            Identify(request);
            request.set_reason(reason == LeaveReason::kFinished
                                   ? scheduler::v1::LEAVE_REASON_FINISHED
                                   : scheduler::v1::LEAVE_REASON_STOPPED);
            request.set_text(CleanUtf8(text));
            scheduler::v1::LeaveResponse response;
            return Ask(kLeave, &MembershipService::Stub::Leave, context, request, &response);
          },
          timeout_ns);
    }
    session_.Stop();
    // This member is out already, so there is nothing to leave.
    if (!IsTransient(status)) return absl::OkStatus();
    return session_.Describe(status);
  }

 private:
  template <typename Request>
  void Identify(Request& request) {
    request.set_job_id(job_.load());
    *request.mutable_id() = ToProto(spec_.member.id);
    request.set_epoch(epoch_.load());
    request.set_session_secret(session_secret_);
  }

  // Makes a call that has one answer.
  template <typename Request, typename Response>
  grpc::Status Ask(std::string_view name,
                   grpc::Status (MembershipService::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                   grpc::ClientContext& context, const Request& request, Response* response) {
    return calls_.Call(name, context, request, response,
                       [&] { return (stub_.get()->*method)(&context, request, response); });
  }

  grpc::Status Greet(grpc::ClientContext& context) override {
    if (const absl::Status address = CheckAddress("scheduler", options_.address); !address.ok()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(address.message()));
    }
    return calls_.Greet(context);
  }

  grpc::Status Enter(grpc::ClientContext& context) override {
    for (const auto& [field, text] :
         {std::pair("job name", &spec_.job_name), std::pair("node name", &spec_.member.name),
          std::pair("tenant", &spec_.spec.tenant)}) {
      if (const grpc::Status problem = CheckText(field, *text); !problem.ok()) return problem;
    }
    scheduler::v1::JoinRequest request;
    *request.mutable_version() = ToProto(options_.version);
    request.set_job_name(spec_.job_name);
    *request.mutable_spec() = ToProto(spec_.spec);
    *request.mutable_id() = ToProto(spec_.member.id);
    request.set_rank_count(spec_.member.rank_count);
    request.set_name(spec_.member.name);
    request.set_admin_address(spec_.member.admin_address);
    request.set_host_id(spec_.member.host_id);
    request.set_data_security(spec_.data_security);
    request.set_not_after_finish(spec_.not_after_finish);
    request.set_session_secret(session_secret_);
    scheduler::v1::JoinResponse response;
    grpc::Status status = Ask(kJoin, &MembershipService::Stub::Join, context, request, &response);
    if (status.ok()) status = CheckVersion(options_.version, response.version(), options_.address);
    if (!status.ok()) return status;
    job_ = response.job_id();
    const int64_t lease_ns = NsFromDuration(response.lease_duration());
    session_.SetLease(lease_ns);
    Tell(Joined{.job = JobId{response.job_id()}, .lease_ns = lease_ns});
    return status;
  }

  grpc::Status Watch(grpc::ClientContext& context) override {
    scheduler::v1::WatchViewsRequest request;
    *request.mutable_version() = ToProto(options_.version);
    Identify(request);
    request.set_ranks_attached(ranks_attached_);
    request.set_ranks_ready(ranks_ready_);
    request.set_ranks_have_state(ranks_have_state_);
    request.set_takes_changes(true);
    request.set_takes_aggregator_changes(true);
    last_view_.reset();
    return calls_.Watch<scheduler::v1::WatchViewsRequest, scheduler::v1::WatchViewsResponse>(
        kWatchViews, context, request, [this](const auto& response) { return OnMessage(response); },
        [&] { return stub_->WatchViews(&context, request); });
  }

  grpc::Status OnMessage(const scheduler::v1::WatchViewsResponse& response) {
    switch (response.event_case()) {
      case scheduler::v1::WatchViewsResponse::kAttached: {
        const auto& attached = response.attached();
        const grpc::Status status =
            CheckVersion(options_.version, attached.version(), options_.address);
        if (!status.ok()) return status;
        session_.OnAttached(NsFromDuration(attached.lease_duration()));
        quiesce_.OnAttached(QuiesceId{attached.quiesce_id()});
        break;
      }
      case scheduler::v1::WatchViewsResponse::kView: {
        absl::StatusOr<view::View> view = FromProto(response.view());
        if (!view.ok()) {
          return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                              std::string(view.status().message()));
        }
        OnView(*std::move(view));
        break;
      }
      case scheduler::v1::WatchViewsResponse::kViewChange: {
        absl::StatusOr<view::View> view =
            last_view_ ? Changed(*last_view_, response.view_change())
                       : absl::InvalidArgumentError("a change of a view comes before any view");
        // A new stream begins with a whole view.
        if (!view.ok()) {
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, std::string(view.status().message()));
        }
        OnView(*std::move(view));
        break;
      }
      case scheduler::v1::WatchViewsResponse::kQuiesce:
        if (quiesce_.OnQuiesce(QuiesceId{response.quiesce().quiesce_id()})) {
          Tell(QuiesceRequested{response.quiesce().quiesce_id(), response.quiesce().step()});
        }
        break;
      case scheduler::v1::WatchViewsResponse::kQuiesceCancelled:
        if (quiesce_.OnCancelled(QuiesceId{response.quiesce_cancelled().quiesce_id()})) {
          Tell(QuiesceCancelled{response.quiesce_cancelled().quiesce_id()});
        }
        break;
      case scheduler::v1::WatchViewsResponse::kJobFailed:
        if (failed_.exchange(true)) break;
        Tell(JobFailed{response.job_failed().text()});
        break;
      case scheduler::v1::WatchViewsResponse::kMemberLeft:
        Tell(MemberLeft{FromProto(response.member_left().id()), response.member_left().text()});
        break;
      case scheduler::v1::WatchViewsResponse::EVENT_NOT_SET: break;  // From a newer minor version.
    }
    return grpc::Status::OK;
  }

  void OnView(view::View view) {
    last_view_ = view;
    const bool is_newer = view.epoch.value() > epoch_.load();
    const QuiesceId over = quiesce_.OnView(is_newer);
    if (over != QuiesceId{0}) Tell(QuiesceCancelled{over.value()});
    if (!is_newer) return;
    epoch_ = view.epoch.value();
    Tell(ViewPublished{std::move(view)});
  }

  grpc::Status Renew(grpc::ClientContext& context) override {
    scheduler::v1::RenewLeaseRequest request;
    Identify(request);
    request.set_ranks_attached(ranks_attached_);
    request.set_ranks_ready(ranks_ready_);
    request.set_ranks_have_state(ranks_have_state_);
    scheduler::v1::RenewLeaseResponse response;
    const grpc::Status status =
        Ask(kRenew, &MembershipService::Stub::RenewLease, context, request, &response);
    if (status.ok()) session_.SetLease(NsFromDuration(response.lease_duration()));
    return status;
  }

  void OnRefused(const absl::Status& status) override { Pass(JoinRefused{status}); }
  void OnOut(const std::string& text) override {
    if (!failed_) Pass(LeaseLost{text});
  }
  void OnDelayed(const std::string& text) override { Pass(JoinDelayed{text}); }
  void OnUnreachable(const std::string& text) override { Pass(Unreachable{text}); }
  void OnReachable(int64_t lease_ns) override { Pass(Reachable{.lease_ns = lease_ns}); }
  bool EntersAgain() const override { return false; }

  void Tell(MemberEvent event) {
    session_.Deliver([&] { Pass(std::move(event)); });
  }
  void Pass(MemberEvent event) {
    if (!left_) on_event_(std::move(event));
  }

  const SchedulerLinkOptions options_;
  const OnEvent on_event_;
  const std::string session_secret_ = NewSecret();
  bool started_ = false;
  JoinSpec spec_;
  std::atomic<uint64_t> job_{0};
  std::optional<view::View> last_view_;  // The current stream's.
  std::atomic<uint64_t> epoch_{0};
  std::atomic<bool> ranks_attached_{false};
  std::atomic<bool> ranks_ready_{true};
  std::atomic<bool> ranks_have_state_{false};
  std::atomic<bool> left_{false};
  std::atomic<bool> failed_{false};
  membership::QuiesceFollower quiesce_;  // Owned by the watching thread.
  Session session_;
  const std::unique_ptr<MembershipService::Stub> stub_;
  SealedCaller calls_;
};

SchedulerClient::SchedulerClient(SchedulerLinkOptions options, OnEvent on_event)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(on_event))) {}
SchedulerClient::~SchedulerClient() = default;

void SchedulerClient::JoinJob(JoinSpec spec) { impl_->JoinJob(std::move(spec)); }

void SchedulerClient::ReportLostRank(Rank rank, std::string text) {
  impl_->ReportLost(
      [rank](scheduler::v1::ReportLostRequest& request) { request.set_rank(rank.value()); },
      std::move(text));
}

void SchedulerClient::ReportLostSelf(std::string text) { impl_->ReportLostSelf(std::move(text)); }

void SchedulerClient::ReportUnreachableAggregator(Incarnation aggregator, std::string text) {
  impl_->ReportLost(
      [aggregator](scheduler::v1::ReportLostRequest& request) {
        request.set_aggregator_incarnation(aggregator.value());
      },
      std::move(text));
}

void SchedulerClient::Quiesced(uint64_t id, uint64_t step) { impl_->Quiesced(id, step); }
void SchedulerClient::SetRanksAttached(bool attached) { impl_->SetRanksAttached(attached); }
void SchedulerClient::SetRanksReady(bool ready) { impl_->SetRanksReady(ready); }
void SchedulerClient::SetRanksHaveState(bool have_state) { impl_->SetRanksHaveState(have_state); }

absl::Status SchedulerClient::Leave(LeaveReason reason, std::string text, int64_t timeout_ns) {
  return impl_->Leave(reason, text, timeout_ns);
}

// -------------------------------------------------------------------------------------------------

class AggregatorRegistration::Impl : private Session::Peer {
 public:
  Impl(SchedulerLinkOptions options, OnEvent on_event)
      : options_(std::move(options)),
        on_event_(std::move(on_event)),
        session_(options_, this),
        stub_(PoolService::NewStub(session_.channel())),
        calls_(Daemon::kScheduler, options_.job_secret, session_.channel(), options_.address) {}
  ~Impl() { session_.Stop(); }

  void Register(view::ViewAggregator aggregator) {
    TALWEG_CHECK(!std::exchange(started_, true));
    aggregator_ = std::move(aggregator);
    session_.Start();
  }

  absl::StatusOr<uint32_t> Deregister(bool leave, const std::string& text, int64_t timeout_ns) {
    if (leave) left_ = true;
    scheduler::v1::DeregisterAggregatorResponse response;
    grpc::Status status;
    if (session_.entered()) {
      status = session_.CallNow(
          [&](grpc::ClientContext& context) {
            scheduler::v1::DeregisterAggregatorRequest request;
            request.set_incarnation(aggregator_.incarnation.value());
            request.set_session_secret(session_secret_);
            request.set_leave(leave);
            request.set_text(CleanUtf8(text));
            return Ask(kDeregister, &PoolService::Stub::DeregisterAggregator, context, request,
                       &response);
          },
          timeout_ns);
    }
    if (leave) session_.Stop();
    if (IsTransient(status)) return session_.Describe(status);
    return response.job_count();  // 0 if it is out already.
  }

 private:
  // Makes a call that has one answer.
  template <typename Request, typename Response>
  grpc::Status Ask(std::string_view name,
                   grpc::Status (PoolService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                   grpc::ClientContext& context, const Request& request, Response* response) {
    return calls_.Call(name, context, request, response,
                       [&] { return (stub_.get()->*method)(&context, request, response); });
  }

  grpc::Status Greet(grpc::ClientContext& context) override {
    if (const absl::Status address = CheckAddress("scheduler", options_.address); !address.ok()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(address.message()));
    }
    return calls_.Greet(context);
  }

  grpc::Status Enter(grpc::ClientContext& context) override {
    if (const grpc::Status problem = CheckText("name", aggregator_.name); !problem.ok()) {
      return problem;
    }
    scheduler::v1::RegisterAggregatorRequest request;
    *request.mutable_version() = ToProto(options_.version);
    *request.mutable_aggregator() = ToProto(aggregator_);
    request.set_session_secret(session_secret_);
    scheduler::v1::RegisterAggregatorResponse response;
    grpc::Status status =
        Ask(kRegister, &PoolService::Stub::RegisterAggregator, context, request, &response);
    if (status.ok()) status = CheckVersion(options_.version, response.version(), options_.address);
    if (!status.ok()) return status;
    const int64_t lease_ns = NsFromDuration(response.lease_duration());
    session_.SetLease(lease_ns);
    if (!std::exchange(registered_, true)) Tell(Registered{.lease_ns = lease_ns});
    return status;
  }

  grpc::Status Watch(grpc::ClientContext& context) override {
    scheduler::v1::WatchJobsRequest request;
    request.set_knows_standbys(true);
    request.set_takes_changes(true);
    told_.clear();
    *request.mutable_version() = ToProto(options_.version);
    request.set_incarnation(aggregator_.incarnation.value());
    request.set_session_secret(session_secret_);
    for (const auto& [job, epoch] : held_) {
      auto* held = request.add_held_jobs();
      held->set_job_id(job.value());
      held->set_epoch(epoch.value());
    }
    return calls_.Watch<scheduler::v1::WatchJobsRequest, scheduler::v1::WatchJobsResponse>(
        kWatchJobs, context, request, [this](const auto& response) { return OnMessage(response); },
        [&] { return stub_->WatchJobs(&context, request); });
  }

  grpc::Status OnMessage(const scheduler::v1::WatchJobsResponse& response) {
    switch (response.event_case()) {
      case scheduler::v1::WatchJobsResponse::kAttached: {
        const grpc::Status status =
            CheckVersion(options_.version, response.attached().version(), options_.address);
        if (!status.ok()) return status;
        session_.OnAttached(NsFromDuration(response.attached().lease_duration()));
        break;
      }
      case scheduler::v1::WatchJobsResponse::kJobView: {
        absl::StatusOr<view::View> view = FromProto(response.job_view().view());
        if (!view.ok()) {
          return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                              std::string(view.status().message()));
        }
        OnJobView({response.job_view().job_name(), *std::move(view)}, response.job_view().quota(),
                  response.job_view().gone());
        break;
      }
      case scheduler::v1::WatchJobsResponse::kJobViewChange: {
        const auto& change = response.job_view_change().change();
        const auto told = told_.find(JobId{change.view().job_id()});
        absl::StatusOr<view::View> view =
            told != told_.end()
                ? Changed(told->second.view, change)
                : absl::InvalidArgumentError("a change of a view comes before any view of its job");
        // A new stream begins with whole views.
        if (!view.ok()) {
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, std::string(view.status().message()));
        }
        OnJobView({told->second.job_name, *std::move(view)}, response.job_view_change().quota(),
                  response.job_view_change().gone());
        break;
      }
      case scheduler::v1::WatchJobsResponse::kJobQuota: {
        const JobId job{response.job_quota().job_id()};
        if (held_.contains(job)) {
          Tell(JobQuotaPublished{job, FromProto(response.job_quota().quota())});
        }
        break;
      }
      case scheduler::v1::WatchJobsResponse::kJobClosed: {
        const JobId job{response.job_closed().job_id()};
        told_.erase(job);
        if (held_.erase(job) > 0) Tell(JobClosed{job, response.job_closed().text()});
        break;
      }
      case scheduler::v1::WatchJobsResponse::EVENT_NOT_SET: break;  // From a newer minor version.
    }
    return grpc::Status::OK;
  }

  // A job, and its last view on this stream.
  struct Told {
    std::string job_name;
    view::View view;
  };

  void OnJobView(Told told, const scheduler::v1::JobQuota& quota,
                 const scheduler::v1::WatchJobsResponse::Gone& gone) {
    const JobId job = told.view.job;
    Epoch& held = held_[job];
    if (told.view.epoch > held) {
      held = told.view.epoch;
      Tell(JobViewPublished{told.job_name, told.view, FromProto(quota), FromProto(gone)});
    } else {
      // Delivered again after a break of the stream, because the quota may have changed meanwhile.
      Tell(JobQuotaPublished{job, FromProto(quota)});
    }
    told_.insert_or_assign(job, std::move(told));
  }

  grpc::Status Renew(grpc::ClientContext& context) override {
    scheduler::v1::RenewAggregatorRequest request;
    request.set_incarnation(aggregator_.incarnation.value());
    request.set_session_secret(session_secret_);
    scheduler::v1::RenewAggregatorResponse response;
    const grpc::Status status =
        Ask(kRenewAggregator, &PoolService::Stub::RenewAggregator, context, request, &response);
    if (status.ok()) session_.SetLease(NsFromDuration(response.lease_duration()));
    return status;
  }

  void OnRefused(const absl::Status& status) override { Pass(RegistrationRefused{status}); }
  void OnOut(const std::string& text) override { Pass(LeaseLost{text}); }
  void OnUnreachable(const std::string& text) override { Pass(Unreachable{text}); }
  void OnReachable(int64_t lease_ns) override { Pass(Reachable{.lease_ns = lease_ns}); }
  bool EntersAgain() const override { return true; }

  void Tell(AggregatorEvent event) {
    session_.Deliver([&] { Pass(std::move(event)); });
  }
  void Pass(AggregatorEvent event) {
    if (!left_) on_event_(std::move(event));
  }

  const SchedulerLinkOptions options_;
  const OnEvent on_event_;
  const std::string session_secret_ = NewSecret();
  bool started_ = false;
  bool registered_ = false;
  view::ViewAggregator aggregator_;
  std::atomic<bool> left_{false};
  // Owned by the watching thread.
  std::map<JobId, Epoch> held_;
  std::map<JobId, Told> told_;
  Session session_;
  const std::unique_ptr<PoolService::Stub> stub_;
  SealedCaller calls_;
};

AggregatorRegistration::AggregatorRegistration(SchedulerLinkOptions options, OnEvent on_event)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(on_event))) {}
AggregatorRegistration::~AggregatorRegistration() = default;

void AggregatorRegistration::Register(view::ViewAggregator aggregator) {
  impl_->Register(std::move(aggregator));
}

absl::StatusOr<uint32_t> AggregatorRegistration::Drain(std::string text, int64_t timeout_ns) {
  return impl_->Deregister(false, text, timeout_ns);
}

absl::Status AggregatorRegistration::Deregister(std::string text, int64_t timeout_ns) {
  return impl_->Deregister(true, text, timeout_ns).status();
}

}  // namespace talweg::rpc
