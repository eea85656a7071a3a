// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_TRANSPORT_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

// Moves registered bytes and frames between processes.
//
// A connection is ordered: bytes written before a frame was posted have landed in the peer's region
// when the peer's OnFrame gets that frame. A connection never heals. When it breaks both sides are
// told.
namespace talweg::transport {

// The member for which a connection was opened, as the scheduler vouches for it.
struct PeerIdentity {
  JobId job;
  Epoch epoch;  // The view that gave it the key; a connection may outlive it.
  NodeRank node;
  Incarnation incarnation;

  bool SameMember(const PeerIdentity& other) const {
    return job == other.job && node == other.node && incarnation == other.incarnation;
  }
  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};

// Why a member that has proven who it is may not connect; "" if it may. Whoever has been refused is
// refused for good.
using Admission = std::function<std::string(const PeerIdentity& peer)>;

// What a Region keeps alive. A Transport makes it. It belongs to its transport's thread, and the
// transport outlives it.
class Registration {
 public:
  virtual ~Registration() = default;

  // If on_device(), these are addresses of an accelerator's, which the CPU must not use.
  std::span<std::byte> bytes() const { return bytes_; }
  bool on_device() const { return on_device_; }
  const wire::RemoteRef& base() const { return base_; }

 protected:
  std::span<std::byte> bytes_;
  bool on_device_ = false;
  wire::RemoteRef base_;
};

// The part of a Region that a write reads from. Borrowed: the region outlives the write.
struct RegionSlice {
  const Registration* registration = nullptr;
  size_t offset = 0;
  size_t length = 0;
};

// Memory known to a transport, for as long as this object lives. It is the source of local writes,
// and the target of writes by peers that were given a Ref. The key is random where the provider
// lets us choose.
//
// Before the Region is destroyed, and before its memory is used for something else, the caller
// closes the connections to peers that may write to it, or knows that they have finished. Bytes of
// a write under way may land even after a key is revoked. They never land after Transport::Close.
class Region {
 public:
  Region() = default;
  explicit Region(std::unique_ptr<Registration> registration)
      : registration_(std::move(registration)) {}

  bool valid() const { return registration_ != nullptr; }
  std::span<std::byte> bytes() const { return registration_->bytes(); }

  // What a peer needs to write here, `offset` bytes after the region's beginning.
  wire::RemoteRef Ref(size_t offset = 0) const {
    TALWEG_CHECK(offset <= bytes().size());
    return {registration_->base().key, registration_->base().address + offset};
  }
  RegionSlice Slice(size_t offset, size_t length) const {
    TALWEG_CHECK(offset <= bytes().size() && length <= bytes().size() - offset);
    return {registration_.get(), offset, length};
  }
  const Registration* registration() const { return registration_.get(); }

 private:
  std::unique_ptr<Registration> registration_;
};

// Memory of an accelerator, as its driver names it in this process.
struct DeviceMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  int device = 0;    // The driver's number for it.
  int dma_buf = -1;  // A descriptor of these bytes, borrowed for the call. -1: there is none.
};

// Where to listen. Ports: 0 for any free one, or the first free one of [port_first, port_last].
struct ListenSpec {
  // A literal address, a host name, or "" for all addresses of the host. Loopback unless told.
  std::string bind_address = "127.0.0.1";
  // A network interface, e.g. "eth1", instead of bind_address: its first IPv4 address, else IPv6.
  std::string bind_interface;
  uint16_t port_first = 0;
  uint16_t port_last = 0;
  // What peers connect to, when it differs from where we bind (several addresses, NAT).
  std::string advertise_host;
};

// Delivered inside Poll, on the owner thread. A sink may call everything but Poll.
class EventSink {
 public:
  virtual ~EventSink() = default;

  // A peer has connected to an address that we listen on.
  virtual void OnAccepted(ConnectionId connection) = 0;
  // A Connect has succeeded.
  virtual void OnConnected(ConnectionId connection) = 0;
  // The connection is over, or a Connect has failed. `reason` names the peer's address. Nothing of
  // the connection lands any more, memory of its pending writes may be reused, and no event of it
  // follows.
  virtual void OnDisconnected(ConnectionId connection, const std::string& reason) = 0;
  // `frame` is borrowed for the duration of the call.
  virtual void OnFrame(ConnectionId connection, std::span<const std::byte> frame) = 0;
  // The caller may change the source of the write. The write may not have arrived yet: a frame
  // after it tells the peer when it has.
  virtual void OnWriteDone(ConnectionId connection, uint64_t context) = 0;
};

enum class PostResult : uint8_t {
  kPosted,  // Queued; what was posted before on this connection goes first.
  kGone,    // There is no such connection (any more); nothing was taken.
};

