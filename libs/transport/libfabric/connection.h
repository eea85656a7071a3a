// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LIBFABRIC_CONNECTION_H_
#define TALWEG_LIBS_TRANSPORT_LIBFABRIC_CONNECTION_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/transport/libfabric/handles.h"
#include "libs/transport/libfabric/provider.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

// Memory registered with libfabric.
class FabricRegistration final : public Registration {
 public:
  FabricRegistration(MemoryRegionHandle region, std::span<std::byte> bytes, wire::RemoteRef base,
                     bool on_device)
      : region_(std::move(region)) {
    bytes_ = bytes;
    on_device_ = on_device;
    base_ = base;
  }

  // Returns the descriptor that transfers from this memory must carry, if the provider asks for
  // one.
  void* descriptor() const { return fi_mr_desc(region_.get()); }

 private:
  MemoryRegionHandle region_;
};

// One connected endpoint with a completion queue of its own, and the posts that wait for it. Once
// endpoint and queue are closed, no event can name the connection.
class FabricConnection {
 public:
  // The meaning of a completion.
  struct Completion {
    enum class Kind : uint8_t { kNothing, kFrame, kWriteDone };
    Kind kind = Kind::kNothing;
    std::span<const std::byte> frame;  // Valid until Repost.
    size_t buffer = 0;
    uint64_t context = 0;
  };

  // `provider` outlives this. `peer` names the other side in texts.
  FabricConnection(const Provider* provider, ConnectionId id, std::string peer)
      : provider_(provider), id_(id), peer_(std::move(peer)) {}

  // Makes the endpoint. `info` is of a peer to connect to, or of a connection request. After a
  // failure request_taken() says whether the request was used up.
  absl::Status Open(fi_info* info, int receive_buffers);

  ConnectionId id() const { return id_; }
  const std::string& peer() const { return peer_; }
  fid_ep* endpoint() const { return endpoint_.get(); }
  int descriptor() const { return descriptor_; }
  fid_cq* completion_queue() const { return completion_queue_.get(); }
  bool closed() const { return endpoint_ == nullptr; }
  bool request_taken() const { return request_taken_; }

  // The connection is established, so posts may leave.
  void OnEstablished() { established_ = true; }
  void set_peer(std::string peer) { peer_ = std::move(peer); }
  bool established() const { return established_; }

  void PostWrite(RegionSlice source, wire::RemoteRef target, uint64_t context);
  void PostFrame(std::vector<std::byte> frame);
  uint64_t pending_bytes() const { return pending_bytes_; }
  // Whether all that was posted is finished.
  bool idle() const { return posts_.empty(); }
  // With so many bytes of writes it pays to hand them over. No more leave together.
  static constexpr size_t kGatheredBytesMax = kMiB;

  // The bytes of writes that Advance has not handed over yet.
  uint64_t waiting_bytes() const { return waiting_bytes_; }

  // Hands the provider as much as it takes. Consecutive writes leave together, if the provider
  // takes that. An error says why the connection failed.
  absl::Status Advance();

  // The next completion; nullopt when there is none now. A failure: the connection is broken.
  absl::StatusOr<std::optional<Completion>> Read();
  // Gives the buffer of a received frame back to the provider.
  absl::Status Repost(size_t buffer);

  // When this returns, endpoint and queue are gone: nothing lands any more, and no source is read.
  // The receive buffers stay, because the caller may still read a frame.
  void Close();

 private:
  struct Post {
    bool is_frame = false;
    std::vector<std::byte> frame;
    size_t frame_buffer = 0;  // The frame's copy, if the provider wants it registered.
    RegionSlice source;
    wire::RemoteRef target;
    uint64_t context = 0;
    size_t handed_bytes = 0;  // How much the provider has.
    bool handed = false;      // Whether the provider has all of it.
    int transfers = 0;        // Outstanding.
  };
  static bool IsOnDevice(const Post& post);  // `post` is a write.
  static constexpr size_t kPartsMax = 4;
  static constexpr size_t kPostsMax = 16;
  // One operation of the provider. `scratch` is the provider's until the completion. It stands
  // first, because a completion names it as its context.
  struct Transfer {
    fi_context2 scratch;
    size_t buffer = 0;      // Which buffer a receive fills.
    size_t index = 0;       // In transfers_.
    size_t post_count = 0;  // 0: receive.
    std::array<Post*, kPostsMax> posts{};
    // How many bytes of each of these posts.
    std::array<size_t, kPostsMax> post_bytes{};
    size_t part_count = 0;
    std::array<iovec, kPartsMax> local{};
    std::array<void*, kPartsMax> descriptors{};
    std::array<fi_rma_iov, kPartsMax> remote{};
  };

  absl::Status AllocateBuffers();
  bool HandNext(absl::Status* failure);
  ssize_t HandFrame(Transfer& transfer);
  ssize_t HandWrites(Transfer& transfer);
  void GatherWrites(Transfer& transfer);
  void Retire(Post* post);
  absl::StatusOr<std::optional<Completion>> ReadError();
  std::byte* ReceiveBuffer(size_t index);

  const Provider* const provider_;
  const ConnectionId id_;
  std::string peer_;
  bool established_ = false;
  bool request_taken_ = false;

  std::unique_ptr<std::byte[]> buffers_;  // Receives first, then frames to send.
  MemoryRegionHandle buffers_region_;     // Set if the provider wants it.
  size_t receive_count_ = 0;
  std::vector<size_t> free_frame_buffers_;

  std::vector<Transfer> transfers_;  // Sends and writes.
  std::vector<size_t> free_transfers_;
  std::vector<Transfer> receives_;

  std::deque<std::unique_ptr<Post>> posts_;  // In order; finished ones leave at the front.
  size_t next_post_ = 0;                     // The first that is not handed.
  uint64_t pending_bytes_ = 0;
  uint64_t waiting_bytes_ = 0;
  std::deque<uint64_t> written_;  // Contexts of finished writes that Read has not returned yet.

  int descriptor_ = -1;
  // The endpoint goes before its queue.
  CompletionQueueHandle completion_queue_;
  EndpointHandle endpoint_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LIBFABRIC_CONNECTION_H_
