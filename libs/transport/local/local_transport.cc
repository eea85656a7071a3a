// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/local/local_transport.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/shown_address.h"
#include "libs/base/spare_descriptor.h"
#include "libs/status/status.h"
#include "libs/transport/deadline_timer.h"
#include "libs/transport/keys.h"
#include "libs/transport/local/connection.h"
#include "libs/transport/local/handshake.h"
#include "libs/transport/proof/connect_token.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/proof/digest.h"
#include "libs/transport/regions.h"
#include "libs/transport/traffic_counters.h"
#include "libs/transport/turns.h"

namespace talweg::transport {
namespace {

constexpr char kScheme[] = "local:";
// Each stranger that connects and sends nothing holds a descriptor until its time is over.
constexpr size_t kHandshakesMax = 256;
// How many connections are accepted in one turn, so that a peer that keeps connecting does not
// block the others.
constexpr int kAcceptsInTurnMax = 64;
// How many records of one connection are read in its turn, so that a fast writer does not block the
// others.
constexpr int kRecordsInTurnMax = 64;

constexpr uint64_t kDoorbellTag = 0;
constexpr uint64_t kTimerTag = ~uint64_t{0};
constexpr uint64_t kListenerTag = kTimerTag - 1;

class LocalTransportImpl final : public LocalTransport {
 public:
  LocalTransportImpl(const LocalOptions& options, const runtime::Clock* clock,
                     telemetry::CounterSet* counters)
      : options_(options),
        clock_(clock),
        keys_(options.key_seed),
        listener_key_(NewDataKey()),
        gate_(listener_key_),
        counters_(counters) {}
  ~LocalTransportImpl() override;

  absl::Status Start();

  absl::StatusOr<std::string> Listen(const ListenSpec& spec) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address) override;
  void Close(ConnectionId id) override;
  absl::StatusOr<Region> Register(std::span<std::byte> bytes) override;
  absl::StatusOr<Region> RegisterFor(std::span<std::byte> bytes,
                                     const PeerIdentity& writer) override;
  absl::StatusOr<Region> RegisterAs(std::span<std::byte> bytes, wire::RemoteRef base,
                                    const std::optional<PeerIdentity>& writer) override;
  void SetAdmission(Admission admission) override { gate_.SetAdmission(std::move(admission)); }
  std::optional<PeerIdentity> ProvenIdentity(ConnectionId id) const override;
  PostResult PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                       uint64_t context) override;
  PostResult PostFrame(ConnectionId id, std::vector<std::byte> frame) override;
  int Poll(EventSink& sink, int events_max) override;
  int WaitDescriptor() const override { return epoll_.get(); }
  bool PrepareToSleep() override;
  uint64_t PendingBytes(ConnectionId id) const override;

 private:
  struct Peer {
    explicit Peer(LocalConnection made) : connection(std::move(made)) {}

    LocalConnection connection;
    bool connecting = false;      // This side connects: OnConnected is due, not OnAccepted.
    ConnectAnswer answer{};       // The answer that the listener must send.
    int64_t establish_by_ns = 0;  // While not established.
    std::deque<uint64_t> done;    // Contexts of writes whose OnWriteDone is due.
    std::string ending;           // Not empty: ends when all that has arrived is read.
    // Counted by this thread's heartbeats, so that its own pauses do not count.
    int64_t silent_ns = 0;
  };
  using PeerHandle = std::shared_ptr<Peer>;

  absl::StatusOr<PeerHandle> AddPeer(Descriptor socket, const std::string& name, bool connecting);
  absl::Status Watch(int fd, uint64_t tag);
  void Advance(Peer& peer);
  void AcceptAll();
  void LookAtDescriptors(EventSink& sink, int* work);
  void OnSocket(EventSink& sink, const PeerHandle& peer, uint32_t events);
  void OnHandshake(EventSink& sink, const PeerHandle& peer);
  // Returns whether the proof is good: of a member that may connect, with `answer` for it, or of
  // the listener that this side connects to.
  absl::Status CheckProof(Peer& peer, const PeerDescriptors& shown, ConnectAnswer* answer);
  void PollPeer(EventSink& sink, const PeerHandle& peer, int* budget, int* work);
  void PollTimeouts(EventSink& sink, int* work);
  void BeatHearts(int64_t now_ns, int* work);
  void End(EventSink& sink, const PeerHandle& peer, const std::string& reason);
  void Forget(Peer& peer);
  void SetTimer();
  size_t HandshakeCount() const;

