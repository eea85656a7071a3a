// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "libs/base/descriptor.h"
#include "libs/rpc/call_gate_access.h"
#include "libs/rpc/credentials_access.h"
#include "libs/rpc/grpc_log.h"
#include "libs/rpc/listener.h"
#include "libs/runtime/host_id.h"
#include "libs/status/status.h"
#include "proto/grpc/health/v1/health.pb.h"

namespace talweg::rpc {
namespace {

// gRPC reads and keeps a call's message before it asks whether the call is allowed. So any client
// that reaches a port can make the server keep kRequestBytesMax for each call of a connection, and
// no more. The largest request is WatchJobs from an aggregator with the most jobs (24 KiB).
constexpr int kRequestBytesMax = 64 << 10;
constexpr int kCallsOfConnectionMax = 128;
// For the server itself and its first connections.
constexpr size_t kDescriptorsMin = 16;
// Used if there is no limit.
constexpr size_t kDescriptorsMax = 65'536;
// All connections of a port may have half of them, those of one peer a quarter.
constexpr size_t kOfAll = 2;
constexpr size_t kOfOnePeer = 4;
// A new connection is closed if its handshake takes longer.
constexpr int kHandshakeTimeoutMs = 10'000;

struct BindAddress {
  sockaddr_storage address{};
  socklen_t length = 0;
  std::string host;  // Numeric, in brackets if IPv6.
  bool loopback = false;
  bool any = false;
};

std::string WithoutBrackets(const std::string& host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

std::string Bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

absl::StatusOr<BindAddress> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(WithoutBrackets(host).c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError("the bind address '" + host +
                                      "' does not resolve: " + gai_strerror(error) +
                                      "; give an address or a name of this machine");
  }
  BindAddress bind_address;
  std::memcpy(&bind_address.address, found->ai_addr, found->ai_addrlen);
  bind_address.length = found->ai_addrlen;
  freeaddrinfo(found);
  char numeric[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&bind_address.address), bind_address.length,
              numeric, sizeof numeric, nullptr, 0, NI_NUMERICHOST);
  bind_address.host = Bracketed(numeric);
  if (bind_address.address.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&bind_address.address);
    const uint32_t address = ntohl(in->sin_addr.s_addr);
    bind_address.loopback = (address >> 24) == 127;
    bind_address.any = address == INADDR_ANY;
  } else {
    const auto* in = reinterpret_cast<const sockaddr_in6*>(&bind_address.address);
    bind_address.loopback = IN6_IS_ADDR_LOOPBACK(&in->sin6_addr);
    bind_address.any = IN6_IS_ADDR_UNSPECIFIED(&in->sin6_addr);
  }
  return bind_address;
}

// Returns a listening socket, or the errno.
int ListenOn(BindAddress bind_address, uint16_t port, int64_t keepalive_ns, Descriptor* listening) {
  // "All addresses" means both families, if the machine has both.
  if (bind_address.any && bind_address.address.ss_family == AF_INET) {
    BindAddress both = bind_address;
    both.address = {};
    both.address.ss_family = AF_INET6;
    both.length = sizeof(sockaddr_in6);
    const int error = ListenOn(both, port, keepalive_ns, listening);
    if (error != EAFNOSUPPORT && error != EADDRNOTAVAIL) return error;
  }
  auto* in = reinterpret_cast<sockaddr_in*>(&bind_address.address);
  auto* in6 = reinterpret_cast<sockaddr_in6*>(&bind_address.address);
  const bool is_ipv6 = bind_address.address.ss_family == AF_INET6;
  (is_ipv6 ? in6->sin6_port : in->sin_port) = htons(port);
  Descriptor made(
      socket(bind_address.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) return errno;
  const int on = 1;
  const int off = 0;
  // A connection ends if its peer acknowledges nothing for so long. Accepted sockets inherit this.
  const unsigned silence_ms = static_cast<unsigned>(keepalive_ns / 1'000'000);
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(made.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
  if (is_ipv6) setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  const auto* address = reinterpret_cast<const sockaddr*>(&bind_address.address);
  if (bind(made.get(), address, bind_address.length) != 0 || listen(made.get(), SOMAXCONN) != 0) {
    return errno;
  }
  *listening = std::move(made);
  return 0;
}

uint16_t PortOf(const Descriptor& listening) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Returns how many descriptors this process may have.
size_t DescriptorsMax() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kDescriptorsMax) {
    return kDescriptorsMax;
  }
  return static_cast<size_t>(limit.rlim_cur);
}

// Removes the socket of a killed process. Returns 0 if nobody serves at this path, or EADDRINUSE if
// a process does.
int FreeSocketPath(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return errno;
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return EADDRINUSE;
  }
  if (errno == ENOENT) return 0;
  if (errno != ECONNREFUSED) return errno;
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return errno;
  if (!S_ISSOCK(status.st_mode)) return EEXIST;
  return unlink(path.c_str()) == 0 ? 0 : errno;
}

