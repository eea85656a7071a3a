// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/sealed_door.h"

#include <optional>
#include <utility>

#include "libs/rpc/secret.h"

namespace talweg::rpc {

SealedDoor::SealedDoor(Daemon daemon, std::string job_secret)
    : daemon_(daemon), job_secret_(std::move(job_secret)) {}

absl::Status SealedDoor::Greet(const scheduler::v1::GreetRequest& request,
                               scheduler::v1::GreetResponse* response) const {
  if (job_secret_.empty()) {
    return absl::FailedPreconditionError(
        "the " + NameOf(daemon_) +
        " has no job secret, and the caller has one: give both a copy of the same secret file "
        "(option secret_file, TALWEG_SECRET_FILE, or ~/.config/talweg/secret), or the caller "
        "--secret_file=none");
  }
  if (request.public_key().size() != kPublicKeyBytes || request.nonce().size() != kNonceBytes) {
    return absl::InvalidArgumentError("public_key and nonce must have 32 bytes each");
  }
  response->set_public_key(keys_.public_key());
  response->set_proof(DaemonProof(job_secret_, {.daemon = daemon_,
                                                .caller = request.public_key(),
                                                .nonce = request.nonce(),
                                                .public_key = keys_.public_key()}));
  return absl::OkStatus();
}

absl::StatusOr<SealedDoor::Opened> SealedDoor::Open(const std::string& caller, uint64_t count,
                                                    std::string_view method,
                                                    std::string_view sealed) {
  std::optional<std::string> text;
  std::optional<Answers> answers;
  std::string salt = NewSecret();
  const std::optional<transport::DataKey> shared =
      job_secret_.empty() ? std::nullopt : keys_.SharedWith(caller);
  if (shared) {
    const SealedSession session(job_secret_, *shared, caller, keys_.public_key());
    text = session.OpenCall(count, method, sealed);
    answers.emplace(session.AnswersTo(count, salt));
  }
  if (!text) {
    return absl::UnauthenticatedError(
        "the call does not open: it was sealed with another job secret, or for another life of "
        "this " +
        NameOf(daemon_) + "; greet it again");
  }
  {
    const std::lock_guard lock(mutex_);
    if (!book_.Take(caller, count)) {
      return absl::AbortedError("a call with this count has come before; ask again with another");
    }
  }
  return Opened{.text = *std::move(text), .salt = std::move(salt), .answers = *std::move(answers)};
}

std::string AnswerOf(const absl::Status& status, const google::protobuf::MessageLite& response,
                     bool is_last) {
  scheduler::v1::Answer answer;
  answer.set_code(static_cast<uint32_t>(status.code()));
  answer.set_text(std::string(status.message()));
  if (status.ok()) answer.set_message(response.SerializeAsString());
  answer.set_is_last(is_last);
  return answer.SerializeAsString();
}

}  // namespace talweg::rpc