  const LocalOptions options_;
  const runtime::Clock* const clock_;
  KeySource keys_;
  const DataKey listener_key_;
  TokenMaker tokens_;
  TokenGate gate_;
  TrafficCounters counters_;

  Descriptor epoll_;
  Descriptor doorbell_;  // Peers write to it when they have something for this side and it sleeps.
  DeadlineTimer timer_;
  Descriptor listener_;
  SpareDescriptor spare_;
  std::string listening_path_;  // Removed with the listener.
  int64_t next_heartbeat_ns_ = 0;
  int64_t next_timeout_ns_ = std::numeric_limits<int64_t>::max();  // When timer_ rings.
  bool asleep_ = false;
  uint64_t next_id_ = 1;
  Turns turns_;
  RegionTable regions_;
  std::map<ConnectionId, PeerHandle> peers_;
  std::deque<PeerHandle> broken_;  // Ended, but the sink has not been told yet.
};

LocalTransportImpl::~LocalTransportImpl() {
  if (!listening_path_.empty()) unlink(listening_path_.c_str());
}

absl::Status LocalTransportImpl::Start() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  doorbell_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !doorbell_.valid() || !timer_.Open()) {
    return status::ErrnoStatus(errno, "descriptors of a local transport");
  }
  TALWEG_RETURN_IF_ERROR(Watch(doorbell_.get(), kDoorbellTag));
  return Watch(timer_.descriptor(), kTimerTag);
}

absl::Status LocalTransportImpl::Watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return status::ErrnoStatus(errno, "watch a descriptor of the local transport");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LocalTransportImpl::Listen(const ListenSpec&) {
  if (listener_.valid())
    return absl::AlreadyExistsError("the local transport is listening already");
  std::string name = options_.socket_path;
  if (name.empty()) {
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx",
                  static_cast<unsigned long long>(SystemRandom64()));
    name = std::string("@talweg-") + digits.data();
  }
  TALWEG_ASSIGN_OR_RETURN(listener_, ListenUnix(name));
  if (name.front() != '@') listening_path_ = name;
  TALWEG_RETURN_IF_ERROR(Watch(listener_.get(), kListenerTag));
  return kScheme + name + kLocalKeyMark +
         AddressKey{.identity = std::nullopt, .key = listener_key_, .is_seed = true}.ToString();
}

absl::StatusOr<ConnectionId> LocalTransportImpl::Connect(const std::string& address) {
  const size_t scheme_bytes = sizeof(kScheme) - 1;
  if (!address.starts_with(kScheme) || address.size() == scheme_bytes) {
    return absl::InvalidArgumentError("cannot connect to '" + ShownAddress(address) +
                                      "' through shared memory: expected local:<path>#<key> or "
                                      "local:@<abstract name>#<key>");
  }
  const size_t mark = std::min(address.rfind(kLocalKeyMark), address.size());
  // Names in messages must not show the key.
  const std::string name = address.substr(0, mark);
  const auto key =
      ParseAddressKey(std::string_view(address).substr(std::min(mark + 1, address.size())));
  if (!key) {
    return absl::InvalidArgumentError(
        "'" + ShownAddress(address) +
        "' is not an address of shared memory: expected the key of a member after its name, which "
        "the "
        "scheduler gives to members; a scheduler or an aggregator of an older release gives none: "
        "install the same release everywhere");
  }
  absl::StatusOr<Descriptor> socket = ConnectUnix(name.substr(scheme_bytes));
  if (absl::IsInvalidArgument(socket.status())) return socket.status();
  std::string failure(socket.status().message());
  if (socket.ok()) {
    const absl::StatusOr<int> trusted = CheckPeer(socket->get());
    if (!trusted.ok())
      failure = "connect to " + name + ": " + std::string(trusted.status().message());
  } else {
    socket = Descriptor();
  }
  TALWEG_ASSIGN_OR_RETURN(const PeerHandle peer, AddPeer(*std::move(socket), name, true));
  if (failure.empty()) {
    const auto [token, answer] = tokens_.Next(*key);
    peer->answer = answer;
    const absl::Status sent =
        SendHandshake(peer->connection.socket(), peer->connection.ring().memory_descriptor(),
                      doorbell_.get(), token);
    if (!sent.ok()) failure = "connect to " + name + ": " + std::string(sent.message());
  }
  if (!failure.empty()) {
    peer->ending = failure;
    Forget(*peer);
    broken_.push_back(peer);
  }
  return peer->connection.id();
}

