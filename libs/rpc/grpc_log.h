// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_GRPC_LOG_H_
#define TALWEG_LIBS_RPC_GRPC_LOG_H_

#include <functional>
#include <string>

// Where the lines go that gRPC logs by itself. If $GRPC_VERBOSITY or $GRPC_TRACE asks for gRPC's
// own log, neither function does anything. Both leave out a line that gRPC writes for each
// connection by a host name that the peer's certificate does not have: we check roles instead.
namespace talweg::rpc {

// For daemons: gives the lines to `write`, which gRPC's threads call. gRPC logs a line for each
// handshake that fails, so strangers can cause any number of lines. Call this once, before any
// channel or server is made.
void TakeGrpcLog(std::function<void(const std::string&)> write);

// For processes that do not take the log: the lines go to stderr, without those about handshakes,
// as a call's status says why its handshake has failed. Any thread may repeat this.
void QuietGrpcLog();

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_GRPC_LOG_H_