// Belongs to one thread, which makes, uses and destroys it, its regions included. Nothing blocks
// but the resolution of a host name that is no literal address.
class Transport {
 public:
  virtual ~Transport() = default;

  // Returns what peers pass to Connect: one address, or several joined by commas (SelectAddress).
  // ALREADY_EXISTS: no port free. INVALID_ARGUMENT: no such address or interface.
  virtual absl::StatusOr<std::string> Listen(const ListenSpec& spec) = 0;

  // OnConnected or OnDisconnected follows, within the transport's time limit. Frames and writes may
  // be posted at once. INVALID_ARGUMENT: not an address of this transport.
  virtual absl::StatusOr<ConnectionId> Connect(const std::string& address) = 0;

  // Ends a connection at once. When this returns, nothing of it lands any more, memory of its
  // pending writes may be reused, and no event of it follows. Drops what was posted and has not
  // left. The peer gets OnDisconnected. Unknown connections are ignored.
  virtual void Close(ConnectionId connection) = 0;

  // Makes memory known until the Region is destroyed. Pins it where the provider needs that.
  // RESOURCE_EXHAUSTED when the locked-memory limit is reached; the text names the limit and the
  // remedy.
  virtual absl::StatusOr<Region> Register(std::span<std::byte> bytes) = 0;

  // OK if RegisterDevice may succeed; otherwise why not, for people. The caller copies to host
  // memory what it does not take.
  virtual absl::Status TakesDeviceMemory() const {
    return absl::UnimplementedError("it carries host memory only");
  }
  // Like Register, for memory that the network device itself reads and writes, past every CPU.
  //
  // The work that makes the bytes is done before a write from the memory is posted. A received
  // frame does not make the peer's earlier writes visible to the accelerator. The caller flushes
  // them through its driver first. UNIMPLEMENTED: TakesDeviceMemory says why, or the provider
  // refuses this piece.
  virtual absl::StatusOr<Region> RegisterDevice(const DeviceMemory& /*memory*/) {
    return TakesDeviceMemory();
  }

  // Copies `source` to the peer's memory. It may wait for a frame that is posted after it, or for
  // the next Poll. OnWriteDone(connection, context) follows, unless the connection ends first. A
  // target that is not the peer's to give ends the connection.
  virtual PostResult PostWrite(ConnectionId connection, RegionSlice source, wire::RemoteRef target,
                               uint64_t context) = 0;

  // `frame`: 1 to wire::kFrameBytesMax bytes.
  virtual PostResult PostFrame(ConnectionId connection, std::vector<std::byte> frame) = 0;

  // Makes progress and delivers at most `events_max` events. Returns how many, and what else it has
  // done (0: idle). Whoever is written to must poll, or the writer waits.
  virtual int Poll(EventSink& sink, int events_max) = 0;

  // For transports that have to trust whom they are connected with. Asked on the owner thread of
  // everybody who connects to us and proves who it is, before anything else of it is looked at.
  // Whoever is refused hears why, and OnAccepted does not tell of it. Without one all may come.
  virtual void SetAdmission(Admission /*admission*/) {}
  // Who the peer of an accepted connection has proven to be. nullopt: this transport makes nobody
  // prove it.
  virtual std::optional<PeerIdentity> ProvenIdentity(ConnectionId /*connection*/) const {
    return std::nullopt;
  }
  // The address of the host that an accepted connection comes from, without the port. Empty: this
  // machine, by shared memory.
  virtual std::string PeerHost(ConnectionId /*connection*/) const { return ""; }
  // Like Register. Where peers prove who they are, and we carry their writes out ourselves, the
  // region takes writes of that member alone.
  virtual absl::StatusOr<Region> RegisterFor(std::span<std::byte> bytes,
                                             const PeerIdentity& /*writer*/) {
    return Register(bytes);
  }

  // For epoll. It is readable when Poll would find something, provided that PrepareToSleep said
  // true since the last Poll.
  virtual int WaitDescriptor() const = 0;
  // False: there may be something already, so poll again.
  virtual bool PrepareToSleep() = 0;

  // Bytes of frames and writes that were posted on this connection and have not left yet.
  virtual uint64_t PendingBytes(ConnectionId connection) const = 0;
};

// Selects the address to pass to Connect from those that a Listen returned. It is the host's own
// shared memory if that is offered and `same_host` (HostId() of both sides is equal and not empty).
// Otherwise it is the first one over the network. An empty string when there is none.
std::string SelectAddress(const std::string& addresses, bool same_host);

// The host in an address of a network transport, without brackets. "" when it has none. For callers
// that must not wait for name servers: Connect does not wait for a literal address.
std::string HostOf(const std::string& address);
// The same address with another host.
std::string WithHost(const std::string& address, const std::string& host);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TRANSPORT_H_