// Without a free descriptor gRPC aborts, or reports no cause. So this checks first.
absl::Status CheckDescriptors() {
  std::vector<Descriptor> held;
  while (held.size() < kDescriptorsMin) {
    Descriptor one(eventfd(0, EFD_CLOEXEC));
    if (!one.valid()) {
      return status::ErrnoStatus(errno, "a server needs " + std::to_string(kDescriptorsMin) +
                                            " descriptors, and this process may open " +
                                            std::to_string(held.size()) +
                                            " more: raise the limit of open files (ulimit -n)");
    }
    held.push_back(std::move(one));
  }
  return absl::OkStatus();
}

// While this lives, only their owner can access files that are made.
class PrivateFiles {
 public:
  PrivateFiles() : before_(umask(0177)) {}
  ~PrivateFiles() { umask(before_); }
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  const mode_t before_;
};

// Records which services a server is built with, for its health checks.
class ServiceNames final : public grpc::ServerBuilderOption {
 public:
  explicit ServiceNames(std::vector<std::string>* names) : names_(names) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<Plugin>(names_));
  }

 private:
  class Plugin final : public grpc::ServerBuilderPlugin {
   public:
    explicit Plugin(std::vector<std::string>* names) : names_(names) {}
    std::string name() override { return "talweg_service_names"; }
    void InitServer(grpc::ServerInitializer*) override {}
    void Finish(grpc::ServerInitializer* initializer) override {
      *names_ = *initializer->GetServiceList();
    }
    void ChangeArguments(const std::string&, void*) override {}

   private:
    std::vector<std::string>* const names_;
  };

  std::vector<std::string>* const names_;
};

// Ends a server's connections with their certificates.
class EndWithCertificates final : public grpc::ServerBuilderOption {
 public:
  explicit EndWithCertificates(std::shared_ptr<const Credentials> credentials)
      : credentials_(std::move(credentials)) {}

  void UpdateArguments(grpc::ChannelArguments* arguments) override {
    CredentialsAccess::EndWithCertificates(credentials_, arguments);
  }
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}

 private:
  const std::shared_ptr<const Credentials> credentials_;
};

}  // namespace

class Server::Impl {
 public:
  std::shared_ptr<CallGate> gate;  // Outlives the server.
  std::unique_ptr<grpc::Server> server;
  // These two accept a port's connections; a Unix socket has neither.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<Listener> listener;
  int port = 0;
  std::string address;
  std::string warning;
  bool shut_down = false;

  // Builds a server that listens at the Unix socket `where`, in gRPC's syntax. "": connections are
  // handed to it. Returns false if it cannot.
  bool Build(const std::string& where, const ServerOptions& options,
             const std::vector<grpc::Service*>& services);
  // Makes the server serve connections to that listener.
  void Accept(Descriptor listening);
  absl::Status ListenUnix(const ServerOptions& options,
                          const std::vector<grpc::Service*>& services);
};

absl::Status Server::Impl::ListenUnix(const ServerOptions& options,
                                      const std::vector<grpc::Service*>& services) {
  const std::string what = "cannot listen on the socket " + options.unix_path;
  if (const int error = FreeSocketPath(options.unix_path); error == EADDRINUSE) {
    return absl::AlreadyExistsError(what +
                                    ": a process serves there; stop it, or give another path");
  } else if (error != 0) {
    return status::ErrnoStatus(error, what);
  }
  address = "unix:" + options.unix_path;
  const PrivateFiles made;
  if (Build(address, options, services)) return absl::OkStatus();
  return absl::FailedPreconditionError(what +
                                       ": is its directory there, and may this user write to it?");
}

void Server::Impl::Accept(Descriptor listening) {
  port = PortOf(listening);
  const size_t descriptors_max = DescriptorsMax();
  listener = std::make_unique<Listener>(
      std::move(listening), descriptors_max / kOfOnePeer, descriptors_max / kOfAll,
      gate == nullptr ? nullptr : CallGateAccess::Users(gate.get()),
      [this](int from, Descriptor connection) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
        accepted.listener_fd = from;
        accepted.fd = connection.Release();
        acceptor->HandleNewConnection(&accepted);
      });
}

