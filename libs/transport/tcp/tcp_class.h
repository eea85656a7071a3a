// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_TCP_CLASS_H_
#define TALWEG_LIBS_TRANSPORT_TCP_TCP_CLASS_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/base/spare_descriptor.h"
#include "libs/runtime/clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/keys.h"
#include "libs/transport/peer_watch.h"
#include "libs/transport/regions.h"
#include "libs/transport/socket_address.h"
#include "libs/transport/tcp/connection.h"
#include "libs/transport/tcp/tcp_transport.h"
#include "libs/transport/traffic_counters.h"
#include "libs/transport/transport.h"
#include "libs/transport/turns.h"

namespace talweg::transport {

// The Transport of NewTcpTransport. tcp_transport.cc has its calls, tcp_events.cc its Poll.
class TcpTransport final : public Transport {
 public:
  TcpTransport(const TcpOptions& options, const runtime::Clock* clock,
               telemetry::CounterSet* counters)
      : options_(options),
        clock_(clock),
        watch_({.connect_timeout_ns = options.connect_timeout_ns,
                .heartbeat_ns = options.heartbeat_ns,
                .silence_ns = options.silence_ns},
               clock),
        keys_(options.key_seed),
        listener_key_(NewDataKey()),
        counters_(counters) {}

  absl::Status Start();

  absl::StatusOr<std::string> Listen(const ListenSpec& spec) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address) override;
  void Close(ConnectionId id) override;
  absl::StatusOr<Region> Register(std::span<std::byte> bytes) override;
  absl::StatusOr<Region> RegisterFor(std::span<std::byte> bytes,
                                     const PeerIdentity& writer) override;
  std::optional<PeerIdentity> ProvenIdentity(ConnectionId id) const override;
  std::string PeerHost(ConnectionId id) const override;
  PostResult PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                       uint64_t context) override;
  PostResult PostFrame(ConnectionId id, std::vector<std::byte> frame) override;
  int Poll(EventSink& sink, int events_max) override;
  int WaitDescriptor() const override { return epoll_.get(); }
  bool PrepareToSleep() override;
  uint64_t PendingBytes(ConnectionId id) const override;

 private:
  // The tag of a descriptor in epoll_. A connection's has its id. Listeners count down from this.
  static constexpr uint64_t kTimerTag = ~uint64_t{0};

  // A connection, and this transport's bookkeeping for it.
  struct Peer {
    explicit Peer(std::unique_ptr<TcpConnection> made) : connection(std::move(made)) {}

    std::unique_ptr<TcpConnection> connection;
    bool connecting = false;  // This side connects: OnConnected is due, not OnAccepted.
    std::string host;         // The host of a peer that connected to us.
    bool due = false;         // There may be something to do for it.
    PeerTimes times;
    std::string ending;  // Not empty: ends when all that has arrived is read.

    bool open() const { return connection->open(); }
    const std::string& name() const { return connection->peer(); }
  };
  using PeerHandle = std::shared_ptr<Peer>;

  // tcp_transport.cc
  absl::StatusOr<std::string> ListenAt(const ListenSpec& spec, const SocketAddress& address);
  absl::StatusOr<PeerHandle> AddPeer(std::unique_ptr<TcpConnection> connection);
  void Advance(Peer& peer);
  void Forget(Peer& peer);
  const TlsContext* tls() const { return tls_ ? &*tls_ : nullptr; }

  // tcp_events.cc
  void LookAtDescriptors(EventSink& sink, int* work);
  void AcceptAll(int listener);
  void OnAccepted(Descriptor socket, const SocketAddress& from);
  bool MakeRoomFor(const std::string& host);
  void OnSocket(EventSink& sink, const PeerHandle& peer, uint32_t events);
  void Shake(EventSink& sink, const PeerHandle& peer);
  void PollPeer(EventSink& sink, const PeerHandle& peer, int* budget, int* work);
  void PollTimeouts(EventSink& sink, int* work);
  void End(EventSink& sink, const PeerHandle& peer, const std::string& reason);

  const TcpOptions options_;
  const runtime::Clock* const clock_;
  PeerWatch watch_;
  KeySource keys_;
  const DataKey listener_key_;  // The same for all our listeners.
  TrafficCounters counters_;
  std::optional<TlsContext> tls_;

  Descriptor epoll_;
  std::vector<Descriptor> listeners_;
  SpareDescriptor spare_;
  uint64_t next_id_ = 1;
  Turns turns_;
  RegionTable regions_;
  std::map<ConnectionId, PeerHandle> peers_;
  std::deque<PeerHandle> broken_;  // Ended, but the sink has not been told yet.
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_TCP_CLASS_H_
