// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/scheduler_driver.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "libs/base/counted.h"
#include "libs/membership/perform.h"
#include "libs/rpc/authorization.h"
#include "libs/rpc/conversion.h"
#include "libs/rpc/secret.h"
#include "libs/runtime/clock.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "libs/transport/proof/data_key.h"
#include "services/scheduler/admin.h"

namespace talweg::scheduler {
namespace {

using membership::Answer;
using membership::Code;
using membership::Effect;
using membership::SchedulerCore;
using rpc::FromProto;
using rpc::ToProto;

// The calls that ask for the job secret, as libs/rpc/authorization.cc names them.
constexpr std::string_view kJoin = "/talweg.scheduler.v1.MembershipService/Join";
constexpr std::string_view kRegister = "/talweg.scheduler.v1.PoolService/RegisterAggregator";
constexpr std::string_view kLower = "/talweg.scheduler.v1.AdminService/LowerBeginMembers";

absl::StatusCode CodeOf(Code code) {
  switch (code) {
    case Code::kOk: return absl::StatusCode::kOk;
    case Code::kInvalid: return absl::StatusCode::kInvalidArgument;
    case Code::kUnknown: return absl::StatusCode::kNotFound;
    case Code::kHeld: return absl::StatusCode::kAlreadyExists;
    case Code::kRefused: return absl::StatusCode::kFailedPrecondition;
    case Code::kFull: return absl::StatusCode::kResourceExhausted;
    case Code::kNotYet: return absl::StatusCode::kAborted;
    case Code::kUnproven: return absl::StatusCode::kPermissionDenied;
    case Code::kReplaced: return absl::StatusCode::kAborted;
  }
  return absl::StatusCode::kInternal;
}

template <typename Request>
membership::Caller CallerOf(const Request& request) {
  return {.job = JobId{request.job_id()},
          .id = FromProto(request.id()),
          .held = Epoch{request.epoch()},
          .secret = rpc::HashOf(request.session_secret())};
}

template <typename Request>
membership::RanksWord RanksWordOf(const Request& request) {
  membership::RanksWord ranks;
  if (request.has_ranks_attached()) ranks.attached = request.ranks_attached();
  if (request.has_ranks_ready()) ranks.ready = request.ranks_ready();
  if (request.has_ranks_have_state()) ranks.have_state = request.ranks_have_state();
  return ranks;
}

template <typename Request>
membership::PoolCaller PoolCallerOf(const Request& request) {
  return {.incarnation = Incarnation{request.incarnation()},
          .secret = rpc::HashOf(request.session_secret())};
}

}  // namespace

SchedulerDriver::SchedulerDriver(const membership::Config& config, const rpc::Version& version,
                                 std::unique_ptr<store::Store> store, const runtime::Clock* clock,
                                 std::function<void(const absl::Status&)> on_failure)
    : config_(config),
      version_(version),
      store_(std::move(store)),
      clock_(clock),
      on_failure_(std::move(on_failure)),
      watches_({.lease_ns = config.lease_ns}, version),
      started_ns_(clock->NowNs()),
      started_unix_ns_(runtime::UnixNowNs()) {}

absl::Status SchedulerDriver::Open() {
  TALWEG_ASSIGN_OR_RETURN(const membership::Snapshot snapshot, store_->Load());
  std::vector<Effect> effects;
  membership::Config config = config_;
  config.start_unix_ns = started_unix_ns_;
  membership_.emplace(config, snapshot, clock_->NowNs(), effects);
  return Perform(effects);
}

// Effects -----------------------------------------------------------------------------------------

template <typename Event>
absl::Status SchedulerDriver::Do(const Event& event) {
  if (!failed_.ok())
    return absl::UnavailableError("the scheduler stops: " + status::StatusText(failed_));
  std::vector<Effect> effects;
  event(*membership_, clock_->NowNs(), effects);
  return Perform(effects);
}

class SchedulerDriver::Performer final : public membership::EffectSink {
 public:
  explicit Performer(SchedulerDriver* driver) : driver_(driver) {}

