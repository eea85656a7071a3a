// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/listener.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace talweg::rpc {
namespace {

// As whom connections from this machine count of which the kernel does not say whose they are.
constexpr char kUnknownUsers[] = "unknown users of this machine";
// How long to wait if this process has no descriptor left.
constexpr int kPauseMs = 100;

// One end of a TCP connection. An IPv4 address is kept as IPv4, even on an IPv6 socket.
struct End {
  int family = AF_UNSPEC;
  std::array<uint32_t, 4> address{};
  uint16_t port = 0;  // In network byte order.

  bool IsLoopback() const {
    if (family == AF_INET) return ntohl(address[0]) >> 24 == 127;
    return std::memcmp(address.data(), &in6addr_loopback, sizeof address) == 0;
  }
};

End EndOf(const sockaddr_storage& storage) {
  End end;
  end.family = storage.ss_family;
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    end.address[0] = in.sin_addr.s_addr;
    end.port = in.sin_port;
  } else if (storage.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(storage);
    std::memcpy(end.address.data(), &in6.sin6_addr, sizeof end.address);
    end.port = in6.sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
      end.family = AF_INET;
      end.address = {end.address[3]};
    }
  }
  return end;
}

// Returns the user who owns the other end of a connection from this machine. Returns nullopt if the
// kernel does not say: a socket that its process has closed has no owner, and the kernel then gives
// the user 0 and the inode 0.
std::optional<uint32_t> UserOf(const End& other, const End& own) {
  const Descriptor diag(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!diag.valid()) return std::nullopt;
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } ask{};
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.header.nlmsg_flags = NLM_F_REQUEST;
  ask.request.sdiag_family = static_cast<uint8_t>(other.family);
  ask.request.sdiag_protocol = IPPROTO_TCP;
  ask.request.idiag_states = ~uint32_t{0};
  ask.request.id.idiag_sport = other.port;
  ask.request.id.idiag_dport = own.port;
  std::memcpy(ask.request.id.idiag_src, other.address.data(), sizeof other.address);
  std::memcpy(ask.request.id.idiag_dst, own.address.data(), sizeof own.address);
  ask.request.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  ask.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(diag.get(), &ask, sizeof ask, 0) != static_cast<ssize_t>(sizeof ask)) {
    return std::nullopt;
  }
  // The kernel answers before send returns.
  alignas(nlmsghdr) std::array<char, 8192> bytes{};
  const ssize_t count = recv(diag.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) return std::nullopt;
  const auto* header = reinterpret_cast<const nlmsghdr*>(bytes.data());
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  const auto* found = reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  if (found->idiag_inode == 0) return std::nullopt;
  return found->idiag_uid;
}

// Formatted as gRPC does.
std::string TextOf(const End& end) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(end.family, end.address.data(), text.data(), text.size());
  const std::string port = ":" + std::to_string(ntohs(end.port));
  return end.family == AF_INET ? text.data() + port : "[" + std::string(text.data()) + "]" + port;
}

// The other end of a connection.
struct OtherEnd {
  std::string peer;  // The peer to which the connection counts. "": the connection is gone already.
  std::string from;
  bool is_local = false;  // It comes from this machine, and `peer` is a user.
};

OtherEnd OtherEndOf(int connection) {
  sockaddr_storage other_storage{};
  sockaddr_storage own_storage{};
  socklen_t other_length = sizeof other_storage;
  socklen_t own_length = sizeof own_storage;
  if (getpeername(connection, reinterpret_cast<sockaddr*>(&other_storage), &other_length) != 0 ||
      getsockname(connection, reinterpret_cast<sockaddr*>(&own_storage), &own_length) != 0) {
    return {};
  }
  const End other = EndOf(other_storage);
  const End own = EndOf(own_storage);
  OtherEnd end = {.peer = {}, .from = TextOf(other)};
  if (other.IsLoopback() || (other.family == own.family && other.address == own.address)) {
    end.is_local = true;
    const std::optional<uint32_t> user = UserOf(other, own);
    end.peer = user ? "user " + std::to_string(*user) : kUnknownUsers;
  } else {
    // As for calls: the first 64 bits of IPv6.
    const size_t bytes = other.family == AF_INET ? 4 : 8;
    end.peer.assign(reinterpret_cast<const char*>(other.address.data()), bytes);
  }
  return end;
}

ino_t SocketOf(int descriptor) {
  struct stat found {};
  return fstat(descriptor, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

}  // namespace

Listener::Listener(Descriptor listening, size_t peer_connections_max, size_t connections_max,
                   LocalUsers* users, OnAccepted on_accepted)
    : listening_(std::move(listening)),
      peer_connections_max_(peer_connections_max),
      connections_max_(connections_max),
      users_(users),
      on_accepted_(std::move(on_accepted)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

Listener::~Listener() { Stop(); }

void Listener::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void Listener::Run() {
  std::array<pollfd, 2> polled = {pollfd{stop_.get(), POLLIN, 0},
                                  pollfd{listening_.get(), POLLIN, 0}};
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    if (polled[1].revents != 0) Accept();
  }
}

void Listener::Accept() {
  Descriptor connection(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.valid()) {
    // Pending connections stay in the queue.
    pollfd stop{stop_.get(), POLLIN, 0};
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) poll(&stop, 1, kPauseMs);
    return;
  }
  const OtherEnd end = OtherEndOf(connection.get());
  if (end.peer.empty() || !MayStay(end.peer)) return;
  const int on = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Held held = {.descriptor = connection.get(), .socket = SocketOf(connection.get()), .from = {}};
  if (users_ != nullptr && end.is_local) {
    users_->Add(end.from, held.socket, end.peer);
    held.from = end.from;
  }
  peers_[end.peer].push_back(std::move(held));
  ++held_count_;
  on_accepted_(listening_.get(), std::move(connection));
}

void Listener::ForgetClosed(std::vector<Held>& held) {
  held_count_ -= std::erase_if(held, [this](const Held& each) {
    if (SocketOf(each.descriptor) == each.socket) return false;
    if (!each.from.empty()) users_->Remove(each.from, each.socket);
    return true;
  });
}

bool Listener::MayStay(const std::string& peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) ForgetClosed(found->second);
  const size_t count = found == peers_.end() ? 0 : found->second.size();
  if (count >= peer_connections_max_) return false;
  if (held_count_ < connections_max_) return true;
  for (auto each = peers_.begin(); each != peers_.end();) {
    ForgetClosed(each->second);
    each = each->second.empty() ? peers_.erase(each) : std::next(each);
  }
  return held_count_ < connections_max_ || count < kFewConnections;
}

}  // namespace talweg::rpc
