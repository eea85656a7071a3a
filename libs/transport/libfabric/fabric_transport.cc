// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/libfabric/fabric_transport.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/runtime/descriptor.h"
#include "libs/status/status.h"
#include "libs/transport/keys.h"
#include "libs/transport/libfabric/connection.h"
#include "libs/transport/libfabric/provider.h"
#include "libs/transport/libfabric/socket_address.h"

namespace talweg::transport {
namespace {

// What both sides say while connecting, so that a later, incompatible transport is refused before
// it can send anything, and so is everybody who was not given this listener's address with its
// token: a stranger, or a peer of the process that had this port before. (Providers trust those
// whom they are connected with: libfabric 1.17's tcp can be crashed by them.)
struct ConnectData {
  uint32_t magic = 0x46574c54;  // "TLWF"
  uint32_t version = 1;
  uint64_t token = 0;

  friend bool operator==(const ConnectData&, const ConnectData&) = default;
};

// "/3f0a...": behind the port of an address.
std::string TokenText(uint64_t token) {
  std::array<char, 18> text{};
  std::snprintf(text.data(), text.size(), "/%016llx", static_cast<unsigned long long>(token));
  return text.data();
}

// Splits "host:port/token"; no token is 0. False: what should be one is not.
bool SplitToken(std::string* address, uint64_t* token) {
  *token = 0;
  const size_t slash = address->rfind('/');
  if (slash == std::string::npos) return true;
  const char* const end = address->data() + address->size();
  const auto [stop, error] = std::from_chars(address->data() + slash + 1, end, *token, 16);
  if (error != std::errc() || stop != end) return false;
  address->resize(slash);
  return true;
}

// What came with an event of the connection manager: of the data behind it, the most that we read.
constexpr size_t kEventDataBytesMax = 256;

constexpr uint64_t kEventQueueTag = 0;
constexpr uint64_t kTimerTag = ~uint64_t{0};

class FabricTransport final : public Transport {
 public:
  FabricTransport(const FabricOptions& options, const Clock* clock, CounterSet* counters,
                  std::unique_ptr<Provider> provider)
      : options_(options),
        clock_(clock),
        keys_(options.key_seed),
        token_(KeySource(0).Next()),
        provider_(std::move(provider)),
        counters_(counters != nullptr ? *counters : own_counters_),
        refused_(counters_.Get("transport_connections_refused",
                               "connection attempts that were no peer of ours")),
        frame_bytes_sent_(counters_.Get("transport_frame_bytes_sent")),
        write_bytes_sent_(counters_.Get("transport_write_bytes_sent")) {}

  absl::Status Start();

  absl::StatusOr<std::string> Listen(const ListenSpec& spec) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address) override;
  void Close(ConnectionId id) override;
  absl::StatusOr<Region> Register(std::span<std::byte> bytes) override;
  PostResult PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                       uint64_t context) override;
  PostResult PostFrame(ConnectionId id, std::vector<std::byte> frame) override;
  int Poll(EventSink& sink, int events_max) override;
  int WaitDescriptor() const override { return epoll_.get(); }
  bool PrepareToSleep() override;
  uint64_t PendingBytes(ConnectionId id) const override;

 private:
  // A connection and how we look after it.
  struct Peer {
    std::unique_ptr<FabricConnection> connection;
    bool connecting = false;    // By us: OnConnected is due, not OnAccepted.
    int64_t connect_by_ns = 0;  // While not established.
    bool armed = false;         // Its descriptor tells when there is something to read.
    std::string ending;         // Not empty: over as soon as what has arrived is read.
    bool heard = true;          // Something, since the last heartbeat of ours.
    int64_t silent_ns = 0;      // While our thread ran: a stopped process has heard nobody.
  };
  using PeerHandle = std::shared_ptr<Peer>;
  // An event of the event queue, with the connection that it is about.
  struct Event {
    uint32_t kind = 0;
    int error = 0;  // Not 0: an error event.
    PeerHandle peer;
    fid_t listener = nullptr;  // Of a connection request, as is what follows.
    InfoHandle info;
    bool is_ours = false;
  };

