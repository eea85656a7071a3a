// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_GRPC_LOG_H_
#define TALWEG_LIBS_RPC_GRPC_LOG_H_

#include <functional>
#include <string>

namespace talweg::rpc {

// Gives gRPC's own log lines to `write`, which gRPC's threads call. gRPC logs a line for each
// handshake that fails, so strangers can cause any number of lines. Call this once, before gRPC is
// used. Does nothing if $GRPC_VERBOSITY or $GRPC_TRACE asks for gRPC's own log.
void TakeGrpcLog(std::function<void(const std::string&)> write);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_GRPC_LOG_H_
