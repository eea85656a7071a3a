// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "libs/rpc/call_gate_access.h"
#include "proto/talweg/agent/v1/agent.grpc.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.grpc.pb.h"

namespace talweg::rpc {
namespace {

constexpr int kEventsPerMessage = 4096;
// Answers of GetTrace at a time.
constexpr int kTracesMax = 2;

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// Whether a question is let in, and how it is counted.
using Entered = absl::StatusOr<std::shared_ptr<CallGate::Question>>;

template <typename Response>
void Charge(const std::shared_ptr<CallGate::Question>& question,
            const absl::StatusOr<Response>& result) {
  if (question != nullptr && result.ok()) question->Charge(result->ByteSizeLong());
}

// A call that somebody else answers, later. It ends when it is answered or cancelled, whichever
// comes first; the reactor lives until both gRPC and the one who answers have let it go.
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

// Answers of GetTrace that are under way. Each keeps a whole timeline until its client has read it.
class Traces {
 public:
  // False: there are too many.
  bool Begin() {
    if (++count_ <= kTracesMax) return true;
    --count_;
    return false;
  }
  void End() { --count_; }

 private:
  std::atomic<int> count_{0};
};

// A recorded timeline, in pieces that fit into messages.
class TraceAnswer : public grpc::ServerWriteReactor<agent::v1::GetTraceResponse> {
 public:
  using Trace = agent::v1::GetTraceResponse;

  static TraceAnswer* Start(std::shared_ptr<Traces> traces, Entered entered,
                            const std::function<void(Done<Trace>)>& ask) {
    auto* answer = new TraceAnswer(std::move(traces));
    if (!entered.ok()) {
      answer->Give(entered.status());
      return answer;
    }
    if (!answer->is_counted_) {
      answer->Give(absl::ResourceExhaustedError(
          std::to_string(kTracesMax) +
          " timelines of this agent are being read, which is as many as may be at a time; ask "
          "again when one is done"));
      return answer;
    }
    ask([self = answer->self_, question = *std::move(entered)](absl::StatusOr<Trace> result) {
      Charge(question, result);
      self->Give(std::move(result));
    });
    return answer;
  }

  void OnCancel() override {
    if (!given_.exchange(true)) Finish(grpc::Status::CANCELLED);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      WriteNext();
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override {
    if (is_counted_) traces_->End();
    self_.reset();
  }

 private:
  explicit TraceAnswer(std::shared_ptr<Traces> traces)
      : traces_(std::move(traces)), is_counted_(traces_->Begin()), self_(this) {}

  void Give(absl::StatusOr<Trace> result) {
    if (given_.exchange(true)) return;
    if (!result.ok()) return Finish(ToGrpc(result.status()));
    whole_ = *std::move(result);
    WriteNext();
  }

  void WriteNext() {
    if (written_ > 0 && written_ >= whole_.events_size()) return Finish(grpc::Status::OK);
    piece_.Clear();
    if (written_ == 0) {
      piece_.set_dropped(whole_.dropped());
      *piece_.mutable_wall_time() = whole_.wall_time();
      piece_.set_monotonic_ns(whole_.monotonic_ns());
    }
    const int end = std::min(whole_.events_size(), written_ + kEventsPerMessage);
    for (int i = written_; i < end; ++i) piece_.add_events()->Swap(whole_.mutable_events(i));
    // An empty timeline is one message, too.
    written_ = std::max(end, 1);
    StartWrite(&piece_);
  }

  const std::shared_ptr<Traces> traces_;
  const bool is_counted_;
  std::atomic<bool> given_{false};
  Trace whole_;
  Trace piece_;
  int written_ = 0;
  std::shared_ptr<TraceAnswer> self_;
};

class AgentAdminService final : public agent::v1::AdminService::CallbackService,
                                public ServiceHolder {
 public:
  AgentAdminService(AgentAdminHandlers handlers, std::shared_ptr<CallGate> gate)
      : handlers_(std::move(handlers)), gate_(std::move(gate)) {}
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
      grpc::CallbackServerContext* context, const agent::v1::GetTraceRequest* request) override {
    return TraceAnswer::Start(traces_, CallGateAccess::EnterQuestion(gate_.get(), context),
                              [&](Done<agent::v1::GetTraceResponse> done) {
                                Hand(handlers_.get_trace, *request, std::move(done));
                              });
  }

 private:
  const AgentAdminHandlers handlers_;
  const std::shared_ptr<CallGate> gate_;
  const std::shared_ptr<Traces> traces_ = std::make_shared<Traces>();
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
                                                     std::shared_ptr<CallGate> gate) {
  return std::make_unique<AgentAdminService>(std::move(handlers), std::move(gate));
}

std::unique_ptr<ServiceHolder> MakeAggregatorAdminService(AggregatorAdminHandlers handlers,
                                                          std::shared_ptr<CallGate> gate) {
  return std::make_unique<AggregatorAdminService>(std::move(handlers), std::move(gate));
}

}  // namespace talweg::rpc