  absl::StatusOr<std::string> ListenAt(const ListenSpec& spec, SocketAddress address);
  absl::Status AddPeer(const PeerHandle& peer);
  void Advance(Peer& peer);
  void ReadEvents();
  bool ReadEvent();
  void OnEvent(EventSink& sink, Event event);
  void OnConnectRequest(Event event);
  void OnEstablished(EventSink& sink, const PeerHandle& peer);
  void OnEventError(EventSink& sink, const PeerHandle& peer, int error);
  void PollTimeouts(EventSink& sink, int* work);
  void BeatHearts(EventSink& sink, int64_t now_ns, int* work);
  void PollPeer(EventSink& sink, const PeerHandle& peer, int* budget, int* work);
  void Deliver(EventSink& sink, const PeerHandle& peer,
               const FabricConnection::Completion& completion, int* budget);
  void End(EventSink& sink, const PeerHandle& peer, const std::string& reason);
  void Forget(Peer& peer);
  PeerHandle Find(fid_t endpoint) const;
  void NoteReadyDescriptors();
  void SetTimer();

  const FabricOptions options_;
  const Clock* const clock_;
  KeySource keys_;
  const uint64_t token_;  // Of all our listeners.
  const std::unique_ptr<Provider> provider_;
  CounterSet own_counters_;  // Where nobody wants to know.
  CounterSet& counters_;
  Counter& refused_;
  Counter& frame_bytes_sent_;
  Counter& write_bytes_sent_;

  Descriptor epoll_;
  Descriptor timer_;
  bool events_armed_ = false;
  int64_t next_heartbeat_ns_ = 0;
  uint64_t next_id_ = 1;
  size_t first_polled_ = 0;  // Connections take turns in being polled first.
  std::map<ConnectionId, PeerHandle> peers_;
  std::map<fid_t, ConnectionId> by_endpoint_;
  std::deque<Event> events_;       // Read, and not handled yet.
  std::deque<PeerHandle> broken_;  // Ended, and their sinks do not know yet.
  std::vector<PassiveEndpointHandle> listeners_;
};

absl::Status FabricTransport::Start() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !timer_.valid()) return ErrnoStatus(errno, "descriptors of a transport");
  for (const auto& [fd, tag] : {std::pair(provider_->event_queue_descriptor(), kEventQueueTag),
                                std::pair(timer_.get(), kTimerTag)}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = tag;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "epoll_ctl for a transport");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FabricTransport::Listen(const ListenSpec& spec) {
  TALWEG_ASSIGN_OR_RETURN(SocketAddress address, ResolveBindAddress(spec));
  absl::Status last;
  for (uint32_t port = spec.port_first; port <= spec.port_last; ++port) {
    address.set_port(static_cast<uint16_t>(port));
    absl::StatusOr<std::string> listening = ListenAt(spec, address);
    if (listening.ok() || !absl::IsAlreadyExists(listening.status())) return listening;
    last = listening.status();
  }
  if (spec.port_first == spec.port_last) return last;
  return absl::AlreadyExistsError("no port of " + std::to_string(spec.port_first) + "-" +
                                  std::to_string(spec.port_last) + " is free at " + address.Host() +
                                  "; give another range, or 0 for any free port");
}

