// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SERVER_H_
#define TALWEG_LIBS_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/rpc/credentials.h"

namespace grpc {
class Service;
}

namespace talweg::rpc {

class CallGate;

struct ServerOptions {
  // A Unix socket to listen on instead of host and ports. Only the server's user may open it.
  std::string unix_path = {};
  // Where to listen: an address of this machine, "localhost", or "0.0.0.0" / "::" for all. Names
  // and IPv6 addresses without brackets are fine.
  std::string bind_host = "127.0.0.1";
  // Takes the first free port of these; 0, 0: any.
  uint16_t port_min = 0;
  uint16_t port_max = 0;
  // The host that others connect to. Empty: bind_host, or this machine's host name if bind_host is
  // all addresses.
  std::string advertise_host;
  // If a peer does not answer a ping for so long, the server takes it for dead and ends its
  // streams.
  int64_t keepalive_ns = 5'000'000'000;
  // For a port. Null: no TLS, and every caller is admitted.
  std::shared_ptr<const Credentials> credentials = {};
  // Whether to listen on a network, beyond loopback, without TLS.
  bool insecure = false;
  // Counts the calls of a port. Null: calls are not counted.
  std::shared_ptr<CallGate> gate = {};
};

// A gRPC server with health checks (grpc.health.v1) and reflection beside the given services.
//
// Owned by one thread. gRPC's threads call the services.
class Server {
 public:
  // The services must outlive the Server. Binds at once. The error for a taken port, or a name that
  // does not resolve, names it and the remedy.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<grpc::Service*>& services);
  // Calls Shutdown(0), unless the server is shut down.
  ~Server();

  uint16_t port() const;  // 0: a Unix socket.
  // "host:port" to connect to, IPv6 in brackets; "unix:/path".
  const std::string& address() const;
  // Returns a warning of what others can see if other machines can connect, else "".
  const std::string& warning() const;

  // Sets the health of one service ("talweg.agent.v1.AdminService"), or of all with "".
  void SetServing(const std::string& service, bool serving);

  // Refuses new calls, lets those in progress end for at most `timeout_ns`, then cancels them.
  // Blocks until all are done; services must answer or react to cancellation.
  void Shutdown(int64_t timeout_ns);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SERVER_H_
