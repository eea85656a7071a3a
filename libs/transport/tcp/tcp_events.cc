// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "libs/transport/tcp/tcp_class.h"

namespace talweg::transport {
namespace {

// How many records of one connection are read in its turn, so that a fast writer does not block the
// others.
constexpr int kRecordsInTurnMax = 64;
// How many strangers are accepted before the peers are polled again.
constexpr int kAcceptsInTurnMax = 64;

}  // namespace

int TcpTransport::Poll(EventSink& sink, int events_max) {
  int work = 0;
  while (!broken_.empty()) {
    const PeerHandle peer = broken_.front();
    broken_.pop_front();
    ++work;
    sink.OnDisconnected(peer->connection->id(), peer->ending);
  }
  LookAtDescriptors(sink, &work);
  PollTimeouts(sink, &work);

  std::vector<PeerHandle> due;
  for (const auto& [id, peer] : peers_) {
    if (peer->due) due.push_back(peer);
  }
  turns_.Take(due, events_max,
              [&](const PeerHandle& peer, int* budget) { PollPeer(sink, peer, budget, &work); });
  return work;
}

void TcpTransport::LookAtDescriptors(EventSink& sink, int* work) {
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = ready[i].data.u64;
    if (tag == kTimerTag) {
      watch_.timer().Quieten();
    } else if (kTimerTag - 1 - tag < listeners_.size()) {
      AcceptAll(listeners_[kTimerTag - 1 - tag].get());
      ++*work;
    } else if (const auto found = peers_.find(ConnectionId(tag)); found != peers_.end()) {
      const PeerHandle peer = found->second;
      OnSocket(sink, peer, ready[i].events);
    }
  }
}

