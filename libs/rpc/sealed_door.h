// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SEALED_DOOR_H_
#define TALWEG_LIBS_RPC_SEALED_DOOR_H_

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/rpc/sealing.h"
#include "proto/talweg/scheduler/v1/sealed.pb.h"

namespace talweg::rpc {

// A daemon's side of calls that are sealed with the job secret: proves that it knows the secret,
// and opens calls (docs/protocol.md, section 12). What the calls do is the caller's business.
//
// Any thread.
class SealedDoor {
 public:
  // A call that was opened, and how its answers are sealed.
  struct Opened {
    std::string text;
    std::string salt;
    Answers answers;
  };

  // `job_secret` "": there is none, and no call opens.
  SealedDoor(Daemon daemon, std::string job_secret);

  // FAILED_PRECONDITION: there is no job secret.
  absl::Status Greet(const scheduler::v1::GreetRequest& request,
                     scheduler::v1::GreetResponse* response) const;

  // `request`: a CallRequest or a WatchRequest. UNAUTHENTICATED: the call does not open. ABORTED:
  // it was opened before.
  template <typename Request>
  absl::StatusOr<Opened> Open(const Request& request) {
    return Open(request.public_key(), request.count(), request.method(), request.sealed());
  }

 private:
  absl::StatusOr<Opened> Open(const std::string& caller, uint64_t count, std::string_view method,
                              std::string_view sealed);

  const Daemon daemon_;
  const std::string job_secret_;
  const KeyPair keys_;
  std::mutex mutex_;
  CallBook book_;  // Guarded by mutex_.
};

// Returns one answer, as bytes. `is_last`: nothing follows on its stream.
std::string AnswerOf(const absl::Status& status, const google::protobuf::MessageLite& response,
                     bool is_last);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SEALED_DOOR_H_
