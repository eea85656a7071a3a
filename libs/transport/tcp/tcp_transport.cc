// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/tcp_transport.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/shown_address.h"
#include "libs/status/status.h"
#include "libs/transport/tcp/tcp_class.h"

namespace talweg::transport {
namespace {

constexpr int kBacklog = 256;
// No peer reads a write's bytes before the frame after it. So small writes wait for that frame.
constexpr uint64_t kGatheredBytesMax = 256 * 1024;

}  // namespace

absl::Status TcpTransport::Start() {
  if (options_.security == DataSecurity::kTls) tls_.emplace();
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid() || !watch_.timer().Open()) {
    return status::ErrnoStatus(errno, "descriptors of a transport");
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kTimerTag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watch_.timer().descriptor(), &event) != 0) {
    return status::ErrnoStatus(errno, "epoll_ctl for a transport");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TcpTransport::Listen(const ListenSpec& spec) {
  return ListenAtFreePort(spec,
                          [&](const SocketAddress& address) { return ListenAt(spec, address); });
}

absl::StatusOr<std::string> TcpTransport::ListenAt(const ListenSpec& spec,
                                                   const SocketAddress& address) {
  const std::string where = "listen at " + address.ToString();
  Descriptor socket(
      ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket.valid()) return status::ErrnoStatus(errno, where);
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), address.get(), address.length()) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(where +
                                      ": the port is in use; give another port, or 0 for any "
                                      "free one");
    }
    if (errno == EADDRNOTAVAIL) {
      return absl::InvalidArgumentError(where + ": it is not an address of this host");
    }
    return status::ErrnoStatus(errno, where);
  }
  sockaddr_storage bound{};
  socklen_t bound_bytes = sizeof(bound);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &bound_bytes) != 0) {
    return status::ErrnoStatus(errno, where);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kTimerTag - 1 - listeners_.size();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
    return status::ErrnoStatus(errno, where);
  }
  listeners_.push_back(std::move(socket));
  const SocketAddress name(&bound, bound_bytes);
  return TcpAddress{.host_port = AdvertisedHostPort(spec, name),
                    .security = options_.security,
                    .key = {.identity = std::nullopt, .key = listener_key_, .is_seed = true}}
      .ToString();
}

absl::StatusOr<ConnectionId> TcpTransport::Connect(const std::string& address) {
  const std::string ours = DataSecurityName(options_.security);
  if (address.starts_with("fi:")) {
    return absl::InvalidArgumentError(
        "cannot connect to '" + ShownAddress(address) +
        "': it is libfabric's, with data_security=none, and this process runs Talweg's own TCP "
        "with data_security=" +
        ours + "; give both the same --data_security and --data_transport");
  }
  absl::StatusOr<TcpAddress> parsed = ParseTcpAddress(address);
  if (!parsed.ok()) return status::Annotate(parsed.status(), "connect");
  if (parsed->security != options_.security) {
    return absl::InvalidArgumentError(
        "cannot connect to '" + ShownAddress(address) +
        "': its process runs with data_security=" + DataSecurityName(parsed->security) +
        ", this one with data_security=" + ours + "; give both the same");
  }
  // Names in messages must not show the key.
  const std::string name = "tcp://" + parsed->host_port;
  absl::StatusOr<SocketAddress> destination = ResolveHostPort(parsed->host_port);
  if (!destination.ok()) return status::Annotate(destination.status(), "connect to '" + name + "'");
  Descriptor socket(
      ::socket(destination->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket.valid()) return status::ErrnoStatus(errno, "connect to " + name);
  if (!options_.source_interface.empty() && !destination->IsLoopback()) {
    const auto source = AddressOfInterface(options_.source_interface, destination->family());
    if (!source.ok()) return status::Annotate(source.status(), "connect to '" + name + "'");
    if (bind(socket.get(), source->get(), source->length()) != 0) {
      return status::ErrnoStatus(errno, "connect to " + name + " from " + source->Host());
    }
  }
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const bool failed =
      connect(socket.get(), destination->get(), destination->length()) != 0 && errno != EINPROGRESS;
  const int error = errno;
  TALWEG_ASSIGN_OR_RETURN(const PeerHandle peer,
                          AddPeer(std::make_unique<TcpConnection>(
                              ConnectionId(next_id_++), std::move(socket), *parsed, tls(), name)));
  peer->connecting = true;
  peer->times.open_by_ns = clock_->NowNs() + options_.connect_timeout_ns;
  watch_.Arm(peers_);
  const ConnectionId id = peer->connection->id();
  if (failed) {
    // Reported like any failed attempt, so that callers handle both in one place.
    peer->ending = std::string(status::ErrnoStatus(error, "connect to " + name).message());
    Forget(*peer);
    broken_.push_back(peer);
  }
  return id;
}

absl::StatusOr<TcpTransport::PeerHandle> TcpTransport::AddPeer(
    std::unique_ptr<TcpConnection> connection) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = connection->id().value();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket(), &event) != 0) {
    return status::ErrnoStatus(errno, "watch the connection with " + connection->peer());
  }
  const auto peer = std::make_shared<Peer>(std::move(connection));
  peers_.emplace(peer->connection->id(), peer);
  return peer;
}

