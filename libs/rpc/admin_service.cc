// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/admin_service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "libs/rpc/authorization.h"
#include "libs/rpc/call_gate_access.h"
#include "libs/rpc/credentials_access.h"
#include "libs/rpc/sealed_door.h"
#include "proto/talweg/agent/v1/agent.grpc.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.grpc.pb.h"
#include "proto/talweg/scheduler/v1/sealed.grpc.pb.h"

namespace talweg::rpc {
namespace {

// The most answers of GetTrace at a time.
constexpr int kTracesMax = 2;

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// Decides whether a question is let in, and counts it.
using Entered = absl::StatusOr<std::shared_ptr<CallGate::Question>>;

template <typename Response>
void Charge(const std::shared_ptr<CallGate::Question>& question,
            const absl::StatusOr<Response>& result) {
  if (question != nullptr && result.ok()) question->Charge(result->ByteSizeLong());
}

// A call that another thread answers later. It ends when it is answered or cancelled, whichever is
// first. The reactor lives until gRPC and the answering side have both released it.
template <typename Response>
class UnaryAnswer : public grpc::ServerUnaryReactor {
 public:
  static UnaryAnswer* Start(Response* response, Entered entered,
                            const std::function<void(Done<Response>)>& ask) {
    auto* answer = new UnaryAnswer(response);
    if (!entered.ok()) {
      answer->Give(entered.status());
      return answer;
    }
    ask([self = answer->self_, question = *std::move(entered)](absl::StatusOr<Response> result) {
      Charge(question, result);
      self->Give(std::move(result));
    });
    return answer;
  }

