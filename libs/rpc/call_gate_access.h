// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CALL_GATE_ACCESS_H_
#define TALWEG_LIBS_RPC_CALL_GATE_ACCESS_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "libs/rpc/call_gate.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/local_users.h"

// A CallGate in gRPC's terms. Includes gRPC: for sources that do as well.
namespace talweg::rpc {

// In the trailing metadata of a call that was refused: the caller may ask again.
inline constexpr char kAskAgainHeader[] = "talweg-ask-again";

class CallGateAccess {
 public:
  // What has a server count its calls. The gate outlives the server. `credentials` say who calls;
  // null: the port is without TLS, and callers have no names.
  static std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors(
      CallGate* gate, std::shared_ptr<const Credentials> credentials);

  // Which the server's listener tells who its connections of this machine are. The gate's.
  static LocalUsers* Users(CallGate* gate);

  // For a service of ours, before it does anything: OK, or the refusal to answer with
  // (RESOURCE_EXHAUSTED). Null gate: OK.
  static grpc::Status Enter(CallGate* gate, grpc::CallbackServerContext* context,
                            std::string_view session_secret = "");

  // As Enter, for a call of an AdminService. Null, where calls are not counted, or this one is not.
  static absl::StatusOr<std::shared_ptr<CallGate::Question>> EnterQuestion(
      CallGate* gate, grpc::CallbackServerContext* context);

  // What to make of a call's status: a refusal of a gate's is one to ask again after (ABORTED).
  static grpc::Status Seen(const grpc::Status& status, const grpc::ClientContext& context);
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CALL_GATE_ACCESS_H_