absl::StatusOr<std::string> FabricTransport::ListenAt(const ListenSpec& spec,
                                                      SocketAddress address) {
  const std::string where = "listen at " + address.ToString();
  TALWEG_ASSIGN_OR_RETURN(InfoHandle info, provider_->InfoFrom(address));
  const auto failed = [&](int64_t error) -> absl::Status {
    const std::string text = where + ": " + FabricErrorText(error);
    if (error == -FI_EADDRINUSE) {
      return absl::AlreadyExistsError(text + "; give another port, or 0 for any free one");
    }
    if (error == -EADDRNOTAVAIL) {
      return absl::InvalidArgumentError(text + ": it is no address of this host");
    }
    if (error == -EACCES) return absl::PermissionDeniedError(text);
    return absl::UnavailableError(text);
  };
  fid_pep* listener = nullptr;
  int error = fi_passive_ep(provider_->fabric(), info.get(), &listener, nullptr);
  if (error != 0) return failed(error);
  PassiveEndpointHandle handle(listener);
  error = fi_pep_bind(listener, &provider_->event_queue()->fid, 0);
  if (error != 0) return failed(error);
  error = fi_listen(listener);
  if (error != 0) return failed(error);
  sockaddr_storage bound{};
  size_t bound_bytes = sizeof(bound);
  error = fi_getname(&listener->fid, &bound, &bound_bytes);
  if (error != 0) return failed(error);
  const SocketAddress name(&bound, bound_bytes);
  if (!name.valid()) return absl::UnavailableError(where + ": the provider gave no IP address");

  listeners_.push_back(std::move(handle));
  events_armed_ = false;
  std::string host = spec.advertise_host;
  if (host.empty())
    host = name.IsWildcard() ? AddressOfThisHost(name.family()).Host() : name.Host();
  return "fi:" + provider_->name() + "://" + JoinHostPort(host, name.port()) + TokenText(token_);
}

absl::StatusOr<ConnectionId> FabricTransport::Connect(const std::string& address) {
  const std::string scheme = "fi:" + provider_->name() + "://";
  if (!address.starts_with(scheme)) {
    return absl::InvalidArgumentError("cannot connect to '" + address + "' from provider '" +
                                      provider_->name() + "': expected an address like " + scheme +
                                      "host:port; all processes of a job use one provider");
  }
  std::string host_port = address.substr(scheme.size());
  ConnectData hello;
  if (!SplitToken(&host_port, &hello.token)) {
    return absl::InvalidArgumentError("'" + address +
                                      "' is no address: behind its port stands no "
                                      "token of 16 hexadecimal digits");
  }
  absl::StatusOr<SocketAddress> destination = ResolveHostPort(host_port);
  // Names for texts are without the token, which is nobody else's business.
  const std::string name = scheme + host_port;
  if (!destination.ok()) return Annotate(destination.status(), "connect to '" + name + "'");
  SocketAddress source;
  if (!options_.source_interface.empty() && !destination->IsLoopback()) {
    const auto found = AddressOfInterface(options_.source_interface, destination->family());
    if (!found.ok()) return Annotate(found.status(), "connect to '" + name + "'");
    source = *found;
  }
  TALWEG_ASSIGN_OR_RETURN(InfoHandle info, provider_->InfoTo(*destination, source));
  const ConnectionId id(next_id_++);
  const auto peer = std::make_shared<Peer>();
  peer->connection = std::make_unique<FabricConnection>(provider_.get(), id, name);
  peer->connecting = true;
  TALWEG_RETURN_IF_ERROR(peer->connection->Open(info.get(), options_.receive_buffers));
  TALWEG_RETURN_IF_ERROR(AddPeer(peer));
  const int error =
      fi_connect(peer->connection->endpoint(), destination->get(), &hello, sizeof(hello));
  if (error != 0) {
    // Told like every other failed attempt, so that callers have one path for it.
    peer->ending = "connect to " + name + ": " + FabricErrorText(error);
    Forget(*peer);
    broken_.push_back(peer);
  }
  return id;
}

absl::Status FabricTransport::AddPeer(const PeerHandle& peer) {
  const FabricConnection& connection = *peer->connection;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = connection.id().value();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.descriptor(), &event) != 0) {
    return ErrnoStatus(errno, "watch the connection with " + connection.peer());
  }
  peer->connect_by_ns = clock_->NowNs() + options_.connect_timeout_ns;
  peers_.emplace(connection.id(), peer);
  by_endpoint_.emplace(&connection.endpoint()->fid, connection.id());
  events_armed_ = false;
  SetTimer();
  return absl::OkStatus();
}