  void OnCancel() override {
    if (!given_.exchange(true)) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { self_.reset(); }

 private:
  explicit UnaryAnswer(Response* response) : response_(response), self_(this) {}

  void Give(absl::StatusOr<Response> result) {
    if (given_.exchange(true)) return;
    if (result.ok()) *response_ = *std::move(result);
    Finish(ToGrpc(result.status()));
  }

  Response* const response_;  // gRPC's, until Finish.
  std::atomic<bool> given_{false};
  std::shared_ptr<UnaryAnswer> self_;
};

template <typename Request, typename Response>
void Hand(const Handler<Request, Response>& handler, const Request& request, Done<Response> done) {
  if (handler) {
    handler(request, std::move(done));
  } else {
    done(absl::UnimplementedError("this daemon does not answer this call"));
  }
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Ask(CallGate* gate, grpc::CallbackServerContext* context,
                              const Handler<Request, Response>& handler, const Request* request,
                              Response* response) {
  return UnaryAnswer<Response>::Start(
      response, CallGateAccess::EnterQuestion(gate, context),
      [&](Done<Response> done) { Hand(handler, *request, std::move(done)); });
}

// Answers of GetTrace that are under way.
class Traces {
 public:
  // Returns false if there are too many.
  bool Begin() {
    if (++count_ <= kTracesMax) return true;
    --count_;
    return false;
  }
  void End() { --count_; }

 private:
  std::atomic<int> count_{0};
};

// Sends a recorded timeline piece by piece. Asks for the next piece when the client has read this
// one. A client that does not read a piece in time loses its place among those that may read.
class TraceAnswer : public grpc::ServerWriteReactor<agent::v1::GetTraceResponse> {
 public:
  using AskForPiece = std::function<void(const TraceRange&, Done<TracePiece>)>;

  static TraceAnswer* Start(std::shared_ptr<Traces> traces, int64_t piece_ns, Entered entered,
                            AskForPiece ask) {
    auto* answer = new TraceAnswer(std::move(traces), piece_ns, std::move(ask));
    if (!entered.ok()) {
      answer->FinishOnce(entered.status());
    } else if (!answer->is_counted_) {
      answer->FinishOnce(absl::ResourceExhaustedError(
          std::to_string(kTracesMax) +
          " timelines of this agent are being read, which is as many as may be at a time; ask "
          "again when one is done"));
    } else {
      answer->question_ = *std::move(entered);
      answer->AskForNext();
    }
    return answer;
  }

  void OnCancel() override {
    if (is_asking_.exchange(false)) FinishOnce(absl::CancelledError());
  }
  void OnWriteDone(bool ok) override {
    deadline_.reset();
    if (!ok) {
      FinishOnce(absl::CancelledError());
    } else if (piece_.rest.IsRead()) {
      FinishOnce(absl::OkStatus());
    } else if (!finished_) {
      AskForNext();
    }
  }
  void OnDone() override {
    Uncount();
    deadline_.reset();
    self_.reset();
  }

 private:
  TraceAnswer(std::shared_ptr<Traces> traces, int64_t piece_ns, AskForPiece ask)
      : traces_(std::move(traces)),
        piece_ns_(piece_ns),
        is_counted_(traces_->Begin()),
        ask_(std::move(ask)),
        self_(this) {}

  void AskForNext() {
    is_asking_ = true;
    ask_(piece_.rest,
         [self = self_](absl::StatusOr<TracePiece> piece) { self->Give(std::move(piece)); });
  }

  void Give(absl::StatusOr<TracePiece> piece) {
    if (!is_asking_.exchange(false)) return;
    if (!piece.ok()) return FinishOnce(piece.status());
    piece_ = *std::move(piece);
    if (question_ != nullptr) question_->Charge(piece_.events.ByteSizeLong());
    deadline_ = std::make_unique<grpc::Alarm>();
    deadline_->Set(std::chrono::system_clock::now() + std::chrono::nanoseconds(piece_ns_),
                   [self = self_](bool is_over) {
                     if (is_over) self->OnLate();
                   });
    StartWrite(&piece_.events);
  }

  // gRPC keeps the piece until the client reads it or is gone. So the call stays one of the
  // questions of its peer (`question_`), and no longer keeps others from asking.
  void OnLate() {
    Uncount();
    FinishOnce(absl::DeadlineExceededError(
        "a piece of the timeline was not read within " + std::to_string(piece_ns_ / 1'000'000) +
        " ms, and others may wait to read it; ask again, and read the answer as it comes"));
  }

  void Uncount() {
    if (is_counted_.exchange(false)) traces_->End();
  }
  void FinishOnce(const absl::Status& status) {
    if (!finished_.exchange(true)) Finish(ToGrpc(status));
  }

  const std::shared_ptr<Traces> traces_;
  const int64_t piece_ns_;
  std::atomic<bool> is_counted_;
  const AskForPiece ask_;
  std::shared_ptr<CallGate::Question> question_;
  // A piece is being made. The answer or the client's cancellation ends that, and goes on.
  std::atomic<bool> is_asking_{false};
  std::atomic<bool> finished_{false};
  TracePiece piece_;
  std::unique_ptr<grpc::Alarm> deadline_;  // For the piece that is being sent.
  std::shared_ptr<TraceAnswer> self_;
};

class AgentAdminService final : public agent::v1::AdminService::CallbackService,
                                public ServiceHolder {
 public:
  AgentAdminService(AgentAdminHandlers handlers, std::shared_ptr<CallGate> gate,
                    int64_t trace_piece_ns)
      : handlers_(std::move(handlers)), gate_(std::move(gate)), trace_piece_ns_(trace_piece_ns) {}
  grpc::Service* service() override { return this; }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const agent::v1::GetStatusRequest* request,
                                      agent::v1::GetStatusResponse* response) override {
    return Ask(gate_.get(), context, handlers_.get_status, request, response);
  }
  grpc::ServerUnaryReactor* SetTrace(grpc::CallbackServerContext* context,
                                     const agent::v1::SetTraceRequest* request,
                                     agent::v1::SetTraceResponse* response) override {
    return Ask(gate_.get(), context, handlers_.set_trace, request, response);
  }
  grpc::ServerWriteReactor<agent::v1::GetTraceResponse>* GetTrace(
      grpc::CallbackServerContext* context, const agent::v1::GetTraceRequest*) override {
    return TraceAnswer::Start(traces_, trace_piece_ns_,
                              CallGateAccess::EnterQuestion(gate_.get(), context),
                              [this](const TraceRange& range, Done<TracePiece> done) {
                                Hand(handlers_.get_trace, range, std::move(done));
                              });
  }

 private:
  const AgentAdminHandlers handlers_;
  const std::shared_ptr<CallGate> gate_;
  const int64_t trace_piece_ns_;
  const std::shared_ptr<Traces> traces_ = std::make_shared<Traces>();
};

class AgentSealedService final : public scheduler::v1::SealedService::CallbackService,
                                 public ServiceHolder {
 public:
  using SetTrace = Handler<agent::v1::SetTraceRequest, agent::v1::SetTraceResponse>;

  AgentSealedService(SetTrace set_trace, std::string job_secret,
                     std::shared_ptr<const Credentials> credentials, std::shared_ptr<CallGate> gate)
      : set_trace_(std::move(set_trace)),
        credentials_(std::move(credentials)),
        gate_(std::move(gate)),
        door_(Daemon::kAgent, std::move(job_secret)) {}
  grpc::Service* service() override { return this; }

  grpc::ServerUnaryReactor* Greet(grpc::CallbackServerContext* context,
                                  const scheduler::v1::GreetRequest* request,
                                  scheduler::v1::GreetResponse* response) override {
    return UnaryAnswer<scheduler::v1::GreetResponse>::Start(
        response, CallGateAccess::EnterQuestion(gate_.get(), context),
        [&](const Done<scheduler::v1::GreetResponse>& done) {
          scheduler::v1::GreetResponse greeted;
          const absl::Status status = door_.Greet(*request, &greeted);
          if (!status.ok()) return done(status);
          done(std::move(greeted));
        });
  }
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context,
                                 const scheduler::v1::CallRequest* request,
                                 scheduler::v1::CallResponse* response) override {
    return UnaryAnswer<scheduler::v1::CallResponse>::Start(
        response, CallGateAccess::EnterQuestion(gate_.get(), context),
        [&](const Done<scheduler::v1::CallResponse>& done) { Make(*context, *request, done); });
  }
  grpc::ServerWriteReactor<scheduler::v1::WatchResponse>* Watch(
      grpc::CallbackServerContext*, const scheduler::v1::WatchRequest*) override {
    class Refusal final : public grpc::ServerWriteReactor<scheduler::v1::WatchResponse> {
     public:
      Refusal() {
        Finish({grpc::StatusCode::FAILED_PRECONDITION, "an agent has no stream to watch"});
      }
      void OnDone() override { delete this; }
    };
    return new Refusal();
  }

