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

// Credentials in gRPC's terms. Includes gRPC's headers.
namespace talweg::rpc {

class CredentialsAccess {
 public:
  // For a server's port. The table of authorization.h decides which callers are admitted.
  static std::shared_ptr<grpc::ServerCredentials> Server(
      const std::shared_ptr<const Credentials>& credentials);

  // For a connection to `address`, whose server must have one of the roles in `peers`; empty: any
  // role. Without TLS if `credentials` is null or `address` is a Unix socket.
  static std::shared_ptr<grpc::ChannelCredentials> Channel(
      const std::shared_ptr<const Credentials>& credentials, const std::string& address,
      std::span<const Role> peers);

  // Makes connections of a server or a channel with these arguments end when their peers'
  // certificates are no longer good.
  static void EndWithCertificates(const std::shared_ptr<const Credentials>& credentials,
                                  grpc::ChannelArguments* arguments);

  // The certificate that a caller had shown when its call began; empty without TLS.
  struct Shown {
    PeerCertificate certificate;
    int64_t at_unix_s = 0;
  };
  static Shown ShownBy(const grpc::ServerContextBase& context, const Credentials* credentials);
  // Returns why this process has, or may have, ended the connection of that call; "" if it has not.
  static std::string WhyEnded(const Shown& shown, const Credentials* credentials);

  // Returns the caller's identity, or nullopt if the call came without TLS or without an identity.
  static std::optional<Identity> CallerOf(const grpc::ServerContextBase& context,
                                          const Credentials* credentials);
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CREDENTIALS_ACCESS_H_
