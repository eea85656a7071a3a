// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/front.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "libs/rpc/authorization.h"
#include "libs/rpc/call_gate_access.h"
#include "libs/rpc/credentials_access.h"
#include "proto/talweg/scheduler/v1/admin.grpc.pb.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"

namespace talweg::scheduler {
namespace {

using membership::StreamId;

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

grpc::Status Ending() {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the scheduler is shutting down");
}

// One watch call. The core thread sends and ends; gRPC's threads report completion and
// cancellation. Lives until both have released it.
template <typename Response>
class WatchReactor final : public grpc::ServerWriteReactor<Response>, public Stream<Response> {
 public:
  // `on_sent` is called when the peer has taken a message. `on_broken` is called at most once, if
  // the call is over before the core ends the stream, with the reason of Cut or "".
  WatchReactor(grpc::CallbackServerContext* context, std::function<void()> on_sent,
               std::function<void(const std::string& why_cut)> on_broken)
      : context_(context),
        on_sent_(std::move(on_sent)),
        on_broken_(std::move(on_broken)),
        self_(this) {}

  std::shared_ptr<WatchReactor> self() { return self_; }

  void Send(Response response) override {
    const std::lock_guard lock(mutex_);
    if (finished_ || ending_) return;
    queue_.push_back(std::move(response));
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }

  void End(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    if (finished_ || ending_) return;
    ended_by_core_ = true;
    ending_ = ToGrpc(status);
    if (queue_.empty()) FinishLocked(*ending_);
  }

  // gRPC keeps what the peer has not taken until the call is over. Finish would wait for the peer.
  void Cut(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    why_cut_ = why;
    if (!done_) context_->TryCancel();
  }

  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.pop_front();
      if (finished_) return;
      if (!ok) {
        FinishLocked(grpc::Status::CANCELLED);
      } else if (!queue_.empty()) {
        this->StartWrite(&queue_.front());
      } else if (ending_) {
        FinishLocked(*ending_);
      }
      if (!ok) return;
    }
    on_sent_();
  }

  // The peer has cancelled, or its connection has broken.
  void OnCancel() override {
    {
      const std::lock_guard lock(mutex_);
      FinishLocked(grpc::Status::CANCELLED);
    }
    Broken();
  }

  void OnDone() override {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    Broken();
    self_.reset();
  }

 private:
  void FinishLocked(const grpc::Status& status) {
    if (std::exchange(finished_, true)) return;
    this->Finish(status);
  }

  void Broken() {
    std::string why_cut;
    {
      const std::lock_guard lock(mutex_);
      if (ended_by_core_ || std::exchange(broken_, true)) return;
      why_cut = why_cut_;
    }
    on_broken_(why_cut);
  }

  grpc::CallbackServerContext* const context_;  // gRPC's, until OnDone.
  const std::function<void()> on_sent_;
  const std::function<void(const std::string&)> on_broken_;
  std::mutex mutex_;
  std::deque<Response> queue_;  // The front is being written.
  std::string why_cut_;
  bool done_ = false;
  std::optional<grpc::Status> ending_;
  bool finished_ = false;
  bool ended_by_core_ = false;
  bool broken_ = false;
  std::shared_ptr<WatchReactor> self_;
};

// Returns the identity that a request claims, which must be its caller's. Other requests show the
// session secret of an agent or aggregator that one of these has let in.
template <typename Request>
std::optional<rpc::Identity> ClaimOf(const Request&) {
  return std::nullopt;
}
template <>
std::optional<rpc::Identity> ClaimOf(const v1::JoinRequest& request) {
  return rpc::Identity{rpc::Role::kNode, request.job_name()};
}
template <>
std::optional<rpc::Identity> ClaimOf(const v1::RegisterAggregatorRequest& request) {
  return rpc::Identity{rpc::Role::kAggregator, request.aggregator().name()};
}

// Returns the session secret that a request shows, or "" if it has none.
template <typename Request>
std::string SecretOf(const Request& request) {
  if constexpr (requires { request.session_secret(); }) return request.session_secret();
  return "";
}

