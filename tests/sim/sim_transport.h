// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SIM_TRANSPORT_H_
#define TALWEG_TESTS_SIM_SIM_TRANSPORT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libs/base/random.h"
#include "libs/encoding/codec.h"
#include "libs/runtime/clock.h"
#include "libs/transport/proof/token_book.h"
#include "libs/transport/transport.h"
#include "services/aggregator/slot_memory.h"
#include "services/aggregator/summer.h"
#include "tests/sim/network.h"
#include "tests/sim/timeline.h"

// The surroundings of the daemons' drivers in the simulation: virtual time, the simulated network
// behind a Transport, and memory of real bytes, in which the first number of every 64 bytes is a
// cell.
namespace talweg::sim {

class SimClock final : public runtime::Clock {
 public:
  explicit SimClock(const Timeline* timeline) : timeline_(timeline) {}
  int64_t NowNs() const override { return timeline_->now_ns(); }

 private:
  const Timeline* const timeline_;
};

class CellMemory final : public aggregator::MemorySource {
 public:
  void Map(size_t bytes, std::weak_ptr<const void> wanted, Then then) override;
};

// Adds cells as the ledger does, in the order of the inputs.
class CellSummer final : public aggregator::Summer {
 public:
  void Sum(const aggregator::SliceSum& sum) const override;
};

// Encodes cells. A slice whose cells are evenly spaced, as all that ranks push are, takes two as
// runs. Twice takes each cell, and each inverted. Cells are exact, so an encoding that rounds
// takes what runs take, with each cell inverted.
class CellCodec final : public encoding::Codec {
 public:
  size_t Encode(Encoding encoding, uint64_t seed, std::span<const std::byte> plain,
                std::span<std::byte> out) const override;
  bool Decode(Encoding encoding, std::span<const std::byte> encoded,
              std::span<std::byte> plain) const override;
};

// Sees events of a transport that its owner does not see, or not at this moment.
class TransportWatcher {
 public:
  virtual ~TransportWatcher() = default;
  // There is something to poll for.
  virtual void OnWake() = 0;
  virtual void OnFramePosted(ConnectionId connection, std::span<const std::byte> frame) = 0;
  // An event for the owner. The watcher calls `deliver` once. `frame` is empty if the event is no
  // frame. `is_end`: the connection is over.
  virtual void OnEvent(ConnectionId connection, std::span<const std::byte> frame, bool is_end,
                       const std::function<void()>& deliver) = 0;
  // A member has shown this token. `why` it is not let in, or "".
  virtual void OnToken(const transport::TokenClaim& claim, const std::string& why) = 0;
  // A peer writes here, inside a region.
  virtual void OnLanding(wire::RemoteRef target, uint64_t bytes) = 0;
};

// One process's end of the network.
class SimTransport final : public transport::Transport, public Process {
 public:
  // Keys of regions begin at `first_key`. All pointers outlive the transport and its regions.
  SimTransport(Network* network, HostIndex host, uint64_t first_key, TransportWatcher* watcher)
      : network_(network),
        host_(host),
        next_key_(first_key),
        watcher_(watcher),
        random_(first_key) {}

  // --- transport::Transport.
  absl::StatusOr<std::string> Listen(const transport::ListenSpec&) override {
    return std::to_string(host_);
  }
  absl::StatusOr<ConnectionId> Connect(const std::string& address) override;
  void Close(ConnectionId connection) override;
  absl::StatusOr<transport::Region> Register(std::span<std::byte> bytes) override;
  transport::PostResult PostWrite(ConnectionId connection, transport::RegionSlice source,
                                  wire::RemoteRef target, uint64_t context) override;
  transport::PostResult PostFrame(ConnectionId connection, std::vector<std::byte> frame) override;
  int Poll(transport::EventSink& sink, int events_max) override;
  int WaitDescriptor() const override { return -1; }
  bool PrepareToSleep() override { return events_.empty(); }
  uint64_t PendingBytes(ConnectionId) const override { return 0; }
  void SetAdmission(transport::Admission admission) override { admission_ = std::move(admission); }
  std::optional<transport::PeerIdentity> ProvenIdentity(ConnectionId connection) const override;

  // `next_claim` returns the token for the next connection. Without it, or with nullopt, the
  // transport proves nothing.
  void SetClaims(std::function<std::optional<transport::TokenClaim>()> next_claim) {
    next_claim_ = std::move(next_claim);
  }
  // When the frame that is being delivered, or was delivered last, was sent.
  int64_t frame_sent_ns() const { return frame_sent_ns_; }

  // Shows a token again that was let in before. Returns whether it is let in.
  bool LetsInAgain();
  // Returns whether a member with a token that was never used is let in.
  bool LetsIn(const transport::PeerIdentity& peer) const {
    return !admission_ || admission_(peer).empty();
  }

  // --- Process.
  void OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) override;
  std::string WhyRefused(ConnectionId connection, const transport::TokenClaim& claim) override;
  void OnLinkAccepted(ConnectionId connection) override;
  void OnLinkOpen(ConnectionId connection) override;
  void OnLinkLost(ConnectionId connection, const std::string& reason) override;
  void OnWriteLanded(ConnectionId connection, uint64_t context) override;
  CellTarget Target(ConnectionId connection, wire::RemoteRef ref, uint64_t cells) override;

 private:
  enum class What : uint8_t { kAccepted, kConnected, kDisconnected, kFrame, kWriteDone };
  struct Event {
    What what = What::kAccepted;
    ConnectionId connection;
    std::vector<std::byte> frame;
    std::string reason;
    uint64_t context = 0;
    int64_t sent_ns = 0;
  };
  class Registered;

  // The transport's own check, as in the libfabric transport.
  std::string Check(const transport::TokenClaim& claim);
  void Push(Event event);
  static void Deliver(transport::EventSink& sink, const Event& event);
  Cells Read(uint64_t key, size_t offset, size_t length) const;

  Network* const network_;
  const HostIndex host_;
  uint64_t next_key_;
  uint64_t next_name_ = 1;
  TransportWatcher* const watcher_;
  std::deque<Event> events_;
  std::map<uint64_t, std::span<std::byte>> regions_;  // The registered regions, by key.
  transport::Admission admission_;
  std::function<std::optional<transport::TokenClaim>()> next_claim_;
  int64_t frame_sent_ns_ = 0;
  transport::TokenBook tokens_;
  std::vector<transport::TokenClaim> taken_;
  Random random_;  // Chooses among taken_. Its own source, so that it does not change lives.
  std::map<ConnectionId, transport::PeerIdentity> proven_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SIM_TRANSPORT_H_
