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

// The member for which a connection was opened. The scheduler vouches for it.
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

// Returns why a member that has proven its identity may not connect, or "" if it may. A member that
// was refused once stays refused.
using Admission = std::function<std::string(const PeerIdentity& peer)>;

// What a Region keeps alive. A Transport makes it. It belongs to its transport's thread, and the
// transport outlives it.
class Registration {
 public:
  virtual ~Registration() = default;

  // If on_device(), these are addresses of an accelerator, which the CPU must not use.
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
// and the target of writes by peers that were given a Ref. The key is random if the provider lets
// the transport choose it.
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

// Where to listen. Ports: 0 for any free one, else the first free one of [port_first, port_last].
struct ListenSpec {
  // A literal address, a host name, or "" for all addresses of the host. Loopback unless told.
  std::string bind_address = "127.0.0.1";
  // A network interface, e.g. "eth1", instead of bind_address: its first IPv4 address, else IPv6.
  std::string bind_interface;
  uint16_t port_first = 0;
  uint16_t port_last = 0;
  // The host that peers connect to, if it is not the bound one (several addresses, NAT).
  std::string advertise_host;
};

// Delivered inside Poll, on the owner thread. A sink may call everything but Poll.
class EventSink {
 public:
  virtual ~EventSink() = default;

  // A peer has connected to an address of Listen.
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
  kPosted,  // Queued, after all earlier posts on this connection.
  kGone,    // The connection is unknown or over; nothing was taken.
};

// Belongs to one thread, which makes, uses and destroys it and its regions. Nothing blocks, except
// for the resolution of a host name.
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

  // Returns OK if RegisterDevice may succeed, else why not. The caller then copies the bytes to
  // host memory.
  virtual absl::Status TakesDeviceMemory() const {
    return absl::UnimplementedError("it carries host memory only");
  }
  // Like Register, for memory that the network device itself reads and writes, past every CPU.
  //
  // The work that makes the bytes is done before a write from the memory is posted. A received
  // frame does not make the peer's earlier writes visible to the accelerator. The caller flushes
  // them through its driver first. UNIMPLEMENTED: TakesDeviceMemory says why, or the provider
  // refuses this memory.
  virtual absl::StatusOr<Region> RegisterDevice(const DeviceMemory& /*memory*/) {
    return TakesDeviceMemory();
  }

  // Copies `source` to the peer's memory. The write may wait for a frame that is posted after it,
  // or for the next Poll. OnWriteDone(connection, context) follows, unless the connection ends
  // first. A target that is not in the peer's regions ends the connection.
  virtual PostResult PostWrite(ConnectionId connection, RegionSlice source, wire::RemoteRef target,
                               uint64_t context) = 0;

  // `frame`: 1 to wire::kFrameBytesMax bytes.
  virtual PostResult PostFrame(ConnectionId connection, std::vector<std::byte> frame) = 0;

  // Makes progress, and delivers at most `events_max` events. Returns how much it has done, events
  // included; 0: idle. The target of a write must poll, or the writer waits.
  virtual int Poll(EventSink& sink, int events_max) = 0;

  // For transports that have to trust their peers. The transport asks `admission`, on the owner
  // thread, about each member that connects and proves its identity, before it reads anything else
  // from it. A refused member is told why, and OnAccepted is not called for it. Without an
  // admission all may connect.
  virtual void SetAdmission(Admission /*admission*/) {}
  // Returns the identity that the peer of an accepted connection has proven, or nullopt if this
  // transport asks for no proof.
  virtual std::optional<PeerIdentity> ProvenIdentity(ConnectionId /*connection*/) const {
    return std::nullopt;
  }
  // Returns the host address of an accepted connection's peer, without the port; of IPv6 only the
  // network of 64 bits, as connections are counted. "": this machine, through shared memory.
  virtual std::string PeerHost(ConnectionId /*connection*/) const { return ""; }
  // Like Register. If peers prove their identity and this transport itself carries out their
  // writes, the region takes only writes of `writer`.
  virtual absl::StatusOr<Region> RegisterFor(std::span<std::byte> bytes,
                                             const PeerIdentity& /*writer*/) {
    return Register(bytes);
  }

  // For epoll. The descriptor is readable when Poll would find something, if PrepareToSleep has
  // returned true since the last Poll.
  virtual int WaitDescriptor() const = 0;
  // Returns false if there may be something already, so that the caller must poll again.
  virtual bool PrepareToSleep() = 0;

  // Returns the bytes of frames and writes that were posted on this connection and have not left
  // yet.
  virtual uint64_t PendingBytes(ConnectionId connection) const = 0;
};

// Selects the address for Connect from those that Listen returned: shared memory if it is among
// them and `same_host` (HostId() of both sides is equal and not empty), else the first one over the
// network. Returns "" if there is none.
std::string SelectAddress(const std::string& addresses, bool same_host);

// Returns the host in an address of a network transport, without brackets, or "" if it has none.
// For callers that must not wait for name servers: Connect does not wait for a literal address.
std::string HostOf(const std::string& address);
// Returns the same address with another host.
std::string WithHost(const std::string& address, const std::string& host);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TRANSPORT_H_
