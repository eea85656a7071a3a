// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LIBFABRIC_FABRIC_CLASS_H_
#define TALWEG_LIBS_TRANSPORT_LIBFABRIC_FABRIC_CLASS_H_

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
#include "libs/runtime/clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/deadline_timer.h"
#include "libs/transport/keys.h"
#include "libs/transport/libfabric/connection.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/libfabric/half_open.h"
#include "libs/transport/libfabric/handles.h"
#include "libs/transport/libfabric/provider.h"
#include "libs/transport/peer_watch.h"
#include "libs/transport/proof/connect_token.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/socket_address.h"
#include "libs/transport/traffic_counters.h"
#include "libs/transport/transport.h"
#include "libs/transport/turns.h"

namespace talweg::transport {

// The Transport of NewFabricTransport. fabric_transport.cc has its calls, fabric_events.cc its
// events and Poll.
class FabricTransport final : public Transport {
 public:
  FabricTransport(const FabricOptions& options, const runtime::Clock* clock,
                  telemetry::CounterSet* counters, std::unique_ptr<Provider> provider)
      : options_(options),
        clock_(clock),
        watch_({.connect_timeout_ns = options.connect_timeout_ns,
                .heartbeat_ns = options.heartbeat_ns,
                .silence_ns = options.silence_ns},
               clock),
        half_open_({.timeout_ns = options.proof_timeout_ns,
                    .max = options.unproven_max,
                    .of_host_max = options.unproven_of_host_max}),
        keys_(options.key_seed),
        listener_key_(NewDataKey()),
        gate_(listener_key_),
        provider_(std::move(provider)),
        counters_(counters) {}

  absl::Status Start();

  absl::StatusOr<std::string> Listen(const ListenSpec& spec) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address) override;
  void Close(ConnectionId id) override;
  absl::StatusOr<Region> Register(std::span<std::byte> bytes) override;
  absl::Status TakesDeviceMemory() const override;
  absl::StatusOr<Region> RegisterDevice(const DeviceMemory& memory) override;
  PostResult PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                       uint64_t context) override;
  PostResult PostFrame(ConnectionId id, std::vector<std::byte> frame) override;
  int Poll(EventSink& sink, int events_max) override;
  int WaitDescriptor() const override { return epoll_.get(); }
  bool PrepareToSleep() override;
  uint64_t PendingBytes(ConnectionId id) const override;
  std::string PeerHost(ConnectionId id) const override;
  void SetAdmission(Admission admission) override { gate_.SetAdmission(std::move(admission)); }
  std::optional<PeerIdentity> ProvenIdentity(ConnectionId id) const override;

 private:
  // The tag of a descriptor in epoll_. A connection's descriptor has the connection's id instead.
  static constexpr uint64_t kEventQueueTag = 0;
  static constexpr uint64_t kTimerTag = ~uint64_t{0};
  static constexpr uint64_t kHalfOpenTag = kTimerTag - 1;

  // A connection, and this transport's bookkeeping for it.
  struct Peer {
    std::unique_ptr<FabricConnection> connection;
    std::string from;                    // The address of a peer that connected to us.
    bool connecting = false;             // This side connects: OnConnected is due, not OnAccepted.
    ConnectAnswer answer{};              // The answer that the listener must send.
    std::optional<PeerIdentity> proven;  // The identity of a peer that connected to us.
    bool armed = false;                  // Its descriptor tells when there is something to read.
    PeerTimes times;
    std::string ending;  // Not empty: ends when all that has arrived is read.

    bool open() const { return connection->established(); }
    const std::string& name() const { return connection->peer(); }
  };
  using PeerHandle = std::shared_ptr<Peer>;
  // An event of the event queue, with the connection that it is about.
  struct Event {
    uint32_t kind = 0;
    int error = 0;  // Not 0: an error event.
    PeerHandle peer;
    fid_t listener = nullptr;  // Set for a connection request, like the next two.
    InfoHandle info;
    std::vector<std::byte> said;  // The bytes that came with the request.
  };

  // fabric_transport.cc

  // Has the descriptor of the timer or the event queue wake this thread.
  absl::Status Watch(int descriptor, uint64_t tag);
  absl::Status WatchHalfOpen(const SocketAddress& listener);
  absl::StatusOr<std::string> ListenAt(const ListenSpec& spec, const SocketAddress& address);
  // `memory`: of a device. Null: of the host.
  absl::StatusOr<Region> Register(std::span<std::byte> bytes, const DeviceMemory* memory);
  absl::Status AddPeer(const PeerHandle& peer);
  void Advance(Peer& peer);
  void Forget(Peer& peer);

  // fabric_events.cc
  void ReadEvents();
  bool ReadEvent();
  void OnEvent(EventSink& sink, Event event);
  void OnConnectRequest(Event event);
  // Accepts a request that came with a good token.
  bool Accept(const Event& event, const PeerHandle& peer, const TokenGate::Entry& entry);
  void OnEstablished(EventSink& sink, const PeerHandle& peer);
  void OnEventError(EventSink& sink, const PeerHandle& peer, const Event& event);
  void PollTimeouts(EventSink& sink, int* work);
  // Ends strangers' connections if they are too many or too old.
  void LookAtHalfOpen(int* work);
  void PollPeer(EventSink& sink, const PeerHandle& peer, int* budget, int* work);
  void Deliver(EventSink& sink, const PeerHandle& peer,
               const FabricConnection::Completion& completion, int* budget);
  void End(EventSink& sink, const PeerHandle& peer, const std::string& reason);
  PeerHandle Find(fid_t endpoint) const;
  void NoteReadyDescriptors();

  const FabricOptions options_;
  const runtime::Clock* const clock_;
  PeerWatch watch_;
  HalfOpen half_open_;
  DeadlineTimer half_open_timer_;              // Open once we listen.
  std::optional<int64_t> half_open_rings_ns_;  // When the timer rings.
  KeySource keys_;
  const DataKey listener_key_;  // The same for all our listeners.
  TokenMaker tokens_;
  TokenGate gate_;
  const std::unique_ptr<Provider> provider_;
  TrafficCounters counters_;

  Descriptor epoll_;
  bool events_armed_ = false;
  uint64_t next_id_ = 1;
  Turns turns_;
  std::map<ConnectionId, PeerHandle> peers_;
  std::map<fid_t, ConnectionId> by_endpoint_;
  std::deque<Event> events_;       // Read, and not handled yet.
  std::deque<PeerHandle> broken_;  // Ended, but the sink has not been told yet.
  std::vector<PassiveEndpointHandle> listeners_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LIBFABRIC_FABRIC_CLASS_H_
