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

// A CallGate in gRPC's terms. Includes gRPC's headers.
namespace talweg::rpc {

// Trailing metadata of a refused call: the caller may ask again.
inline constexpr char kAskAgainHeader[] = "talweg-ask-again";

class CallGateAccess {
 public:
  // Returns the interceptors with which a server counts its calls. The gate outlives the server.
  // `credentials` identify callers; null: the port has no TLS, and callers have no names.
  static std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors(
      CallGate* gate, std::shared_ptr<const Credentials> credentials);

  // Returns the gate's LocalUsers, to which the server's listener reports connections from this
  // machine.
  static LocalUsers* Users(CallGate* gate);

  // A service calls it first in each call. Returns OK, or the refusal to answer with
  // (RESOURCE_EXHAUSTED). OK if `gate` is null.
  static grpc::Status Enter(CallGate* gate, grpc::CallbackServerContext* context,
                            std::string_view session_secret = "");

  // This call has been answered well. From now on, counts the process with its session secret by
  // itself, and no longer with others of its address, user or certificate's name. Ignores "".
  static void Prove(CallGate* gate, const grpc::CallbackServerContext* context,
                    std::string_view session_secret);

  // Like Enter, for a call of an AdminService. Returns null if this call is not counted.
  static absl::StatusOr<std::shared_ptr<CallGate::Question>> EnterQuestion(
      CallGate* gate, grpc::CallbackServerContext* context);

  // Converts the status of a call that a client made: a gate's refusal becomes ABORTED, which means
  // to ask again.
  static grpc::Status Seen(const grpc::Status& status, const grpc::ClientContext& context);
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CALL_GATE_ACCESS_H_
