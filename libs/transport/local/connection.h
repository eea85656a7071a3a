// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LOCAL_CONNECTION_H_
#define TALWEG_LIBS_TRANSPORT_LOCAL_CONNECTION_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/base/ids.h"
#include "libs/transport/local/handshake.h"
#include "libs/transport/local/ring.h"
#include "libs/transport/regions.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

// One connection: its two rings, and the posts that have not fitted into our ring yet.
class LocalConnection {
 public:
  // `socket` is connected, before the handshake. `peer` names the other side in messages.
  LocalConnection(ConnectionId id, Descriptor socket, RingMapping ours, std::string peer)
      : id_(id), socket_(std::move(socket)), ours_(std::move(ours)), peer_(std::move(peer)) {}

  ConnectionId id() const { return id_; }
  const std::string& peer() const { return peer_; }
  int socket() const { return socket_.get(); }
  const RingMapping& ring() const { return ours_; }
  bool established() const { return theirs_.valid(); }
  bool closed() const { return !socket_.valid(); }

  // Takes over the descriptors from the peer's handshake.
  absl::Status Establish(PeerDescriptors peer);
  // Sets the identity of a peer that has connected. It may write to the regions of this member, and
  // to regions without a writer.
  void set_identity(const PeerIdentity& identity) { identity_ = identity; }
  const std::optional<PeerIdentity>& identity() const { return identity_; }

  void PostWrite(RegionSlice source, wire::RemoteRef target, uint64_t context);
  void PostFrame(std::vector<std::byte> frame);
  uint64_t pending_bytes() const { return pending_bytes_; }

  // Copies posts into our ring as far as they fit. Appends the contexts of writes that are copied
  // whole to `done`. Returns whether it did anything. An error: the peer has broken the rules, or
  // is gone.
  absl::StatusOr<bool> Advance(std::deque<uint64_t>* done);

  // Reads one record of the peer's ring. Carries out a write. A frame is in frame() until the next
  // call. An error: the peer has broken the rules.
  enum class ReadResult : uint8_t { kEmpty, kWrite, kFrame };
  absl::StatusOr<ReadResult> Read(const RegionTable& regions);
  std::span<const std::byte> frame() const { return {frame_.data(), frame_.size()}; }

  // Tells the peer that this side sleeps, so that it rings the doorbell. Returns false if there is
  // something to do already.
  bool PrepareToSleep();
  void Awake();

  // Shows the peer that this side's event loop turns.
  void Beat();
  // Returns whether the peer has beaten since the last call, or its release never does.
  bool PeerHasBeaten();

  // When this returns, the rings are unmapped and the socket is closed.
  void Close();

 private:
  struct Post {
    bool is_frame = false;
    std::vector<std::byte> frame;
    RegionSlice source;
    wire::RemoteRef target;
    uint64_t context = 0;
    size_t copied_bytes = 0;
  };

  // Returns the room in our ring, by the peer's published read position.
  absl::StatusOr<size_t> Room();
  size_t AppendPart(Post& post, size_t room);
  bool HasInput() const;
  void RingIfAsleep();

  const ConnectionId id_;
  Descriptor socket_;
  Descriptor peer_doorbell_;
  RingMapping ours_;
  RingMapping theirs_;
  const std::string peer_;
  std::optional<PeerIdentity> identity_;

  // Private copies of what this side publishes. The values in shared memory are only for the peer.
  uint64_t written_ = 0;
  uint64_t read_ = 0;
  uint64_t read_published_ = 0;
  uint64_t peer_read_ = 0;
  uint32_t sleep_count_ = 0;
  uint32_t rung_for_ = 0;
  uint32_t beats_ = 1;
  uint32_t peer_beats_ = 0;

  std::deque<Post> posts_;
  uint64_t pending_bytes_ = 0;
  std::vector<std::byte> frame_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOCAL_CONNECTION_H_