// Returns whether a call that was answered well is its process's last one.
template <typename Request>
bool Leaves(const Request&) {
  return false;
}
template <>
bool Leaves(const v1::LeaveRequest&) {
  return true;
}
template <>
bool Leaves(const v1::DeregisterAggregatorRequest& request) {
  return request.leave();
}

// Returns whether an answer says that the caller is no member, or that it is not the one it names.
bool IsOut(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status) ||
         absl::IsPermissionDenied(status);
}

// Shared by the three services.
class Gate {
 public:
  Gate(Front::Post post, std::shared_ptr<const rpc::Credentials> credentials,
       std::shared_ptr<rpc::CallGate> calls)
      : post_(std::move(post)), credentials_(std::move(credentials)), calls_(std::move(calls)) {}

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Request* request,
                                   Response* response,
                                   absl::Status (SchedulerDriver::*method)(const Request&,
                                                                           Response*)) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const grpc::Status entered =
        rpc::CallGateAccess::Enter(calls_.get(), context, SecretOf(*request));
    if (!entered.ok()) {
      reactor->Finish(entered);
      return reactor;
    }
    if (const std::optional<rpc::Identity> claim = ClaimOf(*request)) {
      const absl::Status allowed =
          rpc::MayActAs(*claim, rpc::CredentialsAccess::CallerOf(*context, credentials_.get()));
      if (!allowed.ok()) {
        reactor->Finish(ToGrpc(allowed));
        return reactor;
      }
    }
    const bool posted = post_([=, this](SchedulerDriver& driver) {
      const absl::Status status = (driver.*method)(*request, response);
      // OK: the core has compared the secret.
      if (status.ok() && !Leaves(*request)) {
        rpc::CallGateAccess::Prove(calls_.get(), context, SecretOf(*request));
      } else if (calls_ != nullptr && (status.ok() || IsOut(status))) {
        calls_->Forget(SecretOf(*request));
      }
      reactor->Finish(ToGrpc(status));
    });
    if (!posted) reactor->Finish(Ending());
    return reactor;
  }

  // Like Answer, for an AdminService.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Show(grpc::CallbackServerContext* context, const Request* request,
                                 Response* response,
                                 absl::Status (SchedulerDriver::*method)(const Request&,
                                                                         Response*)) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto entered = rpc::CallGateAccess::EnterQuestion(calls_.get(), context);
    if (!entered.ok()) {
      reactor->Finish(ToGrpc(entered.status()));
      return reactor;
    }
    const bool posted = post_([=, question = *std::move(entered)](SchedulerDriver& driver) {
      const absl::Status status = (driver.*method)(*request, response);
      if (question != nullptr) question->Charge(response->ByteSizeLong());
      reactor->Finish(ToGrpc(status));
    });
    if (!posted) reactor->Finish(Ending());
    return reactor;
  }

  template <typename Request, typename Response>
  grpc::ServerWriteReactor<Response>* Watch(
      grpc::CallbackServerContext* context, const Request* request,
      void (SchedulerDriver::*method)(StreamId, const std::shared_ptr<Stream<Response>>&,
                                      const Request&)) {
    const StreamId id{++stream_count_};
    auto* reactor = new WatchReactor<Response>(
        context, [this, id] { post_([id](SchedulerDriver& driver) { driver.OnStreamSent(id); }); },
        [this, id, shown = rpc::CredentialsAccess::ShownBy(*context, credentials_.get())](
            const std::string& why_cut) {
          const std::string shut_out =
              why_cut.empty() ? rpc::CredentialsAccess::WhyEnded(shown, credentials_.get())
                              : why_cut;
          post_([id, shut_out](SchedulerDriver& driver) { driver.OnStreamBroken(id, shut_out); });
        });
    std::shared_ptr<WatchReactor<Response>> stream = reactor->self();
    const grpc::Status entered =
        rpc::CallGateAccess::Enter(calls_.get(), context, SecretOf(*request));
    if (!entered.ok()) {
      stream->End(absl::ResourceExhaustedError(entered.error_message()));
      return reactor;
    }
    // gRPC frees the request when the call ends, so copy it.
    const bool posted = post_([method, id, stream, request = *request](SchedulerDriver& driver) {
      (driver.*method)(id, stream, request);
    });
    if (!posted) stream->End(absl::UnavailableError("the scheduler is shutting down"));
    return reactor;
  }

 private:
  const Front::Post post_;
  const std::shared_ptr<const rpc::Credentials> credentials_;
  const std::shared_ptr<rpc::CallGate> calls_;
  std::atomic<uint64_t> stream_count_{0};
};

