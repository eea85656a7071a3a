// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libs/transport/libfabric/fabric_class.h"
#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

// The most data that is read with an event of the connection manager.
constexpr size_t kEventDataBytesMax = 256;

// verbs carries 148 bytes with a refusal; libfabric uses one of them.
constexpr size_t kRefusalBytesMax = 147;

// Returns the text that came with a refusal, cleaned for logs.
std::string ShownRefusal(std::span<const std::byte> said) {
  std::string text;
  for (const std::byte byte : said.first(std::min(said.size(), kRefusalBytesMax))) {
    const char c = static_cast<char>(byte);
    if (c == '\0') break;  // Some providers pad the text.
    text += c >= ' ' && c <= '~' ? c : '?';
  }
  return text;
}

// Some providers pad the data.
bool IsAnswer(std::span<const std::byte> said, const ConnectAnswer& expected) {
  return said.size() >= expected.size() && SameBytes(said.first(expected.size()), expected);
}

}  // namespace

int FabricTransport::Poll(EventSink& sink, int events_max) {
  int work = 0;
  NoteReadyDescriptors();
  while (!broken_.empty()) {
    const PeerHandle peer = broken_.front();
    broken_.pop_front();
    ++work;
    sink.OnDisconnected(peer->connection->id(), peer->ending);
  }
  if (!events_armed_) {
    half_open_.NoteActivity(clock_->NowNs());
    ReadEvents();
  }
  while (!events_.empty()) {
    Event event = std::move(events_.front());
    events_.pop_front();
    ++work;
    OnEvent(sink, std::move(event));
  }
  PollTimeouts(sink, &work);
  LookAtHalfOpen(&work);

  std::vector<PeerHandle> due;
  due.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) {
    if (!peer->armed && peer->connection->established()) due.push_back(peer);
  }
  turns_.Take(due, events_max,
              [&](const PeerHandle& peer, int* budget) { PollPeer(sink, peer, budget, &work); });
  return work;
}

// Marks the connections whose descriptors have become readable.
void FabricTransport::NoteReadyDescriptors() {
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = ready[i].data.u64;
    if (tag == kEventQueueTag) {
      events_armed_ = false;
    } else if (tag == kTimerTag) {
      watch_.timer().Quieten();
    } else if (tag == kHalfOpenTag) {
      half_open_timer_.Quieten();
      half_open_rings_ns_.reset();
    } else if (const auto found = peers_.find(ConnectionId(tag)); found != peers_.end()) {
      found->second->armed = false;
    }
  }
}

void FabricTransport::PollPeer(EventSink& sink, const PeerHandle& peer, int* budget, int* work) {
  FabricConnection& connection = *peer->connection;
  while (!connection.closed()) {
    if (*budget == 0) return;
    absl::StatusOr<std::optional<FabricConnection::Completion>> completion = connection.Read();
    if (!completion.ok()) {
      ++*work;
      End(sink, peer,
          peer->ending.empty() ? std::string(completion.status().message()) : peer->ending);
      return;
    }
    if (!completion->has_value()) break;
    ++*work;
    Deliver(sink, peer, **completion, budget);
  }
  if (connection.closed()) return;
  if (peer->ending.empty()) {
    Advance(*peer);
  } else {
    ++*work;
    End(sink, peer, peer->ending);
    return;
  }
  // There is nothing to read now. If the provider agrees, the descriptor becomes readable when
  // there is.
  fid_t fid = &connection.completion_queue()->fid;
  peer->armed = peer->ending.empty() && fi_trywait(provider_->fabric(), &fid, 1) == FI_SUCCESS;
}

void FabricTransport::Deliver(EventSink& sink, const PeerHandle& peer,
                              const FabricConnection::Completion& completion, int* budget) {
  using Kind = FabricConnection::Completion::Kind;
  const ConnectionId id = peer->connection->id();
  switch (completion.kind) {
    case Kind::kNothing: break;
    case Kind::kWriteDone:
      // A write larger than the system's buffers completes only after the peer has read some of it.
      peer->times.heard = true;
      --*budget;
      sink.OnWriteDone(id, completion.context);
      break;
    case Kind::kFrame: {
      peer->times.heard = true;
      --*budget;
      // An empty frame is a heartbeat.
      if (!completion.frame.empty()) sink.OnFrame(id, completion.frame);
      const absl::Status posted = peer->connection->Repost(completion.buffer);
      if (!posted.ok() && peer->ending.empty()) peer->ending = std::string(posted.message());
      break;
    }
  }
}