 private:
  static constexpr std::string_view kSetTrace = "/talweg.agent.v1.AdminService/SetTrace";

  void Make(const grpc::CallbackServerContext& context, const scheduler::v1::CallRequest& call,
            const Done<scheduler::v1::CallResponse>& done) {
    absl::StatusOr<SealedDoor::Opened> opened = door_.Open(call);
    if (!opened.ok()) return done(opened.status());
    if (call.method() != kSetTrace) {
      return done(absl::UnimplementedError("no sealed call is named '" + call.method() + "'"));
    }
    const Done<agent::v1::SetTraceResponse> answer =
        [done, salt = std::move(opened->salt),
         answers = opened->answers](absl::StatusOr<agent::v1::SetTraceResponse> given) mutable {
          const agent::v1::SetTraceResponse said =
              given.ok() ? *std::move(given) : agent::v1::SetTraceResponse();
          scheduler::v1::CallResponse sealed;
          sealed.set_salt(salt);
          sealed.set_sealed(answers.Seal(AnswerOf(given.status(), said, true)));
          done(std::move(sealed));
        };
    if (credentials_ != nullptr) {
      const absl::Status allowed =
          MayCall(call.method(), CredentialsAccess::CallerOf(context, credentials_.get()));
      if (!allowed.ok()) return answer(allowed);
    }
    agent::v1::SetTraceRequest request;
    if (!request.ParseFromString(opened->text)) {
      return answer(absl::InvalidArgumentError("the sealed request does not parse"));
    }
    Hand(set_trace_, request, answer);
  }

  const SetTrace set_trace_;
  const std::shared_ptr<const Credentials> credentials_;
  const std::shared_ptr<CallGate> gate_;
  SealedDoor door_;
};

class AggregatorAdminService final : public aggregator::v1::AdminService::CallbackService,
                                     public ServiceHolder {
 public:
  AggregatorAdminService(AggregatorAdminHandlers handlers, std::shared_ptr<CallGate> gate)
      : handlers_(std::move(handlers)), gate_(std::move(gate)) {}
  grpc::Service* service() override { return this; }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const aggregator::v1::GetStatusRequest* request,
                                      aggregator::v1::GetStatusResponse* response) override {
    return Ask(gate_.get(), context, handlers_.get_status, request, response);
  }

 private:
  const AggregatorAdminHandlers handlers_;
  const std::shared_ptr<CallGate> gate_;
};

}  // namespace

std::unique_ptr<ServiceHolder> MakeAgentAdminService(AgentAdminHandlers handlers,
                                                     std::shared_ptr<CallGate> gate,
                                                     int64_t trace_piece_ns) {
  return std::make_unique<AgentAdminService>(std::move(handlers), std::move(gate), trace_piece_ns);
}

std::unique_ptr<ServiceHolder> MakeAgentSealedService(
    Handler<agent::v1::SetTraceRequest, agent::v1::SetTraceResponse> set_trace,
    std::string job_secret, std::shared_ptr<const Credentials> credentials,
    std::shared_ptr<CallGate> gate) {
  return std::make_unique<AgentSealedService>(std::move(set_trace), std::move(job_secret),
                                              std::move(credentials), std::move(gate));
}

std::unique_ptr<ServiceHolder> MakeAggregatorAdminService(AggregatorAdminHandlers handlers,
                                                          std::shared_ptr<CallGate> gate) {
  return std::make_unique<AggregatorAdminService>(std::move(handlers), std::move(gate));
}

}  // namespace talweg::rpc
