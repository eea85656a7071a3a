// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CREDENTIALS_ACCESS_H_
#define TALWEG_LIBS_RPC_CREDENTIALS_ACCESS_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "libs/rpc/credentials.h"
#include "libs/rpc/tls_trust.h"

// Credentials in gRPC's terms. Includes gRPC: for sources that do as well.
namespace talweg::rpc {

class CredentialsAccess {
 public:
  // For a server's port: callers are admitted by the table of authorization.h.
  static std::shared_ptr<grpc::ServerCredentials> Server(
      const std::shared_ptr<const Credentials>& credentials);

  // For a connection to `address`, whose process must be of one of these roles; none: of any. Null
  // credentials, and addresses of sockets: without TLS.
  static std::shared_ptr<grpc::ChannelCredentials> Channel(
      const std::shared_ptr<const Credentials>& credentials, const std::string& address,
      std::span<const Role> peers);

  // Has connections of a server or a channel with these arguments end when their peers'
  // certificates are not good any more.
  static void EndWithCertificates(const std::shared_ptr<const Credentials>& credentials,
                                  grpc::ChannelArguments* arguments);

  // What a caller has shown when its call began; nothing without TLS.
  struct Shown {
    PeerCertificate certificate;
    int64_t at_unix_s = 0;
  };
  static Shown ShownBy(const grpc::ServerContextBase& context, const Credentials* credentials);
  // Why this process has ended the connection of such a call, or may have; "": it has not.
  static std::string WhyEnded(const Shown& shown, const Credentials* credentials);

  // Who makes this call; nullopt: it came without TLS, or without an identity.
  static std::optional<Identity> CallerOf(const grpc::ServerContextBase& context,
                                          const Credentials* credentials);
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CREDENTIALS_ACCESS_H_