void FabricTransport::ReadEvents() {
  while (ReadEvent()) {
  }
  fid_t fid = &provider_->event_queue()->fid;
  events_armed_ = fi_trywait(provider_->fabric(), &fid, 1) == FI_SUCCESS;
}

// Reads one event. Returns false if there is none.
bool FabricTransport::ReadEvent() {
  alignas(fi_eq_cm_entry) std::array<std::byte, sizeof(fi_eq_cm_entry) + kEventDataBytesMax> room;
  uint32_t kind = 0;
  // libfabric 1.17's tcp reads errno after a recv() that returned 0, which happens when a stranger
  // hangs up early. An older EAGAIN makes it try again for ever, which burns a core and keeps the
  // socket.
  errno = 0;
  const ssize_t got = fi_eq_read(provider_->event_queue(), &kind, room.data(), room.size(), 0);
  fi_eq_cm_entry entry{};
  Event event;
  if (got == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    error.err_data = room.data();
    error.err_data_size = room.size();
    if (fi_eq_readerr(provider_->event_queue(), &error, 0) < 0) return false;
    event.error = error.err == 0 ? FI_EOTHER : error.err;
    event.peer = Find(error.fid);
    const auto* const with_it = static_cast<const std::byte*>(error.err_data);
    if (with_it != nullptr) event.said.assign(with_it, with_it + error.err_data_size);
    if (event.peer != nullptr) events_.push_back(std::move(event));
    return true;
  }
  if (got < static_cast<ssize_t>(sizeof(entry))) return false;
  memcpy(&entry, room.data(), sizeof(entry));
  event.kind = kind;
  const auto said = std::span(room).first(static_cast<size_t>(got)).subspan(sizeof(entry));
  event.said.assign(said.begin(), said.end());
  if (kind == FI_CONNREQ) {
    event.listener = entry.fid;
    event.info.reset(entry.info);
  } else {
    event.peer = Find(entry.fid);
  }
  if (event.peer != nullptr || event.listener != nullptr) events_.push_back(std::move(event));
  return true;
}

void FabricTransport::OnEvent(EventSink& sink, Event event) {
  if (event.listener != nullptr) {
    OnConnectRequest(std::move(event));
    return;
  }
  const PeerHandle peer = event.peer;
  if (peer->connection->closed()) return;
  if (event.error != 0) {
    OnEventError(sink, peer, event);
  } else if (event.kind == FI_CONNECTED) {
    if (peer->connecting && !IsAnswer(event.said, peer->answer)) {
      End(sink, peer,
          "connect to " + peer->name() +
              ": whoever answered does not hold its key; another process may have its port now");
      return;
    }
    OnEstablished(sink, peer);
  } else if (event.kind == FI_SHUTDOWN) {
    const std::string reason =
        peer->connection->peer() + " closed the connection, or its process ended";
    if (peer->connection->established()) {
      // Frames that came before the end are delivered before it.
      peer->armed = false;
      peer->ending = reason;
    } else {
      End(sink, peer, reason);
    }
  }
}

void FabricTransport::OnConnectRequest(Event event) {
  const auto peer = std::make_shared<Peer>();
  const absl::StatusOr<TokenGate::Entry> entry = gate_.Enter(event.said);
  if (entry.ok() && Accept(event, peer, *entry)) return;
  if (peer->connection != nullptr) Forget(*peer);
  counters_.refused.Add();
  // An endpoint for the request has consumed the request.
  if (peer->connection != nullptr && peer->connection->request_taken()) return;
  // Only a peer that holds a key is told why.
  std::string why;
  if (!absl::IsUnauthenticated(entry.status())) why = std::string(entry.status().message());
  fi_reject(reinterpret_cast<fid_pep*>(event.listener), event.info->handle, why.data(),
            std::min(why.size(), kRefusalBytesMax));
}

