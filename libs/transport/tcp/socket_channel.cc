// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "libs/status/status.h"
#include "libs/transport/tcp/channel.h"
#include "libs/transport/tcp/readable_socket.h"

namespace talweg::transport {
namespace {

// The most bytes for one system call. Tags are made just before the kernel copies the bytes, so a
// sealed batch stays in a cache.
constexpr size_t kPlainBatchBytes = 4 * 1024 * 1024;
constexpr size_t kSealedBatchBytes = 256 * 1024;
constexpr size_t kBatchPartsMax = 64;
// Up to so many bytes after a unit are read with it, and copied to their places later.
constexpr size_t kStagingBytes = 16 * 1024;
// How many pieces one system call reads.
constexpr size_t kChain = 4;

// Plain, or sealed.
class SocketChannel final : public Channel {
 public:
  SocketChannel(int socket, std::optional<Seal> ours, std::optional<Seal> theirs)
      : socket_(socket),
        readable_(socket),
        ours_(std::move(ours)),
        theirs_(std::move(theirs)),
        staging_(kStagingBytes) {}

  void Queue(std::span<const std::byte> unit) override;
  absl::Status Flush() override;
  uint64_t sent() const override { return sent_; }
  uint64_t unsent_bytes() const override { return queued_ - sent_; }
  absl::StatusOr<bool> Receive(std::span<std::byte> unit) override;
  bool drained() const override { return readable_.drained(); }
  void OnReadable(bool is_ending) override { readable_.OnReadable(is_ending); }

 private:
  // A part of a unit, and the tag that follows it if the channel seals.
  struct Piece {
    std::span<const std::byte> bytes;
    Tag tag{};
    bool tagged = false;
    size_t left_bytes = 0;  // How much the kernel has, tag included.
  };

  size_t TagBytes() const { return ours_ ? kTagBytes : 0; }
  void OnSent(size_t bytes);
  // Returns the end of the piece that begins at `begin`.
  size_t PieceEnd(std::span<const std::byte> unit, size_t begin) const {
    return theirs_ ? std::min(begin + kPieceBytes, unit.size()) : unit.size();
  }
  absl::StatusOr<size_t> Read(std::span<std::byte> unit);
  absl::StatusOr<size_t> Take(std::span<std::byte> unit, size_t bytes, const std::byte* staged);

  const int socket_;
  ReadableSocket readable_;
  std::optional<Seal> ours_;
  std::optional<Seal> theirs_;

  std::deque<Piece> pieces_;
  uint64_t queued_ = 0;
  uint64_t sent_ = 0;