void TcpTransport::AcceptAll(int listener) {
  for (int i = 0; i < kAcceptsInTurnMax; ++i) {
    sockaddr_storage from{};
    socklen_t from_bytes = sizeof(from);
    Descriptor socket(accept4(listener, reinterpret_cast<sockaddr*>(&from), &from_bytes,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (!SpareDescriptor::IsWantOfOne(errno)) return;
      // Strangers' descriptors go first.
      if (MakeRoomFor("")) return;
      if (!spare_.RefuseNext(listener, [](int) {})) return;
      counters_.refused.Add();
      continue;
    }
    OnAccepted(std::move(socket), SocketAddress(&from, from_bytes));
  }
}

void TcpTransport::OnAccepted(Descriptor socket, const SocketAddress& from) {
  const std::string host = CountedHost(from.Host());
  MakeRoomFor(host);
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const absl::StatusOr<PeerHandle> peer = AddPeer(
      std::make_unique<TcpConnection>(ConnectionId(next_id_++), std::move(socket), listener_key_,
                                      options_.security, tls(), "tcp://" + from.ToString()));
  if (!peer.ok()) {
    counters_.refused.Add();
    return;
  }
  (*peer)->host = host;
  (*peer)->times.open_by_ns = clock_->NowNs() + options_.proof_timeout_ns;
  watch_.Arm(peers_);
}

// If there are as many unproven connections of that host, or of all hosts, as there may be, closes
// the oldest. `host` "": of any host. Returns whether it has closed one.
bool TcpTransport::MakeRoomFor(const std::string& host) {
  size_t count = 0;
  size_t of_host = 0;
  PeerHandle oldest;
  PeerHandle oldest_of_host;
  for (const auto& [id, peer] : peers_) {  // In the order in which they came.
    if (peer->connecting || peer->connection->open()) continue;
    ++count;
    if (oldest == nullptr) oldest = peer;
    if (peer->host != host) continue;
    ++of_host;
    if (oldest_of_host == nullptr) oldest_of_host = peer;
  }
  PeerHandle out;
  if (host.empty() || count >= options_.unproven_max) out = oldest;
  if (of_host >= options_.unproven_of_host_max) out = oldest_of_host;
  if (out == nullptr) return false;
  counters_.refused.Add();
  Forget(*out);
  return true;
}

void TcpTransport::OnSocket(EventSink& sink, const PeerHandle& peer, uint32_t events) {
  TcpConnection& connection = *peer->connection;
  if (!connection.open()) {
    Shake(sink, peer);
    if (!connection.open()) return;
  }
  const bool is_ending = (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0;
  if (is_ending || (events & EPOLLIN) != 0) connection.OnReadable(is_ending);
  // The socket may also take bytes again.
  peer->due = true;
}

void TcpTransport::Shake(EventSink& sink, const PeerHandle& peer) {
  TcpConnection& connection = *peer->connection;
  const absl::Status status = connection.Shake();
  if (!status.ok()) {
    End(sink, peer,
        "connect to " + connection.peer() + ": " + std::string(status.message()) +
            "; check that a Talweg process listens at that address, and that it is the right one");
    return;
  }
  if (!connection.open()) return;
  peer->due = true;
  watch_.NoteOpen();
  Advance(*peer);
  watch_.Arm(peers_);
  if (peer->connecting) {
    sink.OnConnected(connection.id());
  } else {
    sink.OnAccepted(connection.id());
  }
}

void TcpTransport::PollPeer(EventSink& sink, const PeerHandle& peer, int* budget, int* work) {
  using ReadResult = TcpConnection::ReadResult;
  TcpConnection& connection = *peer->connection;
  if (connection.closed()) return;
  peer->due = false;
  const uint64_t pending = connection.pending_bytes();
  Advance(*peer);
  if (connection.pending_bytes() != pending) ++*work;
  for (int records = 0; !connection.closed(); ++records) {
    if (*budget == 0 || records == kRecordsInTurnMax) {
      peer->due = true;
      return;
    }
    if (const std::optional<uint64_t> context = connection.TakeDone()) {
      --*budget;
      ++*work;
      sink.OnWriteDone(connection.id(), *context);
      continue;
    }
    const absl::StatusOr<ReadResult> read = connection.Read(regions_);
    if (!read.ok()) {
      ++*work;
      End(sink, peer,
          peer->ending.empty() ? connection.peer() + " " + std::string(read.status().message())
                               : peer->ending);
      return;
    }
    if (*read == ReadResult::kNothing) break;
    ++*work;
    peer->times.heard = true;
    if (*read == ReadResult::kFrame) {
      --*budget;
      sink.OnFrame(connection.id(), connection.frame());
    }
  }
  if (connection.closed()) return;
  if (!connection.drained()) {
    ++*work;  // A part of a long write has come.
    peer->times.heard = true;
    peer->due = true;
  } else if (!peer->ending.empty()) {
    ++*work;
    End(sink, peer, peer->ending);
  }
}

void TcpTransport::PollTimeouts(EventSink& sink, int* work) {
  const auto over = watch_.FindOver(peers_, [this](Peer& peer) {
    if (!peer.connection->idle()) return;
    peer.connection->PostHeartbeat();
    Advance(peer);
  });
  for (const auto& [peer, reason] : over) {
    ++*work;
    End(sink, peer, reason);
  }
  if (!over.empty()) watch_.Arm(peers_);
}

// Tells the sink, unless the sink closed the connection, or an accepted connection was never open.
void TcpTransport::End(EventSink& sink, const PeerHandle& peer, const std::string& reason) {
  if (peer->connection->closed()) return;
  const bool told = peer->connecting || peer->connection->open();
  if (!told) counters_.refused.Add();
  Forget(*peer);
  if (told) sink.OnDisconnected(peer->connection->id(), reason);
}

bool TcpTransport::PrepareToSleep() {
  if (!broken_.empty()) return false;
  return std::none_of(peers_.begin(), peers_.end(),
                      [](const auto& entry) { return entry.second->due; });
}

}  // namespace talweg::transport
