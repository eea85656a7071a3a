// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SEALED_CALLER_H_
#define TALWEG_LIBS_RPC_SEALED_CALLER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "libs/rpc/sealing.h"
#include "proto/talweg/scheduler/v1/sealed.grpc.pb.h"

// Includes gRPC's headers: for the library's sources only.
namespace talweg::rpc {

// Makes the calls of a process that has a job secret, so that only a daemon with the same one can
// read and answer them (docs/protocol.md, section 12). Without a secret, makes plain calls.
//
// Any thread. Calls block until their context's deadline or cancellation.
class SealedCaller {
 public:
  // `address` is for errors.
  SealedCaller(Daemon daemon, std::string job_secret, const std::shared_ptr<grpc::Channel>& channel,
               std::string address);

  // The daemon proves that it knows the job secret. PERMISSION_DENIED: it does not. Calls before
  // that are UNAVAILABLE. OK at once without a secret.
  grpc::Status Greet(grpc::ClientContext& context);

  // Calls `method`, which `plain` calls without a secret. What the daemon has not sealed is no
  // answer: it is UNAVAILABLE, or another status after which the caller asks again.
  template <typename Request, typename Response>
  grpc::Status Call(std::string_view method, grpc::ClientContext& context, const Request& request,
                    Response* response, const std::function<grpc::Status()>& plain) {
    if (job_secret_.empty()) return plain();
    std::string message;
    const grpc::Status status = CallSealed(method, context, request.SerializeAsString(), &message);
    if (status.ok() && !response->ParseFromString(message)) return Unreadable();
    return status;
  }

  // Reads the stream of `method` to its end, or until `on_message` fails, and returns the reason.
  template <typename Request, typename Response>
  grpc::Status Watch(std::string_view method, grpc::ClientContext& context, const Request& request,
                     const std::function<grpc::Status(const Response&)>& on_message,
                     const std::function<std::unique_ptr<grpc::ClientReader<Response>>()>& plain) {
    if (job_secret_.empty()) {
      const auto stream = plain();
      Response response;
      while (stream->Read(&response)) {
        const grpc::Status status = on_message(response);
        if (status.ok()) continue;
        context.TryCancel();
        stream->Finish();
        return status;
      }
      return stream->Finish();
    }
    return WatchSealed(method, context, request.SerializeAsString(),
                       [&](const std::string& message) {
                         Response response;
                         if (!response.ParseFromString(message)) return Unreadable();
                         return on_message(response);
                       });
  }

 private:
  // What a call is sealed with.
  struct Made {
    std::optional<SealedSession> session;  // nullopt: no daemon was greeted.
    uint64_t count = 0;
  };

  grpc::Status CallSealed(std::string_view method, grpc::ClientContext& context,
                          const std::string& request, std::string* response);
  grpc::Status WatchSealed(std::string_view method, grpc::ClientContext& context,
                           const std::string& request,
                           const std::function<grpc::Status(const std::string&)>& on_message);
  Made MakeCall();
  grpc::Status Unreadable() const;

  const Daemon daemon_;
  const std::string job_secret_;
  const std::string address_;
  const std::unique_ptr<scheduler::v1::SealedService::Stub> stub_;
  const KeyPair keys_;
  std::mutex mutex_;
  std::optional<SealedSession> session_;
  uint64_t count_ = 0;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SEALED_CALLER_H_
