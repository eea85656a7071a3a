// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/sealed_caller.h"

#include <utility>

#include "libs/rpc/call_gate_access.h"
#include "libs/rpc/channel.h"
#include "libs/rpc/secret.h"

namespace talweg::rpc {
namespace {

using scheduler::v1::Answer;

constexpr char kRemedy[] =
    "give both a copy of the same secret file (option secret_file, TALWEG_SECRET_FILE, or "
    "~/.config/talweg/secret)";

// Whoever answers in the daemon's place can say this. Errors of the connection are our own gRPC's
// words.
grpc::Status MarkedUnproven(const grpc::Status& status, const grpc::ClientContext& context) {
  const grpc::Status seen = CallGateAccess::Seen(status, context);
  if (IsTransient(seen) && seen.error_code() != grpc::StatusCode::ABORTED) return status;
  return {status.error_code(),
          "whoever answers has not proven that it knows the job secret, and says: " +
              status.error_message()};
}

// Such words only mean to ask again.
grpc::Status Unproven(const grpc::Status& status, const grpc::ClientContext& context) {
  const grpc::Status marked = MarkedUnproven(status, context);
  if (IsTransient(CallGateAccess::Seen(status, context))) return marked;
  return {grpc::StatusCode::UNAVAILABLE, marked.error_message()};
}

grpc::Status NotSealed() {
  return {grpc::StatusCode::UNAVAILABLE, "the answer was not made with the job secret"};
}

// Reads what `opened` holds.
bool Read(const std::optional<std::string>& opened, Answer* answer) {
  return opened && answer->ParseFromString(*opened);
}

grpc::Status StatusOf(const Answer& answer) {
  return {static_cast<grpc::StatusCode>(answer.code()), answer.text()};
}

}  // namespace

SealedCaller::SealedCaller(Daemon daemon, std::string job_secret,
                           const std::shared_ptr<grpc::Channel>& channel, std::string address)
    : daemon_(daemon),
      job_secret_(std::move(job_secret)),
      address_(std::move(address)),
      stub_(scheduler::v1::SealedService::NewStub(channel)) {}

grpc::Status SealedCaller::Greet(grpc::ClientContext& context) {
  if (job_secret_.empty()) return grpc::Status::OK;
  const std::string nonce = NewSecret();
  scheduler::v1::GreetRequest request;
  request.set_public_key(keys_.public_key());
  request.set_nonce(nonce);
  scheduler::v1::GreetResponse response;
  const grpc::Status status = stub_->Greet(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return {grpc::StatusCode::UNIMPLEMENTED,
            daemon_ == Daemon::kScheduler
                ? "it cannot prove that it knows the job secret, and was not told it; an older "
                  "scheduler is upgraded before its agents and aggregators"
                : "it cannot prove that it knows the job secret, and was not told it; it is of an "
                  "older release"};
  }
  if (!status.ok()) return MarkedUnproven(status, context);
  const std::string& theirs = response.public_key();
  if (!IsDaemonProof(response.proof(), job_secret_,
                     {.daemon = daemon_,
                      .caller = keys_.public_key(),
                      .nonce = nonce,
                      .public_key = theirs})) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            "the " + NameOf(daemon_) + " at " + address_ +
                " does not prove that it knows the job secret of this process, and was not told "
                "it: it has another one, or somebody else answers at that address; " +
                kRemedy};
  }
  const std::optional<transport::DataKey> shared = keys_.SharedWith(theirs);
  if (!shared) {
    return {grpc::StatusCode::PERMISSION_DENIED, "the " + NameOf(daemon_) + "'s key is none"};
  }
  const std::lock_guard lock(mutex_);
  session_.emplace(job_secret_, *shared, keys_.public_key(), theirs);
  return status;
}

SealedCaller::Made SealedCaller::MakeCall() {
  const std::lock_guard lock(mutex_);
  return {session_, ++count_};
}

grpc::Status SealedCaller::Unreadable() const {
  return {grpc::StatusCode::UNAVAILABLE, "the " + NameOf(daemon_) + "'s answer does not parse"};
}

grpc::Status SealedCaller::CallSealed(std::string_view method, grpc::ClientContext& context,
                                      const std::string& request, std::string* response) {
  const Made made = MakeCall();
  if (!made.session) return NotSealed();
  scheduler::v1::CallRequest call;
  call.set_public_key(keys_.public_key());
  call.set_count(made.count);
  call.set_method(std::string(method));
  call.set_sealed(made.session->SealCall(made.count, method, request));
  scheduler::v1::CallResponse answered;
  const grpc::Status status = stub_->Call(&context, call, &answered);
  if (!status.ok()) return Unproven(status, context);
  Answer answer;
  if (!Read(made.session->AnswersTo(made.count, answered.salt()).Open(answered.sealed()),
            &answer)) {
    return NotSealed();
  }
  *response = answer.message();
  return StatusOf(answer);
}

grpc::Status SealedCaller::WatchSealed(
    std::string_view method, grpc::ClientContext& context, const std::string& request,
    const std::function<grpc::Status(const std::string&)>& on_message) {
  const Made made = MakeCall();
  if (!made.session) return NotSealed();
  scheduler::v1::WatchRequest call;
  call.set_public_key(keys_.public_key());
  call.set_count(made.count);
  call.set_method(std::string(method));
  call.set_sealed(made.session->SealCall(made.count, method, request));
  const auto stream = stub_->Watch(&context, call);
  std::optional<Answers> answers;
  scheduler::v1::WatchResponse response;
  grpc::Status status;
  bool is_over = false;
  while (!is_over && stream->Read(&response)) {
    if (!answers) answers.emplace(made.session->AnswersTo(made.count, response.salt()));
    Answer answer;
    if (!Read(answers->Open(response.sealed()), &answer)) {
      status = NotSealed();
      is_over = true;
    } else if (answer.is_last()) {
      status = StatusOf(answer);
      is_over = true;
    } else {
      status = on_message(answer.message());
      is_over = !status.ok();
    }
  }
  if (is_over) {
    context.TryCancel();
    stream->Finish();
    return status;
  }
  const grpc::Status finished = stream->Finish();
  return finished.ok() ? NotSealed() : Unproven(finished, context);
}

}  // namespace talweg::rpc
