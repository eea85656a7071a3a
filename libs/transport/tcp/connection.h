// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_CONNECTION_H_
#define TALWEG_LIBS_TRANSPORT_TCP_CONNECTION_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/base/ids.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/regions.h"
#include "libs/transport/tcp/channel.h"
#include "libs/transport/tcp/handshake.h"
#include "libs/transport/tcp/records.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

// One connection: its handshake, the posts that have not left, and the records that arrive.
//
//   the side that connects:  kConnecting -> kAnswer ------> kOpen    (none, keyed)
//                            kConnecting -> kTls ---------> kOpen    (tls)
//   the side that listens:   kHello -> kProof ------------> kOpen    (none, keyed)
//                            kHello -> kTls --------------> kOpen    (tls)
//
// Every state may end in kClosed. docs/protocol.md, section 9, says what is exchanged.
class TcpConnection {
 public:
  enum class State : uint8_t { kConnecting, kAnswer, kHello, kProof, kTls, kOpen, kClosed };

  // A connecting side. `socket` is connecting to the address. `name` is for messages.
  TcpConnection(ConnectionId id, Descriptor socket, const TcpAddress& address,
                const TlsContext* tls, std::string name);
  // An accepted connection.
  TcpConnection(ConnectionId id, Descriptor socket, const DataKey& listener, DataSecurity security,
                const TlsContext* tls, std::string name);

  ConnectionId id() const { return id_; }
  const std::string& peer() const { return peer_; }
  int socket() const { return socket_.get(); }
  State state() const { return state_; }
  bool open() const { return state_ == State::kOpen; }
  bool closed() const { return state_ == State::kClosed; }
  // The identity of the peer that connected, once the connection is open. nullopt at the side that
  // connects.
  const std::optional<PeerIdentity>& identity() const { return identity_; }

  // Continues the handshake as far as the socket allows. An error ends the connection.
  absl::Status Shake();

  void PostWrite(RegionSlice source, wire::RemoteRef target, uint64_t context);
  void PostFrame(std::vector<std::byte> frame);
  void PostHeartbeat();
  uint64_t pending_bytes() const;
  bool idle() const { return posts_.empty(); }
  // Sends as much as the socket takes. An error: the peer is gone.
  absl::Status Advance();
  // Returns the context of a write whose source may be changed; nullopt if there is none.
  std::optional<uint64_t> TakeDone();
  bool has_done() const { return !done_.empty(); }

  enum class ReadResult : uint8_t { kNothing, kWrite, kFrame, kHeartbeat };
  // Reads one record. Carries out a write. A frame is in frame() until the next call. An error: the
  // peer has broken the rules, or is gone.
  absl::StatusOr<ReadResult> Read(const RegionTable& regions);
  std::span<const std::byte> frame() const { return frame_; }
  // Returns whether the socket becomes readable when there is more to read.
  bool drained() const { return !open() || channel_->drained(); }
  void OnReadable(bool is_ending);

  // When this returns, nothing is sent or received any more.
  void Close();

 private:
  struct Post {
    TcpHeaderBytes header{};
    std::vector<std::byte> frame;
    std::optional<uint64_t> context;  // Only in a write's last record.
    uint64_t end = 0;                 // The post is done when the channel has sent so many bytes.
  };

  absl::StatusOr<bool> ShakeOnce();
  absl::StatusOr<bool> OnConnected();
  absl::StatusOr<bool> ReceiveMessage(std::span<std::byte> message);
  absl::Status SendMessage(std::span<const std::byte> message);
  void Open(std::unique_ptr<Channel> channel);
  void OpenAfterProof(const SealKey& ours, const SealKey& theirs);
  void Queue(Post& post, std::span<const std::byte> bytes, TcpRecordHeader header);
  void QueueWaiting();
  absl::StatusOr<std::span<std::byte>> BodyPlace(const RegionTable& regions);

  const ConnectionId id_;
  Descriptor socket_;
  State state_;
  const DataSecurity security_;
  const std::string peer_;
  const TlsContext* const tls_;
  std::optional<PeerIdentity> identity_;
  // Gone, with its keys, when the connection is open or closed.
  std::variant<ConnectingHandshake, ListeningHandshake, std::monostate> handshake_;
  size_t message_received_ = 0;
  HelloMessage hello_{};
  AnswerMessage answer_{};
  ProofMessage proof_{};
  std::unique_ptr<TlsHandshake> shaking_;
  std::unique_ptr<Channel> channel_;

  struct Waiting {
    std::optional<RegionSlice> source;
    wire::RemoteRef target;
    uint64_t context = 0;
    std::vector<std::byte> frame;
  };
  std::deque<Waiting> waiting_;  // Posted before the connection is open.
  uint64_t waiting_bytes_ = 0;
  std::deque<Post> posts_;
  uint64_t queued_ = 0;
  std::deque<uint64_t> done_;

  bool in_body_ = false;
  TcpHeaderBytes header_bytes_{};
  TcpRecordHeader header_;
  std::vector<std::byte> frame_buffer_;
  std::span<const std::byte> frame_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_CONNECTION_H_