bool Server::Impl::Build(const std::string& where, const ServerOptions& options,
                         const std::vector<grpc::Service*>& services) {
  grpc::ServerBuilder builder;
  const bool tls = where.empty() && options.credentials != nullptr;
  const auto credentials = CredentialsAccess::Server(tls ? options.credentials : nullptr);
  int bound = 1;
  if (where.empty()) {
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
  } else {
    builder.AddListeningPort(where, credentials, &bound);
  }
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  const int keepalive_ms = static_cast<int>(options.keepalive_ns / 1'000'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients may ping, too.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 100);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.SetMaxReceiveMessageSize(kRequestBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsOfConnectionMax);
  for (grpc::Service* service : services) builder.RegisterService(service);
  gate = options.gate;
  if (gate != nullptr) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> counters;
    counters.push_back(
        CallGateAccess::Interceptors(gate.get(), tls ? options.credentials : nullptr));
    builder.experimental().SetInterceptorCreators(std::move(counters));
  }
  if (tls) builder.SetOption(std::make_unique<EndWithCertificates>(options.credentials));
  std::vector<std::string> names;
  builder.SetOption(std::make_unique<ServiceNames>(&names));
  server = builder.BuildAndStart();
  if (!server || bound == 0) {
    server.reset();
    return false;
  }
  for (const std::string& name : names) {
    server->GetHealthCheckService()->SetServingStatus(name, true);
  }
  return true;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<grpc::Service*>& services) {
  QuietGrpcLog();
  // Takes effect for servers that are built later. Both may be repeated.
  grpc::EnableDefaultHealthCheckService(true);
  // Linked in, so that reflection can describe the service that the library answers.
  ::grpc::health::v1::HealthCheckRequest::descriptor();
  if (options.port_max < options.port_min) {
    return absl::InvalidArgumentError("the port range " + std::to_string(options.port_min) +
                                      " to " + std::to_string(options.port_max) + " is empty");
  }
  if (options.credentials != nullptr && !options.credentials->identity()) {
    return absl::FailedPreconditionError(
        "a daemon with TLS needs a certificate of its own: put tls.crt and tls.key beside ca.crt "
        "in tls_dir");
  }
  TALWEG_RETURN_IF_ERROR(CheckDescriptors());
  auto impl = std::make_unique<Impl>();
  if (!options.unix_path.empty()) {
    TALWEG_RETURN_IF_ERROR(impl->ListenUnix(options, services));
    return std::unique_ptr<Server>(new Server(std::move(impl)));
  }
  TALWEG_ASSIGN_OR_RETURN(const BindAddress bind_address, Resolve(options.bind_host));
  if (!bind_address.loopback && options.credentials == nullptr && !options.insecure) {
    return absl::FailedPreconditionError(
        "will not listen on " + bind_address.host +
        " without TLS, where others than this machine may connect: give tls_dir (talweg certs "
        "makes certificates), or insecure, or listen on 127.0.0.1");
  }
  int error = EADDRINUSE;
  Descriptor listening;
  for (uint32_t port = options.port_min; port <= options.port_max && !listening.valid(); ++port) {
    error = ListenOn(bind_address, static_cast<uint16_t>(port), options.keepalive_ns, &listening);
    if (error != 0 && error != EADDRINUSE) break;
  }
  if (!listening.valid()) {
    const std::string ports =
        options.port_min == options.port_max
            ? std::to_string(options.port_min)
            : std::to_string(options.port_min) + "-" + std::to_string(options.port_max);
    const std::string what = "cannot listen on " + bind_address.host + ":" + ports;
    if (error != EADDRINUSE) return status::ErrnoStatus(error, what);
    return absl::AlreadyExistsError(
        what + ": " + (options.port_min == options.port_max ? "the port is" : "all the ports are") +
        " taken; stop the process that holds it (ss -tlnp shows which) or give another port or a "
        "range");
  }
  if (!impl->Build("", options, services)) {
    return absl::InternalError("gRPC cannot build a server; its log says why");
  }
  impl->Accept(std::move(listening));
  std::string advertise = options.advertise_host;
  if (advertise.empty()) advertise = bind_address.any ? runtime::HostName() : bind_address.host;
  impl->address = Bracketed(WithoutBrackets(advertise)) + ":" + std::to_string(impl->port);
  if (!bind_address.loopback && options.credentials == nullptr) {
    impl->warning =
        "insecure: listening on " + bind_address.host + ":" + std::to_string(impl->port) +
        " without TLS: nothing is encrypted, and anybody who can connect may ask for everything "
        "that AdminService shows; keep it inside a trusted network";
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(0); }

uint16_t Server::port() const { return static_cast<uint16_t>(impl_->port); }
const std::string& Server::address() const { return impl_->address; }
const std::string& Server::warning() const { return impl_->warning; }

void Server::SetServing(const std::string& service, bool serving) {
  grpc::HealthCheckServiceInterface* health = impl_->server->GetHealthCheckService();
  if (service.empty()) {
    health->SetServingStatus(serving);
  } else {
    health->SetServingStatus(service, serving);
  }
}

void Server::Shutdown(int64_t timeout_ns) {
  if (std::exchange(impl_->shut_down, true)) return;
  impl_->listener.reset();  // New connections are refused from now on.
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout_ns));
  impl_->server->Wait();
}

}  // namespace talweg::rpc