absl::StatusOr<LocalTransportImpl::PeerHandle> LocalTransportImpl::AddPeer(Descriptor socket,
                                                                           const std::string& name,
                                                                           bool connecting) {
  TALWEG_ASSIGN_OR_RETURN(RingMapping ring, RingMapping::Create(options_.ring_bytes));
  const ConnectionId id(next_id_++);
  const bool connected = socket.valid();
  if (connected) TALWEG_RETURN_IF_ERROR(Watch(socket.get(), id.value()));
  const auto peer =
      std::make_shared<Peer>(LocalConnection(id, std::move(socket), std::move(ring), name));
  peer->connecting = connecting;
  peer->establish_by_ns = clock_->NowNs() + options_.connect_timeout_ns;
  if (connected) {
    peers_.emplace(id, peer);
    SetTimer();
  }
  return peer;
}

void LocalTransportImpl::AcceptAll() {
  for (int i = 0; i < kAcceptsInTurnMax; ++i) {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (!SpareDescriptor::IsWantOfOne(errno)) return;
      const auto refuse = [](int unlucky) {
        SendRefusal(unlucky,
                    "its process has no file descriptor left; raise its limit (ulimit -n)");
      };
      if (!spare_.RefuseNext(listener_.get(), refuse)) return;
      counters_.refused.Add();
      continue;
    }
    const absl::StatusOr<int> process = CheckPeer(socket.get());
    if (!process.ok() || HandshakeCount() >= kHandshakesMax) {
      SendRefusal(socket.get(), process.ok() ? "too many processes are connecting at this moment"
                                             : std::string(process.status().message()));
      counters_.refused.Add();
      continue;
    }
    const absl::StatusOr<PeerHandle> peer =
        AddPeer(std::move(socket), "local process " + std::to_string(*process), false);
    if (!peer.ok()) counters_.refused.Add();
  }
}

size_t LocalTransportImpl::HandshakeCount() const {
  return static_cast<size_t>(std::count_if(peers_.begin(), peers_.end(), [](const auto& entry) {
    return !entry.second->connection.established();
  }));
}

void LocalTransportImpl::Forget(Peer& peer) {
  LocalConnection& connection = peer.connection;
  if (!connection.closed()) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket(), nullptr);
  }
  peers_.erase(connection.id());
  connection.Close();
}

void LocalTransportImpl::Close(ConnectionId id) {
  const auto found = peers_.find(id);
  if (found != peers_.end()) {
    const PeerHandle peer = found->second;
    Forget(*peer);
    return;
  }
  std::erase_if(broken_, [&](const PeerHandle& peer) { return peer->connection.id() == id; });
}

absl::StatusOr<Region> LocalTransportImpl::Register(std::span<std::byte> bytes) {
  return RegisterAs(bytes, {.key = keys_.Next(), .address = 0}, std::nullopt);
}

absl::StatusOr<Region> LocalTransportImpl::RegisterFor(std::span<std::byte> bytes,
                                                       const PeerIdentity& writer) {
  return RegisterAs(bytes, {.key = keys_.Next(), .address = 0}, writer);
}

absl::StatusOr<Region> LocalTransportImpl::RegisterAs(std::span<std::byte> bytes,
                                                      wire::RemoteRef base,
                                                      const std::optional<PeerIdentity>& writer) {
  return RegisterIn(&regions_, bytes, base, writer);
}

std::optional<PeerIdentity> LocalTransportImpl::ProvenIdentity(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? std::nullopt : found->second->connection.identity();
}

PostResult LocalTransportImpl::PostWrite(ConnectionId id, RegionSlice source,
                                         wire::RemoteRef target, uint64_t context) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  counters_.write_bytes_sent.Add(source.length);
  found->second->connection.PostWrite(source, target, context);
  Advance(*found->second);
  return PostResult::kPosted;
}

PostResult LocalTransportImpl::PostFrame(ConnectionId id, std::vector<std::byte> frame) {
  TALWEG_CHECK(!frame.empty() && frame.size() <= wire::kFrameBytesMax);
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  counters_.frame_bytes_sent.Add(frame.size());
  found->second->connection.PostFrame(std::move(frame));
  Advance(*found->second);
  return PostResult::kPosted;
}

uint64_t LocalTransportImpl::PendingBytes(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? 0 : found->second->connection.pending_bytes();
}