  bool Store(const membership::StoreWrite& write) override {
    status_ = driver_->Persist(write);
    return status_.ok();
  }
  void Tell(const membership::TellMember& told) override {
    driver_->watches_.Tell(told, driver_->clock_->NowNs());
  }
  void Tell(const membership::TellAggregator& told) override {
    driver_->watches_.Tell(told, driver_->clock_->NowNs());
  }
  void Close(const membership::CloseStream& closed) override {
    driver_->watches_.Close(closed.stream, absl::Status(CodeOf(closed.why.code), closed.why.text),
                            driver_->clock_->NowNs());
  }
  void Say(const membership::Note& note) override {
    telemetry::Log(telemetry::LogLevel::kInfo, note.text);
  }

  const absl::Status& status() const { return status_; }

 private:
  SchedulerDriver* const driver_;
  absl::Status status_;
};

absl::Status SchedulerDriver::Perform(const std::vector<Effect>& effects) {
  Performer performer(this);
  membership::Perform(effects, performer);
  return performer.status();
}

absl::Status SchedulerDriver::Persist(const membership::StoreWrite& write) {
  const int64_t begin_ns = clock_->NowNs();
  const absl::Status status = store_->Write(write);
  store_write_max_ns_ = std::max(store_write_max_ns_, clock_->NowNs() - begin_ns);
  ++store_write_count_;
  if (status.ok()) return status;
  // The core has decided something that is not stored. A restart would not know it, so the
  // scheduler stops instead of announcing it.
  failed_ = status;
  on_failure_(status);
  return absl::UnavailableError("the scheduler stops: " + status::StatusText(status));
}

void SchedulerDriver::EndStreams(const absl::Status& status) { watches_.EndAll(status); }

absl::Status SchedulerDriver::ToStatus(const Answer& answer) {
  if (answer.ok()) return absl::OkStatus();
  const absl::Status status(CodeOf(answer.code), answer.text);
  ++refused_by_code_[absl::StatusCodeToString(status.code())];
  return status;
}

absl::Status SchedulerDriver::CheckVersion(const v1::ProtocolVersion& theirs,
                                           const std::string& who) {
  const std::string problem = rpc::VersionProblem(version_, FromProto(theirs), who);
  if (problem.empty()) return absl::OkStatus();
  refusals_.Write(clock_->NowNs(), telemetry::LogLevel::kWarning, "refused: ", problem);
  return ToStatus({Code::kRefused, "the scheduler refuses: " + problem});
}

void SchedulerDriver::SetJobSecret(const std::string& secret) {
  job_secret_ = rpc::HashOfSecret(secret);
}

absl::Status SchedulerDriver::CheckJobSecret(std::string_view method, const std::string& shown,
                                             const std::string& who) {
  const absl::Status checked = rpc::CheckJobSecret(
      {.method = method, .daemon = "scheduler", .caller = who}, job_secret_, shown);
  if (checked.ok()) return checked;
  refusals_.Write(clock_->NowNs(), telemetry::LogLevel::kWarning, "refused: ", who, " shows ",
                  shown.empty() ? "no" : "another", " job secret");
  return ToStatus({Code::kUnproven, std::string(checked.message())});
}

template <typename Request>
absl::Status SchedulerDriver::CheckSecrets(std::string_view method, const Request& request,
                                           const std::string& who) {
  TALWEG_RETURN_IF_ERROR(CheckJobSecret(method, request.job_secret(), who));
  const std::string& session = request.session_secret();
  if (session.size() == rpc::kSecretBytes) return absl::OkStatus();
  return ToStatus({Code::kInvalid, "session_secret of " + who + " has " +
                                       Counted(session.size(), "byte") + "; draw " +
                                       std::to_string(rpc::kSecretBytes) + " at random"});
}

absl::Status SchedulerDriver::CheckDataSecurity(const std::string& shown, const std::string& who) {
  if (data_security_ == "any" || shown.empty() || shown == data_security_) return absl::OkStatus();
  return ToStatus(
      {Code::kRefused, who + " runs with data_security=" + shown +
                           ", and this scheduler lets in data_security=" + data_security_ +
                           " alone; give all daemons the same --data_security"});
}

google::protobuf::Duration SchedulerDriver::Lease() const {
  return rpc::DurationFromNs(config_.lease_ns);
}

// Members -----------------------------------------------------------------------------------------

absl::Status SchedulerDriver::Join(const v1::JoinRequest& request, v1::JoinResponse* response) {
  const std::string who = "the agent of node " + std::to_string(request.id().node_rank());
  TALWEG_RETURN_IF_ERROR(CheckVersion(request.version(), who));
  TALWEG_RETURN_IF_ERROR(CheckSecrets(kJoin, request, who));
  TALWEG_RETURN_IF_ERROR(CheckDataSecurity(request.data_security(), who));
  const absl::StatusOr<membership::JobSpec> spec = FromProto(request.spec());
  if (!spec.ok()) return ToStatus({Code::kInvalid, std::string(spec.status().message())});
  const membership::JoinRequest join{.job_name = request.job_name(),
                                     .spec = *spec,
                                     .member = {.id = FromProto(request.id()),
                                                .rank_count = request.rank_count(),
                                                .name = request.name(),
                                                .admin_address = request.admin_address(),
                                                .host_id = request.host_id()},
                                     .secret = rpc::HashOf(request.session_secret()),
                                     .unix_ns = runtime::UnixNowNs(),
                                     .not_after_finish = request.not_after_finish()};
  membership::JoinAnswer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnJoin(join, now_ns, out);
  }));
  TALWEG_RETURN_IF_ERROR(ToStatus(answer.answer));
  *response->mutable_version() = ToProto(version_);
  response->set_job_id(answer.job.value());
  *response->mutable_lease_duration() = Lease();
  response->set_state(static_cast<v1::JobState>(answer.state));
  return absl::OkStatus();
}

