// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CHANNEL_H_
#define TALWEG_LIBS_RPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "libs/rpc/credentials.h"

// Shared by the clients of this library. Includes gRPC's headers: for the library's sources only.
namespace talweg::rpc {

// Returns OK if `address` is host:port or unix:/path, else why not. `what` names its meaning:
// "scheduler".
absl::Status CheckAddress(const std::string& what, const std::string& address);

struct ChannelOptions {
  std::string address;
  int64_t backoff_min_ns = 0;
  int64_t backoff_max_ns = 0;
  std::shared_ptr<const Credentials> credentials;  // Null: no TLS.
  // With TLS: the roles that the server may have. Empty: any.
  std::vector<Role> peers;
};

// Makes a channel with a connection of its own, without proxies. It connects on first use.
std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options);

void SetDeadline(grpc::ClientContext& context, int64_t timeout_ns);

// Returns whether a retry may help.
bool IsTransient(const grpc::Status& status);

// Returns the error of a call to `what` ("scheduler") at `address`. It names both, and the remedy
// if nobody answered.
absl::Status ToAbsl(const grpc::Status& status, const std::string& what,
                    const std::string& address);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CHANNEL_H_
