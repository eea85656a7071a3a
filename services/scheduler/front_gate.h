// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_FRONT_GATE_H_
#define TALWEG_SERVICES_SCHEDULER_FRONT_GATE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "libs/rpc/authorization.h"
#include "libs/rpc/call_gate_access.h"
#include "libs/rpc/credentials_access.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"
#include "services/scheduler/front.h"
#include "services/scheduler/scheduler_driver.h"

// What the scheduler's services share: they let calls in, and post them to the core thread.
// Includes gRPC's headers: for the services' sources only.
namespace talweg::scheduler {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

inline grpc::Status Ending() {
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
inline std::optional<rpc::Identity> ClaimOf(const v1::JoinRequest& request) {
  return rpc::Identity{rpc::Role::kNode, request.job_name()};
}
template <>
inline std::optional<rpc::Identity> ClaimOf(const v1::RegisterAggregatorRequest& request) {
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
inline bool Leaves(const v1::LeaveRequest&) {
  return true;
}
template <>
inline bool Leaves(const v1::DeregisterAggregatorRequest& request) {
  return request.leave();
}

// Returns whether an answer says that the caller is no member, or that it is not the one it names.
inline bool IsOut(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status) ||
         absl::IsPermissionDenied(status);
}

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
    if (const absl::Status allowed = MayClaim(*context, *request); !allowed.ok()) {
      reactor->Finish(ToGrpc(allowed));
      return reactor;
    }
    const bool posted = post_([=, this](SchedulerDriver& driver) {
      const absl::Status status = (driver.*method)(*request, response);
      NoteAnswer(context, *request, SecretOf(*request), status);
      reactor->Finish(ToGrpc(status));
    });
    if (!posted) reactor->Finish(Ending());
    return reactor;
  }

  // Returns whether the caller has the identity that its request claims.
  template <typename Request>
  absl::Status MayClaim(const grpc::CallbackServerContext& context, const Request& request) const {
    const std::optional<rpc::Identity> claim = ClaimOf(request);
    if (!claim) return absl::OkStatus();
    return rpc::MayActAs(*claim, rpc::CredentialsAccess::CallerOf(context, credentials_.get()));
  }

  // Counts the caller, which showed `secret`, as the answer says: by itself, or no more.
  template <typename Request>
  void NoteAnswer(const grpc::CallbackServerContext* context, const Request& request,
                  const std::string& secret, const absl::Status& status) {
    // OK: the core has compared the secret.
    if (status.ok() && !Leaves(request)) {
      rpc::CallGateAccess::Prove(calls_.get(), context, secret);
    } else if (calls_ != nullptr && (status.ok() || IsOut(status))) {
      calls_->Forget(secret);
    }
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

  // Makes a watch call's stream, of which the core has not heard yet.
  template <typename Response>
  std::pair<membership::StreamId, WatchReactor<Response>*> MakeReactor(
      grpc::CallbackServerContext* context) {
    const membership::StreamId id{++stream_count_};
    auto* reactor = new WatchReactor<Response>(
        context, [this, id] { post_([id](SchedulerDriver& driver) { driver.OnStreamSent(id); }); },
        [this, id, shown = rpc::CredentialsAccess::ShownBy(*context, credentials_.get())](
            const std::string& why_cut) {
          const std::string shut_out =
              why_cut.empty() ? rpc::CredentialsAccess::WhyEnded(shown, credentials_.get())
                              : why_cut;
          post_([id, shut_out](SchedulerDriver& driver) { driver.OnStreamBroken(id, shut_out); });
        });
    return {id, reactor};
  }

  template <typename Request, typename Response>
  grpc::ServerWriteReactor<Response>* Watch(
      grpc::CallbackServerContext* context, const Request* request,
      void (SchedulerDriver::*method)(membership::StreamId,
                                      const std::shared_ptr<Stream<Response>>&, const Request&)) {
    const auto [id, reactor] = MakeReactor<Response>(context);
    std::shared_ptr<WatchReactor<Response>> stream = reactor->self();
    const grpc::Status entered =
        rpc::CallGateAccess::Enter(calls_.get(), context, SecretOf(*request));
    if (!entered.ok()) {
      stream->End(absl::ResourceExhaustedError(entered.error_message()));
      return reactor;
    }
    // gRPC frees the request when the call ends, so copy it.
    const bool posted =
        post_([method, id = id, stream, request = *request](SchedulerDriver& driver) {
          (driver.*method)(id, stream, request);
        });
    if (!posted) stream->End(absl::UnavailableError("the scheduler is shutting down"));
    return reactor;
  }

  bool Post(std::function<void(SchedulerDriver&)> work) { return post_(std::move(work)); }
  rpc::CallGate* calls() const { return calls_.get(); }
  const rpc::Credentials* credentials() const { return credentials_.get(); }

 private:
  const Front::Post post_;
  const std::shared_ptr<const rpc::Credentials> credentials_;
  const std::shared_ptr<rpc::CallGate> calls_;
  std::atomic<uint64_t> stream_count_{0};
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_FRONT_GATE_H_