absl::Status SchedulerDriver::RenewLease(const v1::RenewLeaseRequest& request,
                                         v1::RenewLeaseResponse* response) {
  Answer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnRenew(CallerOf(request), RanksWordOf(request), now_ns, out);
  }));
  *response->mutable_lease_duration() = Lease();
  return ToStatus(answer);
}

absl::Status SchedulerDriver::Leave(const v1::LeaveRequest& request, v1::LeaveResponse*) {
  if (request.reason() != v1::LEAVE_REASON_FINISHED &&
      request.reason() != v1::LEAVE_REASON_STOPPED) {
    return ToStatus({Code::kInvalid, "reason is " + std::to_string(request.reason()) +
                                         "; it must be LEAVE_REASON_FINISHED or "
                                         "LEAVE_REASON_STOPPED"});
  }
  Answer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnLeave(CallerOf(request),
                          request.reason() == v1::LEAVE_REASON_FINISHED
                              ? membership::LeaveReason::kFinished
                              : membership::LeaveReason::kStopped,
                          request.text(), now_ns, out);
  }));
  return ToStatus(answer);
}

absl::Status SchedulerDriver::ReportLost(const v1::ReportLostRequest& request,
                                         v1::ReportLostResponse*) {
  membership::Lost lost;
  switch (request.lost_case()) {
    case v1::ReportLostRequest::kRank: lost = membership::LostRank{Rank{request.rank()}}; break;
    case v1::ReportLostRequest::kMember:
      lost = membership::LostMember{FromProto(request.member())};
      break;
    case v1::ReportLostRequest::kAggregatorIncarnation:
      lost = membership::LostAggregator{Incarnation{request.aggregator_incarnation()}};
      break;
    case v1::ReportLostRequest::LOST_NOT_SET:
      return ToStatus({Code::kInvalid, "lost is not set: say what has been lost"});
  }
  Answer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnReportLost(CallerOf(request), lost, request.text(), now_ns, out);
  }));
  return ToStatus(answer);
}

