// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_GRPC_LOG_H_
#define TALWEG_LIBS_RPC_GRPC_LOG_H_

#include <functional>
#include <string>

namespace talweg::rpc {

// Gives the lines that gRPC logs by itself to `write`, on gRPC's threads. It logs one for each
// handshake that fails: strangers cause as many as they like. Call it once, before gRPC is used.
// Where $GRPC_VERBOSITY or $GRPC_TRACE asks for gRPC's own log, nothing is done.
void TakeGrpcLog(std::function<void(const std::string&)> write);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_GRPC_LOG_H_