void LocalTransportImpl::Advance(Peer& peer) {
  const absl::StatusOr<bool> advanced = peer.connection.Advance(&peer.done);
  if (!advanced.ok() && peer.ending.empty()) peer.ending = std::string(advanced.status().message());
}

int LocalTransportImpl::Poll(EventSink& sink, int events_max) {
  int work = 0;
  if (asleep_) {
    asleep_ = false;
    for (const auto& [id, peer] : peers_) peer->connection.Awake();
  }
  while (!broken_.empty()) {
    const PeerHandle peer = broken_.front();
    broken_.pop_front();
    ++work;
    sink.OnDisconnected(peer->connection.id(), peer->ending);
  }
  LookAtDescriptors(sink, &work);
  PollTimeouts(sink, &work);

  std::vector<PeerHandle> due;
  due.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) {
    if (peer->connection.established()) due.push_back(peer);
  }
  turns_.Take(due, events_max,
              [&](const PeerHandle& peer, int* budget) { PollPeer(sink, peer, budget, &work); });
  return work;
}

void LocalTransportImpl::LookAtDescriptors(EventSink& sink, int* work) {
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = ready[i].data.u64;
    uint64_t ignored;
    if (tag == kDoorbellTag) {
      [[maybe_unused]] const ssize_t got = read(doorbell_.get(), &ignored, sizeof(ignored));
    } else if (tag == kTimerTag) {
      timer_.Quieten();
    } else if (tag == kListenerTag) {
      AcceptAll();
      ++*work;
    } else if (const auto found = peers_.find(ConnectionId(tag)); found != peers_.end()) {
      const PeerHandle peer = found->second;
      OnSocket(sink, peer, ready[i].events);
      ++*work;
    }
  }
}

void LocalTransportImpl::OnSocket(EventSink& sink, const PeerHandle& peer, uint32_t events) {
  if (!peer->connection.established()) OnHandshake(sink, peer);
  if (peer->connection.closed() || !peer->connection.established()) return;
  if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0) {
    // Delivers first what the peer had written before.
    if (peer->ending.empty()) {
      peer->ending = peer->connection.peer() + " closed the connection, or its process ended";
    }
  } else if ((events & EPOLLIN) != 0) {
    std::array<std::byte, 16> unexpected;
    if (recv(peer->connection.socket(), unexpected.data(), unexpected.size(), MSG_DONTWAIT) > 0) {
      End(sink, peer, peer->connection.peer() + " sent bytes over the socket after the handshake");
    }
  }
}

void LocalTransportImpl::OnHandshake(EventSink& sink, const PeerHandle& peer) {
  LocalConnection& connection = peer->connection;
  absl::StatusOr<std::optional<PeerDescriptors>> received = ReceiveHandshake(connection.socket());
  if (received.ok() && !received->has_value()) return;
  absl::Status status = received.status();
  ConnectAnswer answer{};
  if (status.ok()) status = CheckProof(*peer, **received, &answer);
  if (status.ok()) status = connection.Establish(**std::move(received));
  if (status.ok() && !peer->connecting) {
    status = SendHandshake(connection.socket(), connection.ring().memory_descriptor(),
                           doorbell_.get(), answer);
  }
  if (!status.ok()) {
    if (!peer->connecting) SendRefusal(connection.socket(), std::string(status.message()));
    End(sink, peer, "connect to " + connection.peer() + ": " + std::string(status.message()));
    return;
  }
  next_heartbeat_ns_ = std::max(next_heartbeat_ns_, clock_->NowNs());
  SetTimer();
  Advance(*peer);
  if (peer->connecting) {
    sink.OnConnected(connection.id());
  } else {
    sink.OnAccepted(connection.id());
  }
}

absl::Status LocalTransportImpl::CheckProof(Peer& peer, const PeerDescriptors& shown,
                                            ConnectAnswer* answer) {
  if (peer.connecting) {
    const bool is_right = SameBytes(std::span(shown.proof).first(peer.answer.size()), peer.answer);
    if (is_right) return absl::OkStatus();
    return absl::PermissionDeniedError("whoever answered does not hold its key");
  }
  TALWEG_ASSIGN_OR_RETURN(const TokenGate::Entry entry, gate_.Enter(shown.proof));
  peer.connection.set_identity(entry.identity);
  *answer = entry.answer;
  return absl::OkStatus();
}

