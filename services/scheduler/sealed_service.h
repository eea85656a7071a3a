// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_SEALED_SERVICE_H_
#define TALWEG_SERVICES_SCHEDULER_SEALED_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/rpc/sealed_door.h"
#include "proto/talweg/scheduler/v1/sealed.grpc.pb.h"
#include "services/scheduler/front_gate.h"

namespace talweg::scheduler {

// Opens the calls that are sealed with the job secret, makes them, and seals the answers
// (docs/protocol.md, section 12).
//
// gRPC's threads call it. A call has the rules, and the effect, of the same call without a seal.
class SealedService final : public v1::SealedService::CallbackService {
 public:
  // `job_secret` "": there is none, and no call opens.
  SealedService(Gate* gate, std::string job_secret);

  grpc::ServerUnaryReactor* Greet(grpc::CallbackServerContext* context,
                                  const v1::GreetRequest* request,
                                  v1::GreetResponse* response) override;
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context,
                                 const v1::CallRequest* request,
                                 v1::CallResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override;

 private:
  // A call that was opened.
  struct Opened : rpc::SealedDoor::Opened {
    absl::Status allowed;  // Whether the caller's role may make the call inside.
  };

  // `request`: a CallRequest or a WatchRequest.
  template <typename Request>
  absl::StatusOr<Opened> Open(const grpc::CallbackServerContext& context, const Request& request);

  template <typename Request, typename Response>
  absl::Status Make(grpc::CallbackServerContext* context, const v1::CallRequest& sealed,
                    const std::shared_ptr<Opened>& opened, v1::CallResponse* response,
                    grpc::ServerUnaryReactor* reactor,
                    absl::Status (SchedulerDriver::*method)(const Request&, Response*));
  template <typename Request, typename Response>
  absl::Status MakeWatch(membership::StreamId id, const std::shared_ptr<Opened>& opened,
                         const std::shared_ptr<WatchReactor<v1::WatchResponse>>& stream,
                         void (SchedulerDriver::*method)(membership::StreamId,
                                                         const std::shared_ptr<Stream<Response>>&,
                                                         const Request&));

  Gate* const gate_;
  const std::string job_secret_;
  rpc::SealedDoor door_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_SEALED_SERVICE_H_
