// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/sealed_service.h"

#include <optional>
#include <string_view>
#include <utility>

#include "libs/rpc/secret.h"

namespace talweg::scheduler {
namespace {

// Returns one answer, as bytes. `is_last`: nothing follows on its stream.
template <typename Response>
std::string AnswerOf(const absl::Status& status, const Response& response, bool is_last) {
  v1::Answer answer;
  answer.set_code(static_cast<uint32_t>(status.code()));
  answer.set_text(std::string(status.message()));
  if (status.ok()) answer.set_message(response.SerializeAsString());
  answer.set_is_last(is_last);
  return answer.SerializeAsString();
}

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
    : gate_(gate), job_secret_(std::move(job_secret)) {}

absl::Status SealedService::Proven(const v1::GreetRequest& request,
                                   v1::GreetResponse* response) const {
  if (job_secret_.empty()) {
    return absl::FailedPreconditionError(
        "the scheduler has no job secret, and the caller has one: give both a copy of the same "
        "secret file (option secret_file, TALWEG_SECRET_FILE, or ~/.config/talweg/secret), or "
        "the caller --secret_file=none");
  }
  if (request.public_key().size() != rpc::kPublicKeyBytes ||
      request.nonce().size() != rpc::kNonceBytes) {
    return absl::InvalidArgumentError("public_key and nonce must have 32 bytes each");
  }
  response->set_public_key(keys_.public_key());
  response->set_proof(
      rpc::SchedulerProof(job_secret_, request.public_key(), request.nonce(), keys_.public_key()));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* SealedService::Greet(grpc::CallbackServerContext* context,
                                               const v1::GreetRequest* request,
                                               v1::GreetResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status entered =
      rpc::CallGateAccess::Enter(gate_->calls(), context, request->public_key());
  reactor->Finish(entered.ok() ? ToGrpc(Proven(*request, response)) : entered);
  return reactor;
}

template <typename Request>
absl::StatusOr<SealedService::Opened> SealedService::Open(
    const grpc::CallbackServerContext& context, const Request& request) {
  std::optional<std::string> text;
  std::optional<rpc::Answers> answers;
  std::string salt = rpc::NewSecret();
  const std::optional<transport::DataKey> shared =
      job_secret_.empty() ? std::nullopt : keys_.SharedWith(request.public_key());
  if (shared) {
    const rpc::SealedSession session(job_secret_, *shared, request.public_key(),
                                     keys_.public_key());
    text = session.OpenCall(request.count(), request.method(), request.sealed());
    answers.emplace(session.AnswersTo(request.count(), salt));
  }
  if (!text) {
    return absl::UnauthenticatedError(
        "the call does not open: it was sealed with another job secret, or for another life of "
        "this scheduler; greet it again");
  }
  {
    const std::lock_guard lock(mutex_);
    if (!book_.Take(request.public_key(), request.count())) {
      return absl::AbortedError("a call with this count has come before; ask again with another");
    }
  }
  Opened opened{.allowed = absl::OkStatus(),
                .text = *std::move(text),
                .salt = std::move(salt),
                .answers = *std::move(answers)};
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