absl::Status SchedulerDriver::Quiesced(const v1::QuiescedRequest& request, v1::QuiescedResponse*) {
  Answer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnQuiesced(CallerOf(request), membership::QuiesceId{request.quiesce_id()},
                             request.step(), now_ns, out);
  }));
  return ToStatus(answer);
}

void SchedulerDriver::WatchViews(membership::StreamId id,
                                 const std::shared_ptr<MemberStream>& stream,
                                 const v1::WatchViewsRequest& request) {
  absl::Status status = CheckVersion(
      request.version(), "the agent of node " + std::to_string(request.id().node_rank()));
  if (!status.ok()) return stream->End(status);
  watches_.Open(id, stream,
                {.member = FromProto(request.id()),
                 .takes_changes = request.takes_changes(),
                 .takes_aggregator_changes = request.takes_aggregator_changes()},
                request.job_id());
  Answer answer;
  status = Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnMemberAttached(id, CallerOf(request), RanksWordOf(request), now_ns, out);
  });
  if (status.ok()) status = ToStatus(answer);
  if (!status.ok()) watches_.Close(id, status, clock_->NowNs());
}

// Aggregators -------------------------------------------------------------------------------------

absl::Status SchedulerDriver::RegisterAggregator(const v1::RegisterAggregatorRequest& request,
                                                 v1::RegisterAggregatorResponse* response) {
  const std::string who = "aggregator " + request.aggregator().name();
  TALWEG_RETURN_IF_ERROR(CheckVersion(request.version(), who));
  TALWEG_RETURN_IF_ERROR(CheckSecrets(kRegister, request, who));
  TALWEG_RETURN_IF_ERROR(
      CheckDataSecurity(transport::SecurityOf(request.aggregator().data_address()), who));
  Answer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnRegister(FromProto(request.aggregator()), rpc::HashOf(request.session_secret()),
                             now_ns, out);
  }));
  *response->mutable_version() = ToProto(version_);
  *response->mutable_lease_duration() = Lease();
  return ToStatus(answer);
}

absl::Status SchedulerDriver::RenewAggregator(const v1::RenewAggregatorRequest& request,
                                              v1::RenewAggregatorResponse* response) {
  Answer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnRenewAggregator(PoolCallerOf(request), now_ns, out);
  }));
  *response->mutable_lease_duration() = Lease();
  return ToStatus(answer);
}

absl::Status SchedulerDriver::DeregisterAggregator(const v1::DeregisterAggregatorRequest& request,
                                                   v1::DeregisterAggregatorResponse* response) {
  membership::DeregisterAnswer answer;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnDeregister(PoolCallerOf(request), request.leave(), request.text(), now_ns, out);
  }));
  response->set_job_count(answer.job_count);
  return ToStatus(answer.answer);
}

void SchedulerDriver::WatchJobs(membership::StreamId id,
                                const std::shared_ptr<AggregatorStream>& stream,
                                const v1::WatchJobsRequest& request) {
  absl::Status status = CheckVersion(request.version(), "an aggregator");
  if (!status.ok()) return stream->End(status);
  std::vector<membership::HeldJob> held;
  for (const auto& job : request.held_jobs()) {
    held.push_back({JobId{job.job_id()}, Epoch{job.epoch()}});
  }
  watches_.Open(id, stream, {.takes_changes = request.takes_changes()});
  Answer answer;
  status = Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnAggregatorAttached(id, PoolCallerOf(request), held, now_ns, out,
                                       request.knows_standbys());
  });
  if (status.ok()) status = ToStatus(answer);
  if (!status.ok()) watches_.Close(id, status, clock_->NowNs());
}