  // Where the unit's current piece begins, and how much of the unit and of the tag has come.
  size_t piece_begin_ = 0;
  size_t received_ = 0;
  size_t tag_received_ = 0;
  std::array<Tag, kChain> tags_{};
  std::vector<std::byte> staging_;
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;
};

void SocketChannel::Queue(std::span<const std::byte> unit) {
  const size_t step = ours_ ? kPieceBytes : unit.size();
  for (size_t begin = 0; begin < unit.size(); begin += step) {
    pieces_.push_back({.bytes = unit.subspan(begin, std::min(step, unit.size() - begin))});
  }
  queued_ += unit.size();
}

absl::Status SocketChannel::Flush() {
  const size_t batch_max = ours_ ? kSealedBatchBytes : kPlainBatchBytes;
  while (!pieces_.empty()) {
    std::array<iovec, kBatchPartsMax> parts;
    size_t count = 0;
    size_t bytes = 0;
    const auto add = [&](const std::byte* at, size_t size) {
      parts[count++] = {const_cast<std::byte*>(at), size};
      bytes += size;
    };
    for (Piece& piece : pieces_) {
      if (count + 2 > parts.size() || bytes >= batch_max) break;
      if (ours_ && !piece.tagged) {
        piece.tag = ours_->Next(piece.bytes);
        piece.tagged = true;
      }
      const size_t size = piece.bytes.size();
      if (piece.left_bytes < size) {
        add(piece.bytes.data() + piece.left_bytes, size - piece.left_bytes);
      }
      if (ours_) {
        const size_t tag_left = piece.left_bytes > size ? piece.left_bytes - size : 0;
        add(piece.tag.data() + tag_left, kTagBytes - tag_left);
      }
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t taken = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
      return status::ErrnoStatus(errno, "send");
    }
    OnSent(static_cast<size_t>(taken));
    if (static_cast<size_t>(taken) < bytes) return absl::OkStatus();
  }
  return absl::OkStatus();
}

void SocketChannel::OnSent(size_t bytes) {
  while (bytes > 0) {
    Piece& piece = pieces_.front();
    const size_t size = piece.bytes.size();
    const size_t before = std::min(piece.left_bytes, size);
    const size_t taken = std::min(bytes, size + TagBytes() - piece.left_bytes);
    piece.left_bytes += taken;
    bytes -= taken;
    sent_ += std::min(piece.left_bytes, size) - before;
    if (piece.left_bytes == size + TagBytes()) pieces_.pop_front();
  }
}

absl::StatusOr<bool> SocketChannel::Receive(std::span<std::byte> unit) {
  size_t turn_bytes = 0;
  while (piece_begin_ < unit.size()) {
    if (staged_begin_ < staged_end_) {
      const std::byte* const staged = staging_.data() + staged_begin_;
      TALWEG_ASSIGN_OR_RETURN(const size_t left, Take(unit, staged_end_ - staged_begin_, staged));
      staged_begin_ = staged_end_ - left;
      continue;
    }
    if (turn_bytes >= kTurnBytesMax) return false;
    TALWEG_ASSIGN_OR_RETURN(const size_t read, Read(unit));
    if (read == 0) return false;
    turn_bytes += read;
  }
  piece_begin_ = received_ = 0;
  return true;
}

// Reads the rest of the unit, or some pieces of it, to its place, and the bytes after it to
// staging_. Returns how many bytes came; 0: none.
absl::StatusOr<size_t> SocketChannel::Read(std::span<std::byte> unit) {
  std::array<iovec, 2 * kChain + 1> parts;
  size_t count = 0;
  const auto add = [&](std::byte* at, size_t size) {
    if (size > 0) parts[count++] = {at, size};
  };
  size_t begin = piece_begin_;
  size_t received = received_;
  size_t tag_received = tag_received_;
  for (size_t i = 0; i < kChain && begin < unit.size(); ++i) {
    const size_t end = PieceEnd(unit, begin);
    add(unit.data() + received, end - received);
    if (theirs_) add(tags_[i].data() + tag_received, kTagBytes - tag_received);
    begin = received = end;
    tag_received = 0;
  }
  if (begin == unit.size()) add(staging_.data(), staging_.size());
  TALWEG_ASSIGN_OR_RETURN(const size_t got, readable_.Read(std::span(parts).first(count)));
  if (got == 0) return 0;
  TALWEG_ASSIGN_OR_RETURN(const size_t left, Take(unit, got, nullptr));
  staged_begin_ = 0;
  staged_end_ = left;
  return got;
}

// Handles bytes that have come for the unit: copies them from `staged`, or, if that is null, finds
// them in place. Returns how many of them lie after the unit's end.
absl::StatusOr<size_t> SocketChannel::Take(std::span<std::byte> unit, size_t bytes,
                                           const std::byte* staged) {
  for (size_t i = 0; bytes > 0 && piece_begin_ < unit.size(); ++i) {
    const size_t end = PieceEnd(unit, piece_begin_);
    const auto move = [&](std::byte* to, size_t wanted) {
      const size_t size = std::min(bytes, wanted);
      if (staged != nullptr) {
        memcpy(to, staged, size);
        staged += size;
      }
      bytes -= size;
      return size;
    };
    received_ += move(unit.data() + received_, end - received_);
    if (received_ < end) break;
    if (theirs_) {
      Tag& tag = tags_[staged != nullptr ? 0 : i];
      tag_received_ += move(tag.data() + tag_received_, kTagBytes - tag_received_);
      if (tag_received_ < kTagBytes) {
        tags_[0] = tag;
        break;
      }
      tag_received_ = 0;
      if (!theirs_->Check(unit.subspan(piece_begin_, end - piece_begin_), tag)) {
        return absl::DataLossError(
            "sent bytes that are not what their tag says: somebody has changed, repeated or left "
            "out bytes on their way");
      }
    }
    piece_begin_ = end;
  }
  return bytes;
}

}  // namespace

std::unique_ptr<Channel> NewPlainChannel(int socket) {
  return std::make_unique<SocketChannel>(socket, std::nullopt, std::nullopt);
}

std::unique_ptr<Channel> NewSealedChannel(int socket, const SealKey& ours, const SealKey& theirs) {
  return std::make_unique<SocketChannel>(socket, Seal(ours), Seal(theirs));
}

}  // namespace talweg::transport