// Takes the connection out of everything and closes it. Events of its endpoint may lie in the event
// queue, and would name the next endpoint that the provider makes in the same place: so the queue
// is read before and after, and what names no connection is dropped.
void FabricTransport::Forget(Peer& peer) {
  FabricConnection& connection = *peer.connection;
  if (connection.closed()) return;
  ReadEvents();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.descriptor(), nullptr);
  by_endpoint_.erase(&connection.endpoint()->fid);
  peers_.erase(connection.id());
  connection.Close();
  ReadEvents();
}

void FabricTransport::Close(ConnectionId id) {
  const auto found = peers_.find(id);
  if (found != peers_.end()) {
    const PeerHandle peer = found->second;
    Forget(*peer);
    return;
  }
  std::erase_if(broken_, [&](const PeerHandle& peer) { return peer->connection->id() == id; });
}

absl::StatusOr<Region> FabricTransport::Register(std::span<std::byte> bytes) {
  if (bytes.empty()) return absl::InvalidArgumentError("a region of 0 bytes");
  const ProviderLimits& limits = provider_->limits();
  for (int attempt = 0;; ++attempt) {
    absl::StatusOr<MemoryRegionHandle> region = provider_->RegisterMemory(
        bytes.data(), bytes.size(), FI_WRITE | FI_REMOTE_WRITE, keys_.Next(limits.key_bits));
    if (absl::IsAlreadyExists(region.status()) && attempt < 8) continue;
    if (!region.ok()) return region.status();
    const wire::RemoteRef base{
        .key = fi_mr_key(region->get()),
        .address = limits.virtual_addresses ? reinterpret_cast<uint64_t>(bytes.data()) : 0};
    return Region(std::make_unique<FabricRegistration>(*std::move(region), bytes, base));
  }
}

PostResult FabricTransport::PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                                      uint64_t context) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  write_bytes_sent_.Add(source.length);
  Peer& peer = *found->second;
  peer.connection->PostWrite(source, target, context);
  // Nobody looks at a write before the frame behind it: small ones wait for that, or for more of
  // them, and leave in one call of the kernel, in packets that are full. Poll sends what is left.
  if (peer.connection->waiting_bytes() >= FabricConnection::kGatheredBytesMax) {
    Advance(peer);
  } else {
    peer.armed = false;
  }
  return PostResult::kPosted;
}

PostResult FabricTransport::PostFrame(ConnectionId id, std::vector<std::byte> frame) {
  TALWEG_CHECK(!frame.empty() && frame.size() <= wire::kFrameBytesMax);
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  frame_bytes_sent_.Add(frame.size());
  found->second->connection->PostFrame(std::move(frame));
  Advance(*found->second);
  return PostResult::kPosted;
}

uint64_t FabricTransport::PendingBytes(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? 0 : found->second->connection->pending_bytes();
}

void FabricTransport::Advance(Peer& peer) {
  // Whatever the provider did with it, its descriptor has to be asked again before it is relied on.
  peer.armed = false;
  const absl::Status status = peer.connection->Advance();
  if (!status.ok() && peer.ending.empty()) peer.ending = std::string(status.message());
}

int FabricTransport::Poll(EventSink& sink, int events_max) {
  int work = 0;
  int budget = events_max;
  NoteReadyDescriptors();
  while (!broken_.empty()) {
    const PeerHandle peer = broken_.front();
    broken_.pop_front();
    ++work;
    sink.OnDisconnected(peer->connection->id(), peer->ending);
  }
  if (!events_armed_) ReadEvents();
  while (!events_.empty()) {
    Event event = std::move(events_.front());
    events_.pop_front();
    ++work;
    OnEvent(sink, std::move(event));
  }
  PollTimeouts(sink, &work);

  std::vector<PeerHandle> due;
  due.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) {
    if (!peer->armed && peer->connection->established()) due.push_back(peer);
  }
  for (size_t i = 0; i < due.size() && budget > 0; ++i) {
    PollPeer(sink, due[(first_polled_ + i) % due.size()], &budget, &work);
  }
  ++first_polled_;
  return work;
}