void SchedulerDriver::OnStreamBroken(membership::StreamId id, const std::string& shut_out) {
  watches_.Forget(id, clock_->NowNs());
  // on_failure_ has reported a failure.
  Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    core.OnStreamBroken(id, now_ns, out, shut_out);
  }).IgnoreError();
}

void SchedulerDriver::SetQuotas(membership::Quotas quotas) {
  Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    core.OnQuotas(std::move(quotas), now_ns, out);
  }).IgnoreError();
}

void SchedulerDriver::OnTick() {
  watches_.OnTick(clock_->NowNs());
  Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    core.OnTick(now_ns, out);
  }).IgnoreError();
}

// People ------------------------------------------------------------------------------------------

absl::Status SchedulerDriver::ListJobs(const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
  for (const auto& [id, job] : membership_->jobs()) {
    *response->add_jobs() = SummaryOf(*membership_, job);
  }
  FillWaiting(*membership_, clock_->NowNs(), response);
  return absl::OkStatus();
}

absl::Status SchedulerDriver::GetJob(const v1::GetJobRequest& request,
                                     v1::GetJobResponse* response) {
  if (request.job_case() == v1::GetJobRequest::JOB_NOT_SET) {
    return absl::InvalidArgumentError("job is not set: give job_id or name");
  }
  const membership::LiveJob* found = nullptr;
  std::string names;
  for (const auto& [id, job] : membership_->jobs()) {
    const bool match =
        request.has_name() ? job.name == request.name() : id == JobId{request.job_id()};
    if (match) found = &job;
    names += (names.empty() ? "" : ", ") + ("'" + job.name + "'") + " (" +
             std::to_string(id.value()) + ")";
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        "there is no job " +
        (request.has_name() ? "'" + request.name() + "'" : std::to_string(request.job_id())) +
        "; there " + (names.empty() ? "are none" : "are " + names));
  }
  *response = DetailsOf(*membership_, *found, clock_->NowNs());
  return absl::OkStatus();
}

absl::Status SchedulerDriver::ListAggregators(const v1::ListAggregatorsRequest&,
                                              v1::ListAggregatorsResponse* response) {
  *response = AggregatorsOf(*membership_, clock_->NowNs());
  return absl::OkStatus();
}

absl::Status SchedulerDriver::LowerBeginMembers(const v1::LowerBeginMembersRequest& request,
                                                v1::LowerBeginMembersResponse* response) {
  TALWEG_RETURN_IF_ERROR(CheckJobSecret(kLower, request.job_secret(), "a launcher"));
  if (request.begin_members() == 0) {
    return ToStatus({Code::kInvalid, "begin_members is 0; say with how many the job may begin"});
  }
  Answer answer;
  bool has_begun = false;
  TALWEG_RETURN_IF_ERROR(Do([&](SchedulerCore& core, int64_t now_ns, std::vector<Effect>& out) {
    answer = core.OnLowerBeginMembers(request.job_name(), request.begin_members(), has_begun,
                                      now_ns, out);
  }));
  response->set_has_begun(has_begun);
  return ToStatus(answer);
}

absl::Status SchedulerDriver::GetScheduler(const v1::GetSchedulerRequest&,
                                           v1::GetSchedulerResponse* response) {
  *response->mutable_version() = ToProto(version_);
  *response->mutable_started_at() = rpc::TimestampFromUnixNs(started_unix_ns_);
  *response->mutable_uptime() = rpc::DurationFromNs(clock_->NowNs() - started_ns_);
  response->set_store(store_->name());
  response->set_start_count(membership_->start_count());
  *response->mutable_lease_duration() = Lease();
  response->set_store_write_count(store_write_count_);
  *response->mutable_store_write_max() = rpc::DurationFromNs(store_write_max_ns_);
  for (const auto& [code, count] : refused_by_code_) {
    (*response->mutable_refused_by_code())[code] = count;
  }
  response->set_address(address_);
  response->set_pid(static_cast<uint64_t>(getpid()));
  return absl::OkStatus();
}

}  // namespace talweg::scheduler