void LocalTransportImpl::PollPeer(EventSink& sink, const PeerHandle& peer, int* budget, int* work) {
  LocalConnection& connection = peer->connection;
  if (connection.closed()) return;
  const uint64_t pending = connection.pending_bytes();
  Advance(*peer);
  if (connection.pending_bytes() != pending) ++*work;
  for (int records = 0; *budget > 0 && !connection.closed() && records < kRecordsInTurnMax;) {
    if (!peer->done.empty()) {
      const uint64_t context = peer->done.front();
      peer->done.pop_front();
      --*budget;
      ++*work;
      sink.OnWriteDone(connection.id(), context);
      continue;
    }
    const absl::StatusOr<LocalConnection::ReadResult> read = connection.Read(regions_);
    if (!read.ok()) {
      ++*work;
      End(sink, peer, std::string(read.status().message()));
      return;
    }
    if (*read == LocalConnection::ReadResult::kEmpty) {
      if (peer->ending.empty()) return;
      ++*work;
      End(sink, peer, peer->ending);
      return;
    }
    ++*work;
    ++records;
    if (*read == LocalConnection::ReadResult::kFrame) {
      --*budget;
      sink.OnFrame(connection.id(), connection.frame());
    }
  }
}

void LocalTransportImpl::PollTimeouts(EventSink& sink, int* work) {
  const int64_t now_ns = clock_->NowNs();
  if (now_ns < next_timeout_ns_) return;
  std::vector<PeerHandle> late;
  for (const auto& [id, peer] : peers_) {
    if (!peer->connection.established() && now_ns >= peer->establish_by_ns) late.push_back(peer);
  }
  for (const PeerHandle& peer : late) {
    ++*work;
    End(sink, peer,
        "connect to " + peer->connection.peer() + ": no answer within " +
            std::to_string(options_.connect_timeout_ns / 1'000'000) +
            " ms; is its process stopped?");
  }
  if (now_ns >= next_heartbeat_ns_) BeatHearts(now_ns, work);
  SetTimer();
}

void LocalTransportImpl::BeatHearts(int64_t now_ns, int* work) {
  for (const auto& [id, peer] : peers_) {
    LocalConnection& connection = peer->connection;
    if (!connection.established()) continue;
    connection.Beat();
    peer->silent_ns = connection.PeerHasBeaten() ? 0 : peer->silent_ns + options_.heartbeat_ns;
    const bool is_over = options_.silence_ns > 0 && peer->silent_ns >= options_.silence_ns;
    if (!is_over || !peer->ending.empty()) continue;
    ++*work;
    peer->ending = connection.peer() + " was silent for " +
                   std::to_string(options_.silence_ns / 1'000'000) +
                   " ms: its process is stopped, or its data thread hangs";
  }
  next_heartbeat_ns_ = now_ns + options_.heartbeat_ns;
}

void LocalTransportImpl::SetTimer() {
  next_timeout_ns_ = std::numeric_limits<int64_t>::max();
  for (const auto& [id, peer] : peers_) {
    next_timeout_ns_ =
        std::min(next_timeout_ns_,
                 peer->connection.established() ? next_heartbeat_ns_ : peer->establish_by_ns);
  }
  std::optional<int64_t> left_ns;
  if (next_timeout_ns_ != std::numeric_limits<int64_t>::max()) {
    left_ns = next_timeout_ns_ - clock_->NowNs();
  }
  timer_.RingIn(left_ns);
}

// Tells the sink, unless the sink closed the connection, or an accepted connection was never
// established.
void LocalTransportImpl::End(EventSink& sink, const PeerHandle& peer, const std::string& reason) {
  if (peer->connection.closed()) return;
  const bool told = peer->connecting || peer->connection.established();
  if (!told) counters_.refused.Add();
  Forget(*peer);
  if (told) sink.OnDisconnected(peer->connection.id(), reason);
}

bool LocalTransportImpl::PrepareToSleep() {
  if (!broken_.empty()) return false;
  asleep_ = true;
  for (const auto& [id, peer] : peers_) {
    if (!peer->done.empty() || (!peer->ending.empty() && peer->connection.established()) ||
        !peer->connection.PrepareToSleep()) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalTransport>> NewLocalTransport(const LocalOptions& options,
                                                                  const runtime::Clock* clock,
                                                                  telemetry::CounterSet* counters) {
  auto transport = std::make_unique<LocalTransportImpl>(options, clock, counters);
  TALWEG_RETURN_IF_ERROR(transport->Start());
  return std::unique_ptr<LocalTransport>(std::move(transport));
}

}  // namespace talweg::transport