void TcpTransport::Forget(Peer& peer) {
  TcpConnection& connection = *peer.connection;
  if (connection.closed()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket(), nullptr);
  peers_.erase(connection.id());
  connection.Close();
}

void TcpTransport::Close(ConnectionId id) {
  const auto found = peers_.find(id);
  if (found != peers_.end()) {
    const PeerHandle peer = found->second;
    Forget(*peer);
    return;
  }
  std::erase_if(broken_, [&](const PeerHandle& peer) { return peer->connection->id() == id; });
}

absl::StatusOr<Region> TcpTransport::Register(std::span<std::byte> bytes) {
  return RegisterIn(&regions_, bytes, {.key = keys_.Next(), .address = 0});
}

absl::StatusOr<Region> TcpTransport::RegisterFor(std::span<std::byte> bytes,
                                                 const PeerIdentity& writer) {
  return RegisterIn(&regions_, bytes, {.key = keys_.Next(), .address = 0}, writer);
}

std::string TcpTransport::PeerHost(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? "" : found->second->host;
}

std::optional<PeerIdentity> TcpTransport::ProvenIdentity(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? std::nullopt : found->second->connection->identity();
}

PostResult TcpTransport::PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                                   uint64_t context) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  counters_.write_bytes_sent.Add(source.length);
  Peer& peer = *found->second;
  peer.connection->PostWrite(source, target, context);
  if (peer.connection->pending_bytes() >= kGatheredBytesMax) {
    Advance(peer);
  } else {
    peer.due = true;
  }
  return PostResult::kPosted;
}

PostResult TcpTransport::PostFrame(ConnectionId id, std::vector<std::byte> frame) {
  TALWEG_CHECK(!frame.empty() && frame.size() <= wire::kFrameBytesMax);
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  counters_.frame_bytes_sent.Add(frame.size());
  found->second->connection->PostFrame(std::move(frame));
  Advance(*found->second);
  return PostResult::kPosted;
}

uint64_t TcpTransport::PendingBytes(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? 0 : found->second->connection->pending_bytes();
}

void TcpTransport::Advance(Peer& peer) {
  const absl::Status status = peer.connection->Advance();
  if (peer.connection->has_done()) peer.due = true;
  if (status.ok() || !peer.ending.empty()) return;
  peer.ending = peer.connection->peer() + ": " + std::string(status.message());
  peer.due = true;
}

absl::StatusOr<std::unique_ptr<Transport>> NewTcpTransport(const TcpOptions& options,
                                                           const runtime::Clock* clock,
                                                           telemetry::CounterSet* counters) {
  auto transport = std::make_unique<TcpTransport>(options, clock, counters);
  TALWEG_RETURN_IF_ERROR(transport->Start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace talweg::transport