bool FabricTransport::Accept(const Event& event, const PeerHandle& peer,
                             const TokenGate::Entry& entry) {
  const SocketAddress from(event.info->dest_addr, event.info->dest_addrlen);
  peer->connection =
      std::make_unique<FabricConnection>(provider_.get(), ConnectionId(next_id_++),
                                         "fi:" + provider_->name() + "://" + from.ToString());
  peer->from = from.ToString();
  peer->proven = entry.identity;
  absl::Status status = peer->connection->Open(event.info.get(), options_.receive_buffers);
  if (status.ok()) status = AddPeer(peer);
  return status.ok() &&
         fi_accept(peer->connection->endpoint(), entry.answer.data(), entry.answer.size()) == 0;
}

void FabricTransport::OnEstablished(EventSink& sink, const PeerHandle& peer) {
  FabricConnection& connection = *peer->connection;
  connection.OnEstablished();
  watch_.NoteOpen();
  if (!peer->connecting) {
    sockaddr_storage from{};
    size_t from_bytes = sizeof(from);
    if (fi_getpeer(connection.endpoint(), &from, &from_bytes) == 0) {
      peer->from = SocketAddress(&from, from_bytes).ToString();
      connection.set_peer("fi:" + provider_->name() + "://" + peer->from);
    }
  }
  Advance(*peer);
  watch_.Arm(peers_);
  if (peer->connecting) {
    sink.OnConnected(connection.id());
  } else {
    sink.OnAccepted(connection.id());
  }
}

void FabricTransport::OnEventError(EventSink& sink, const PeerHandle& peer, const Event& event) {
  const std::string& name = peer->connection->peer();
  const int error = event.error;
  const std::string refusal =
      peer->connecting && error == FI_ECONNREFUSED ? ShownRefusal(event.said) : "";
  std::string reason;
  if (peer->connection->established()) {
    reason = "connection with " + name + ": " + FabricErrorText(error);
  } else if (!refusal.empty()) {
    reason = "connect to " + name + ": it refused: " + refusal;
  } else if (peer->connecting) {
    reason = "connect to " + name + ": " + FabricErrorText(error) +
             "; check that a Talweg process listens at that address, and that it is the right one";
  } else {
    reason = "accept of " + name + ": " + FabricErrorText(error);
  }
  End(sink, peer, reason);
}

void FabricTransport::PollTimeouts(EventSink& sink, int* work) {
  const auto over = watch_.FindOver(peers_, [this](Peer& peer) {
    if (!peer.connection->idle()) return;
    peer.connection->PostFrame({});
    Advance(peer);
  });
  for (const auto& [peer, reason] : over) {
    ++*work;
    End(sink, peer, reason);
  }
  if (!over.empty()) watch_.Arm(peers_);
}

void FabricTransport::LookAtHalfOpen(int* work) {
  const std::optional<int64_t> due_ns = half_open_.due_ns();
  if (!due_ns) return;
  const int64_t now_ns = clock_->NowNs();
  if (now_ns >= *due_ns) {
    std::unordered_set<std::string> peers;
    for (const auto& [id, peer] : peers_) {
      if (!peer->connecting) peers.insert(peer->from);
    }
    const size_t ended = half_open_.Look(peers, now_ns);
    counters_.refused.Add(ended);
    if (ended > 0) ++*work;
  }
  if (half_open_.due_ns() == half_open_rings_ns_) return;
  half_open_rings_ns_ = half_open_.due_ns();
  std::optional<int64_t> left_ns = half_open_rings_ns_;
  if (left_ns) *left_ns -= now_ns;
  half_open_timer_.RingIn(left_ns);
}

// Tells the sink, unless the sink closed the connection, or an accepted connection was never
// established.
void FabricTransport::End(EventSink& sink, const PeerHandle& peer, const std::string& reason) {
  if (peer->connection->closed()) return;
  const bool told = peer->connecting || peer->connection->established();
  Forget(*peer);
  if (told) sink.OnDisconnected(peer->connection->id(), reason);
}

FabricTransport::PeerHandle FabricTransport::Find(fid_t endpoint) const {
  const auto found = by_endpoint_.find(endpoint);
  if (found == by_endpoint_.end()) return nullptr;
  const auto peer = peers_.find(found->second);
  return peer == peers_.end() ? nullptr : peer->second;
}

bool FabricTransport::PrepareToSleep() {
  if (!broken_.empty() || !events_armed_) return false;
  for (const auto& [id, peer] : peers_) {
    if (peer->connection->established() && !peer->armed) return false;
  }
  return true;
}

}  // namespace talweg::transport