// Of the connections whose descriptors we rely on, which have become readable?
void FabricTransport::NoteReadyDescriptors() {
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = ready[i].data.u64;
    if (tag == kEventQueueTag) {
      events_armed_ = false;
    } else if (tag == kTimerTag) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = read(timer_.get(), &ignored, sizeof(ignored));
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
  // Nothing to read now. When the provider agrees, the descriptor tells of the next.
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
      peer->heard = true;  // Of more than its system's buffers hold, only what was taken is done.
      --*budget;
      sink.OnWriteDone(id, completion.context);
      break;
    case Kind::kFrame: {
      peer->heard = true;
      --*budget;
      // An empty one is a heartbeat.
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

// One event; false when there is none.
bool FabricTransport::ReadEvent() {
  alignas(fi_eq_cm_entry) std::array<std::byte, sizeof(fi_eq_cm_entry) + kEventDataBytesMax> room;
  uint32_t kind = 0;
  const ssize_t got = fi_eq_read(provider_->event_queue(), &kind, room.data(), room.size(), 0);
  fi_eq_cm_entry entry{};
  Event event;
  if (got == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    if (fi_eq_readerr(provider_->event_queue(), &error, 0) < 0) return false;
    event.error = error.err == 0 ? FI_EOTHER : error.err;
    event.peer = Find(error.fid);
    if (event.peer != nullptr) events_.push_back(std::move(event));
    return true;
  }
  if (got < static_cast<ssize_t>(sizeof(entry))) return false;
  memcpy(&entry, room.data(), sizeof(entry));
  event.kind = kind;
  if (kind == FI_CONNREQ) {
    event.listener = entry.fid;
    event.info.reset(entry.info);
    ConnectData hello{.magic = 0};
    if (static_cast<size_t>(got) - sizeof(entry) >= sizeof(hello)) {
      memcpy(&hello, room.data() + sizeof(entry), sizeof(hello));
    }
    event.is_ours = hello == ConnectData{.token = token_};
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
    OnEventError(sink, peer, event.error);
  } else if (event.kind == FI_CONNECTED) {
    OnEstablished(sink, peer);
  } else if (event.kind == FI_SHUTDOWN) {
    const std::string reason =
        peer->connection->peer() + " closed the connection, or its process ended";
    if (peer->connection->established()) {
      // Frames that came before are delivered before.
      peer->armed = false;
      peer->ending = reason;
    } else {
      End(sink, peer, reason);
    }
  }
}

void FabricTransport::OnConnectRequest(Event event) {
  const auto peer = std::make_shared<Peer>();
  if (event.is_ours) {
    const SocketAddress from(event.info->dest_addr, event.info->dest_addrlen);
    peer->connection =
        std::make_unique<FabricConnection>(provider_.get(), ConnectionId(next_id_++),
                                           "fi:" + provider_->name() + "://" + from.ToString());
    absl::Status status = peer->connection->Open(event.info.get(), options_.receive_buffers);
    if (status.ok()) status = AddPeer(peer);
    const ConnectData answer;
    if (status.ok() && fi_accept(peer->connection->endpoint(), &answer, sizeof(answer)) == 0) {
      return;
    }
    Forget(*peer);
  }
  refused_.Add();
  // An endpoint that was made for the request has taken it along.
  if (peer->connection != nullptr && peer->connection->request_taken()) return;
  const ConnectData ours;
  fi_reject(reinterpret_cast<fid_pep*>(event.listener), event.info->handle, &ours, sizeof(ours));
}

void FabricTransport::OnEstablished(EventSink& sink, const PeerHandle& peer) {
  FabricConnection& connection = *peer->connection;
  connection.OnEstablished();
  next_heartbeat_ns_ = std::max(next_heartbeat_ns_, clock_->NowNs());
  if (!peer->connecting) {
    sockaddr_storage from{};
    size_t from_bytes = sizeof(from);
    if (fi_getpeer(connection.endpoint(), &from, &from_bytes) == 0) {
      connection.set_peer("fi:" + provider_->name() + "://" +
                          SocketAddress(&from, from_bytes).ToString());
    }
  }
  Advance(*peer);
  SetTimer();
  if (peer->connecting) {
    sink.OnConnected(connection.id());
  } else {
    sink.OnAccepted(connection.id());
  }
}

void FabricTransport::OnEventError(EventSink& sink, const PeerHandle& peer, int error) {
  const std::string& name = peer->connection->peer();
  std::string reason;
  if (peer->connection->established()) {
    reason = "connection with " + name + ": " + FabricErrorText(error);
  } else if (peer->connecting) {
    reason = "connect to " + name + ": " + FabricErrorText(error) +
             "; check that a Talweg process listens at that address, and that it is the right one";
  } else {
    reason = "accept of " + name + ": " + FabricErrorText(error);
  }
  End(sink, peer, reason);
}

void FabricTransport::PollTimeouts(EventSink& sink, int* work) {
  const int64_t now_ns = clock_->NowNs();
  std::vector<PeerHandle> late;
  for (const auto& [id, peer] : peers_) {
    if (!peer->connection->established() && now_ns >= peer->connect_by_ns) late.push_back(peer);
  }
  for (const PeerHandle& peer : late) {
    ++*work;
    End(sink, peer,
        "connect to " + peer->connection->peer() + ": no answer within " +
            std::to_string(options_.connect_timeout_ns / 1'000'000) +
            " ms; check the address, and that no firewall drops the packets");
  }
  if (now_ns >= next_heartbeat_ns_) BeatHearts(sink, now_ns, work);
}

void FabricTransport::BeatHearts(EventSink& sink, int64_t now_ns, int* work) {
  std::vector<PeerHandle> silent;
  for (const auto& [id, peer] : peers_) {
    if (!peer->connection->established()) continue;
    peer->silent_ns =
        std::exchange(peer->heard, false) ? 0 : peer->silent_ns + options_.heartbeat_ns;
    if (options_.silence_ns > 0 && peer->silent_ns >= options_.silence_ns) {
      silent.push_back(peer);
    } else if (peer->connection->idle()) {
      peer->connection->PostFrame({});
      Advance(*peer);
    }
  }
  for (const PeerHandle& peer : silent) {
    ++*work;
    End(sink, peer,
        peer->connection->peer() + " was silent for " +
            std::to_string(options_.silence_ns / 1'000'000) +
            " ms: its host or the network to it is down, or the process was stopped");
  }
  next_heartbeat_ns_ = now_ns + options_.heartbeat_ns;
  SetTimer();
}

void FabricTransport::SetTimer() {
  int64_t first_ns = 0;
  for (const auto& [id, peer] : peers_) {
    const int64_t due_ns =
        peer->connection->established() ? next_heartbeat_ns_ : peer->connect_by_ns;
    if (first_ns == 0 || due_ns < first_ns) first_ns = due_ns;
  }
  itimerspec timer{};
  if (first_ns != 0) {
    const int64_t left_ns = std::max<int64_t>(first_ns - clock_->NowNs(), 1);
    timer.it_value.tv_sec = left_ns / 1'000'000'000;
    timer.it_value.tv_nsec = left_ns % 1'000'000'000;
  }
  timerfd_settime(timer_.get(), 0, &timer, nullptr);
}

// Tells the sink, unless the connection was closed by it; an accepted connection that was never
// established is nobody's business.
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

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NewFabricTransport(const FabricOptions& options,
                                                              const Clock* clock,
                                                              CounterSet* counters) {
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<Provider> provider,
                          Provider::Open(options.provider, options.device));
  auto transport = std::make_unique<FabricTransport>(options, clock, counters, std::move(provider));
  TALWEG_RETURN_IF_ERROR(transport->Start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace talweg::transport
