// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_DATA_PLANE_H_
#define TALWEG_SERVICES_AGENT_AGENT_DATA_PLANE_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libs/pipeline/effects.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/host_lookup.h"
#include "libs/transport/transport.h"
#include "libs/wire/frames.h"
#include "services/agent/tensor_memory.h"
#include "services/agent/timeline.h"

namespace talweg::agent {

// Receives what aggregators send. `connection` is the core's id of the connection.
class PeerEvents {
 public:
  virtual ~PeerEvents() = default;
  virtual void OnPeerConnected(ConnectionId connection) = 0;
  virtual void OnPeerDisconnected(ConnectionId connection, const std::string& reason) = 0;
  // Spans in `frame` are borrowed for the duration of the call.
  virtual void OnPeerFrame(ConnectionId connection, const wire::Frame& frame) = 0;
};

// The agent's connections to aggregators. Performs the core's effects on a Transport, and delivers
// the transport's events. Owned by the data thread.
class AgentDataPlane final : public transport::EventSink {
 public:
  struct Options {
    std::string host_id;
    bool local_transport = true;  // Whether an aggregator on this host is reached through memory.
    // Called on another thread. Passes its arguments to OnHostFound on the data thread.
    std::function<void(ConnectionId, absl::StatusOr<std::string>)> host_found;
    // Copies a slice of a result from the GPU into which a NIC wrote it.
    std::function<absl::Status(const pipeline::SliceBytes&, std::span<std::byte>)> fetch_result;
  };

  // All pointers outlive this object.
  AgentDataPlane(const Options& options, transport::Transport* transport,
                 const TensorMemory* memory, Timeline* timeline, const runtime::Clock* clock,
                 PeerEvents* events);

  int Poll(int events_max);

  void Do(const pipeline::Connect& effect);
  void Do(const pipeline::Close& effect);
  void Do(pipeline::Send& effect);
  void Do(const pipeline::WriteSlice& effect);

  // Returns whether the agent reaches any aggregator through this host's shared memory, which
  // cannot carry bytes of a GPU.
  bool AnyLocal() const;
  // From now on the agent reaches every aggregator over the network.
  void UseNetworkOnly() { network_only_ = true; }

  // The lookup of an aggregator's host name has ended: `literal` is the address, or the error.
  void OnHostFound(ConnectionId connection, const absl::StatusOr<std::string>& literal);

  // Returns whether everything that was posted has left.
  bool Drained() const;
  void CloseAll();

  struct Traffic {
    std::string transport;  // "fi:tcp", "local"
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
  };
  // The connection must be open.
  Traffic TrafficOf(ConnectionId connection) const;
  // Returns the transport's id of an open connection, for tests that watch the transport.
  std::optional<ConnectionId> TransportNameOf(ConnectionId connection) const;
  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_received() const { return bytes_received_; }
  uint64_t bad_frames() const { return bad_frames_; }

  // transport::EventSink
  void OnAccepted(ConnectionId connection) override;
  void OnConnected(ConnectionId connection) override;
  void OnDisconnected(ConnectionId connection, const std::string& reason) override;
  void OnFrame(ConnectionId connection, std::span<const std::byte> frame) override;
  void OnWriteDone(ConnectionId connection, uint64_t context) override;

 private:
  struct Peer {
    ConnectionId transport_id;
    Traffic traffic;
  };

  // Returns the bytes of a slice that leaves in a frame. `fetched` keeps copies of bytes that lie
  // on a GPU.
  absl::StatusOr<std::span<const std::byte>> InlineBytes(
      const pipeline::SliceBytes& slice, std::deque<std::vector<std::byte>>& fetched) const;
  void ConnectTo(ConnectionId connection, const std::string& address);
  template <typename Entry>
  void PostEntries(const pipeline::Send& send, std::vector<Entry>& entries);
  void PostFrame(ConnectionId connection, std::vector<std::byte> frame);
  void Forget(ConnectionId core_id, ConnectionId transport_id);

  const Options options_;
  transport::Transport* const transport_;
  const TensorMemory* const memory_;
  Timeline* const timeline_;
  const runtime::Clock* const clock_;
  PeerEvents* const events_;

  std::unordered_map<ConnectionId, Peer> peers_;               // By the core's id.
  std::unordered_map<ConnectionId, ConnectionId> core_names_;  // By the transport's id.
  std::vector<std::pair<ConnectionId, std::string>> failed_connects_;
  std::unordered_map<ConnectionId, std::string> looked_up_;  // Addresses of unfinished Connects.
  runtime::HostLookup lookup_;
  bool network_only_ = false;
  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
  uint64_t bad_frames_ = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_DATA_PLANE_H_