class MembershipService final : public v1::MembershipService::CallbackService {
 public:
  explicit MembershipService(Gate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::Join);
  }
  grpc::ServerUnaryReactor* RenewLease(grpc::CallbackServerContext* context,
                                       const v1::RenewLeaseRequest* request,
                                       v1::RenewLeaseResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::RenewLease);
  }
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::Leave);
  }
  grpc::ServerUnaryReactor* ReportLost(grpc::CallbackServerContext* context,
                                       const v1::ReportLostRequest* request,
                                       v1::ReportLostResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::ReportLost);
  }
  grpc::ServerUnaryReactor* Quiesced(grpc::CallbackServerContext* context,
                                     const v1::QuiescedRequest* request,
                                     v1::QuiescedResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::Quiesced);
  }
  grpc::ServerWriteReactor<v1::WatchViewsResponse>* WatchViews(
      grpc::CallbackServerContext* context, const v1::WatchViewsRequest* request) override {
    return gate_->Watch(context, request, &SchedulerDriver::WatchViews);
  }

 private:
  Gate* const gate_;
};

class PoolService final : public v1::PoolService::CallbackService {
 public:
  explicit PoolService(Gate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* RegisterAggregator(grpc::CallbackServerContext* context,
                                               const v1::RegisterAggregatorRequest* request,
                                               v1::RegisterAggregatorResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::RegisterAggregator);
  }
  grpc::ServerUnaryReactor* RenewAggregator(grpc::CallbackServerContext* context,
                                            const v1::RenewAggregatorRequest* request,
                                            v1::RenewAggregatorResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::RenewAggregator);
  }
  grpc::ServerUnaryReactor* DeregisterAggregator(
      grpc::CallbackServerContext* context, const v1::DeregisterAggregatorRequest* request,
      v1::DeregisterAggregatorResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::DeregisterAggregator);
  }
  grpc::ServerWriteReactor<v1::WatchJobsResponse>* WatchJobs(
      grpc::CallbackServerContext* context, const v1::WatchJobsRequest* request) override {
    return gate_->Watch(context, request, &SchedulerDriver::WatchJobs);
  }

 private:
  Gate* const gate_;
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(Gate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::ListJobs);
  }
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::GetJob);
  }
  grpc::ServerUnaryReactor* ListAggregators(grpc::CallbackServerContext* context,
                                            const v1::ListAggregatorsRequest* request,
                                            v1::ListAggregatorsResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::ListAggregators);
  }
  grpc::ServerUnaryReactor* GetScheduler(grpc::CallbackServerContext* context,
                                         const v1::GetSchedulerRequest* request,
                                         v1::GetSchedulerResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::GetScheduler);
  }
  grpc::ServerUnaryReactor* LowerBeginMembers(grpc::CallbackServerContext* context,
                                              const v1::LowerBeginMembersRequest* request,
                                              v1::LowerBeginMembersResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::LowerBeginMembers);
  }

 private:
  Gate* const gate_;
};

class GrpcFront final : public Front {
 public:
  GrpcFront(Post post, std::shared_ptr<const rpc::Credentials> credentials,
            std::shared_ptr<rpc::CallGate> calls)
      : gate_(std::move(post), std::move(credentials), std::move(calls)),
        membership_(&gate_),
        pool_(&gate_),
        admin_(&gate_) {}

  std::vector<grpc::Service*> services() override { return {&membership_, &pool_, &admin_}; }

 private:
  Gate gate_;
  MembershipService membership_;
  PoolService pool_;
  AdminService admin_;
};

}  // namespace

std::unique_ptr<Front> MakeFront(Front::Post post,
                                 std::shared_ptr<const rpc::Credentials> credentials,
                                 std::shared_ptr<rpc::CallGate> gate) {
  return std::make_unique<GrpcFront>(std::move(post), std::move(credentials), std::move(gate));
}

}  // namespace talweg::scheduler
