// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/sealed_service.h"

#include <string_view>
#include <utility>

namespace talweg::scheduler {
namespace {

using rpc::AnswerOf;

// Seals what the core says on a watch stream. The core thread calls it.
template <typename Response>
class SealedStream final : public Stream<Response> {
 public:
  SealedStream(std::shared_ptr<Stream<v1::WatchResponse>> stream, std::string salt,
               rpc::Answers answers)
      : stream_(std::move(stream)), salt_(std::move(salt)), answers_(std::move(answers)) {}

  void Send(Response response) override { SendSealed(AnswerOf(absl::OkStatus(), response, false)); }
  void End(const absl::Status& status) override {
    SendSealed(AnswerOf(status, Response(), true));
    stream_->End(absl::OkStatus());
  }
  void Cut(const std::string& why) override { stream_->Cut(why); }

 private:
  void SendSealed(const std::string& answer) {
    v1::WatchResponse message;
    message.set_salt(std::exchange(salt_, ""));
    message.set_sealed(answers_.Seal(answer));
    stream_->Send(std::move(message));
  }

  const std::shared_ptr<Stream<v1::WatchResponse>> stream_;
  std::string salt_;  // Sent with the first message.
  rpc::Answers answers_;
};

}  // namespace

SealedService::SealedService(Gate* gate, std::string job_secret)
    : gate_(gate),
      job_secret_(std::move(job_secret)),
      door_(rpc::Daemon::kScheduler, job_secret_) {}

grpc::ServerUnaryReactor* SealedService::Greet(grpc::CallbackServerContext* context,
                                               const v1::GreetRequest* request,
                                               v1::GreetResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status entered =
      rpc::CallGateAccess::Enter(gate_->calls(), context, request->public_key());
  reactor->Finish(entered.ok() ? ToGrpc(door_.Greet(*request, response)) : entered);
  return reactor;
}

template <typename Request>
absl::StatusOr<SealedService::Opened> SealedService::Open(
    const grpc::CallbackServerContext& context, const Request& request) {
  absl::StatusOr<rpc::SealedDoor::Opened> opening = door_.Open(request);
  if (!opening.ok()) return opening.status();
  Opened opened{{*std::move(opening)}, absl::OkStatus()};
  if (gate_->credentials() != nullptr) {
    opened.allowed = rpc::MayCall(request.method(),
                                  rpc::CredentialsAccess::CallerOf(context, gate_->credentials()));
  }
  return opened;
}

template <typename Request, typename Response>
absl::Status SealedService::Make(grpc::CallbackServerContext* context,
                                 const v1::CallRequest& sealed,
                                 const std::shared_ptr<Opened>& opened, v1::CallResponse* response,
                                 grpc::ServerUnaryReactor* reactor,
                                 absl::Status (SchedulerDriver::*method)(const Request&,
                                                                         Response*)) {
  const auto answer = [opened, response, reactor](const absl::Status& status,
                                                  const Response& given) {
    response->set_salt(opened->salt);
    response->set_sealed(opened->answers.Seal(AnswerOf(status, given, true)));
    reactor->Finish(grpc::Status::OK);
  };
  Request request;
  absl::Status allowed = opened->allowed;
  if (allowed.ok() && !request.ParseFromString(opened->text)) {
    allowed = absl::InvalidArgumentError("the sealed request does not parse");
  }
  if (allowed.ok()) allowed = gate_->MayClaim(*context, request);
  if (!allowed.ok()) {
    answer(allowed, Response());
    return absl::OkStatus();
  }
  // Whoever sealed the call has it.
  if constexpr (requires { request.set_job_secret(job_secret_); }) {
    request.set_job_secret(job_secret_);
  }
  const bool posted = gate_->Post([this, context, caller = sealed.public_key(), answer, method,
                                   request = std::move(request)](SchedulerDriver& driver) {
    Response given;
    const absl::Status status = (driver.*method)(request, &given);
    gate_->NoteAnswer(context, request, caller, status);
    answer(status, given);
  });
  return posted ? absl::OkStatus() : absl::UnavailableError("the scheduler is shutting down");
}

grpc::ServerUnaryReactor* SealedService::Call(grpc::CallbackServerContext* context,
                                              const v1::CallRequest* request,
                                              v1::CallResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status entered =
      rpc::CallGateAccess::Enter(gate_->calls(), context, request->public_key());
  if (!entered.ok()) {
    reactor->Finish(entered);
    return reactor;
  }
  absl::StatusOr<Opened> opening = Open(*context, *request);
  if (!opening.ok()) {
    reactor->Finish(ToGrpc(opening.status()));
    return reactor;
  }
  const auto opened = std::make_shared<Opened>(*std::move(opening));
  const std::string_view method = request->method();
  const auto make = [&](auto driver_method) {
    return Make(context, *request, opened, response, reactor, driver_method);
  };
  const auto made = [&]() -> absl::Status {
    const std::string_view member = "/talweg.scheduler.v1.MembershipService/";
    const std::string_view pool = "/talweg.scheduler.v1.PoolService/";
    if (method.starts_with(member)) {
      const std::string_view name = method.substr(member.size());
      if (name == "Join") return make(&SchedulerDriver::Join);
      if (name == "RenewLease") return make(&SchedulerDriver::RenewLease);
      if (name == "Leave") return make(&SchedulerDriver::Leave);
      if (name == "ReportLost") return make(&SchedulerDriver::ReportLost);
      if (name == "Quiesced") return make(&SchedulerDriver::Quiesced);
    } else if (method.starts_with(pool)) {
      const std::string_view name = method.substr(pool.size());
      if (name == "RegisterAggregator") return make(&SchedulerDriver::RegisterAggregator);
      if (name == "RenewAggregator") return make(&SchedulerDriver::RenewAggregator);
      if (name == "DeregisterAggregator") return make(&SchedulerDriver::DeregisterAggregator);
    } else if (method == "/talweg.scheduler.v1.AdminService/LowerBeginMembers") {
      return make(&SchedulerDriver::LowerBeginMembers);
    }
    return absl::UnimplementedError("no sealed call is named '" + request->method() + "'");
  };
  if (const absl::Status status = made(); !status.ok()) reactor->Finish(ToGrpc(status));
  return reactor;
}

template <typename Request, typename Response>
absl::Status SealedService::MakeWatch(
    membership::StreamId id, const std::shared_ptr<Opened>& opened,
    const std::shared_ptr<WatchReactor<v1::WatchResponse>>& stream,
    void (SchedulerDriver::*method)(membership::StreamId, const std::shared_ptr<Stream<Response>>&,
                                    const Request&)) {
  const std::shared_ptr<Stream<Response>> sealed =
      std::make_shared<SealedStream<Response>>(stream, opened->salt, opened->answers);
  Request request;
  absl::Status allowed = opened->allowed;
  if (allowed.ok() && !request.ParseFromString(opened->text)) {
    allowed = absl::InvalidArgumentError("the sealed request does not parse");
  }
  if (!allowed.ok()) {
    sealed->End(allowed);
    return absl::OkStatus();
  }
  const bool posted = gate_->Post([id, sealed, method, request](SchedulerDriver& driver) {
    (driver.*method)(id, sealed, request);
  });
  return posted ? absl::OkStatus() : absl::UnavailableError("the scheduler is shutting down");
}

grpc::ServerWriteReactor<v1::WatchResponse>* SealedService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  const auto [id, reactor] = gate_->MakeReactor<v1::WatchResponse>(context);
  const std::shared_ptr<WatchReactor<v1::WatchResponse>> stream = reactor->self();
  const grpc::Status entered =
      rpc::CallGateAccess::Enter(gate_->calls(), context, request->public_key());
  if (!entered.ok()) {
    stream->End(absl::ResourceExhaustedError(entered.error_message()));
    return reactor;
  }
  absl::StatusOr<Opened> opening = Open(*context, *request);
  if (!opening.ok()) {
    stream->End(opening.status());
    return reactor;
  }
  const auto opened = std::make_shared<Opened>(*std::move(opening));
  absl::Status status =
      absl::UnimplementedError("no sealed watch is named '" + request->method() + "'");
  if (request->method() == "/talweg.scheduler.v1.MembershipService/WatchViews") {
    status = MakeWatch(id, opened, stream, &SchedulerDriver::WatchViews);
  } else if (request->method() == "/talweg.scheduler.v1.PoolService/WatchJobs") {
    status = MakeWatch(id, opened, stream, &SchedulerDriver::WatchJobs);
  }
  if (!status.ok()) stream->End(status);
  return reactor;
}

}  // namespace talweg::scheduler
