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

// What the clients of this library share. Includes gRPC: for its sources only.
namespace talweg::rpc {

// Why `address` is no host:port and no unix:/path, or OK. `what` names its meaning: "scheduler".
absl::Status CheckAddress(const std::string& what, const std::string& address);

struct ChannelOptions {
  std::string address;
  int64_t backoff_min_ns = 0;
  int64_t backoff_max_ns = 0;
  std::shared_ptr<const Credentials> credentials;  // Null: no TLS.
  // With TLS: which roles the process there may have. None: any.
  std::vector<Role> peers;
};

// A connection of its own, without proxies. Connects when it is used.
std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options);

void SetDeadline(grpc::ClientContext& context, int64_t timeout_ns);

// Whether asking again may help.
bool IsTransient(const grpc::Status& status);

// The failure of a call to `what` ("scheduler") at `address`: names both and, where nobody
// answered, what to do.
absl::Status ToAbsl(const grpc::Status& status, const std::string& what,
                    const std::string& address);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CHANNEL_H_
