// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/status/status.h"

namespace talweg::transport {
namespace {

constexpr const char* kNoProof =
    "did not prove that it has this connection's key: it is not the process that the scheduler "
    "knows at that address, or one of another release";
// The most bytes that are read before a close, so that the kernel does not reset the connection.
constexpr size_t kDrainBytesMax = 256 * 1024;

}  // namespace

TcpConnection::TcpConnection(ConnectionId id, Descriptor socket, const TcpAddress& address,
                             const TlsContext* tls, std::string name)
    : id_(id),
      socket_(std::move(socket)),
      state_(State::kConnecting),
      security_(address.security),
      peer_(std::move(name)),
      tls_(tls),
      handshake_(std::in_place_type<ConnectingHandshake>, address) {}

TcpConnection::TcpConnection(ConnectionId id, Descriptor socket, const DataKey& listener,
                             DataSecurity security, const TlsContext* tls, std::string name)
    : id_(id),
      socket_(std::move(socket)),
      state_(State::kHello),
      security_(security),
      peer_(std::move(name)),
      tls_(tls),
      handshake_(std::in_place_type<ListeningHandshake>, listener, security) {}

absl::Status TcpConnection::Shake() {
  while (!open() && !closed()) {
    TALWEG_ASSIGN_OR_RETURN(const bool went_on, ShakeOnce());
    if (!went_on) break;
  }
  return absl::OkStatus();
}

// Returns whether the state has changed.
absl::StatusOr<bool> TcpConnection::ShakeOnce() {
  switch (state_) {
    case State::kConnecting: return OnConnected();
    case State::kAnswer: {
      TALWEG_ASSIGN_OR_RETURN(const bool whole, ReceiveMessage(answer_));
      if (!whole) return false;
      auto& handshake = std::get<ConnectingHandshake>(handshake_);
      const std::optional<ProofMessage> proof = handshake.OnAnswer(answer_);
      if (!proof) return absl::UnauthenticatedError(kNoProof);
      TALWEG_RETURN_IF_ERROR(SendMessage(*proof));
      const SessionSeals seals = handshake.Seals();
      OpenAfterProof(seals.connecting, seals.listening);
      return true;
    }
    case State::kHello: {
      TALWEG_ASSIGN_OR_RETURN(const bool whole, ReceiveMessage(hello_));
      if (!whole) return false;
      auto& handshake = std::get<ListeningHandshake>(handshake_);
      const std::optional<AnswerMessage> answer = handshake.OnHello(hello_);
      if (!answer) return absl::UnauthenticatedError(kNoProof);
      if (security_ == DataSecurity::kTls) {
        shaking_ = tls_->NewHandshake(socket_.get(), /*connects=*/false, handshake.PreSharedKey());
        state_ = State::kTls;
        return true;
      }
      TALWEG_RETURN_IF_ERROR(SendMessage(*answer));
      state_ = State::kProof;
      return true;
    }
    case State::kProof: {
      TALWEG_ASSIGN_OR_RETURN(const bool whole, ReceiveMessage(proof_));
      if (!whole) return false;
      const auto& handshake = std::get<ListeningHandshake>(handshake_);
      if (!handshake.OnProof(proof_)) return absl::UnauthenticatedError(kNoProof);
      identity_ = handshake.identity();
      const SessionSeals seals = handshake.Seals();
      OpenAfterProof(seals.listening, seals.connecting);
      return true;
    }
    case State::kTls: {
      TALWEG_ASSIGN_OR_RETURN(const bool done, shaking_->Shake());
      if (!done) return false;
      if (const auto* listening = std::get_if<ListeningHandshake>(&handshake_)) {
        identity_ = listening->identity();
      }
      Open(shaking_->TakeChannel());
      shaking_.reset();
      return true;
    }
    case State::kOpen:
    case State::kClosed: break;
  }
  return false;
}

absl::StatusOr<bool> TcpConnection::OnConnected() {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return status::ErrnoStatus(error, "connect");
  sockaddr_storage peer{};
  size = sizeof(peer);
  if (getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    return false;  // Not yet.
  }
  const auto& handshake = std::get<ConnectingHandshake>(handshake_);
  TALWEG_RETURN_IF_ERROR(SendMessage(handshake.hello()));
  state_ = State::kAnswer;
  if (security_ == DataSecurity::kTls) {
    shaking_ = tls_->NewHandshake(socket_.get(), /*connects=*/true, handshake.PreSharedKey());
    state_ = State::kTls;
  }
  return true;
}

// Receives exactly one message of the handshake. Returns whether it is complete.
absl::StatusOr<bool> TcpConnection::ReceiveMessage(std::span<std::byte> message) {
  while (message_received_ < message.size()) {
    const auto rest = message.subspan(message_received_);
    const ssize_t got = recv(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      return status::ErrnoStatus(errno, "receive");
    }
    if (got == 0) {
      return absl::UnavailableError(
          "closed the connection before it was open: it may be another process than before, or "
          "know another view, or run with another --data_security");
    }
    message_received_ += static_cast<size_t>(got);
  }
  message_received_ = 0;
  return true;
}

// A socket takes the few bytes of a handshake at once.
absl::Status TcpConnection::SendMessage(std::span<const std::byte> message) {
  const ssize_t sent =
      send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return status::ErrnoStatus(errno, "send");
  if (static_cast<size_t>(sent) < message.size()) return absl::UnavailableError("takes no bytes");
  return absl::OkStatus();
}

void TcpConnection::OpenAfterProof(const SealKey& ours, const SealKey& theirs) {
  Open(security_ == DataSecurity::kKeyed ? NewSealedChannel(socket_.get(), ours, theirs)
                                         : NewPlainChannel(socket_.get()));
}

void TcpConnection::Open(std::unique_ptr<Channel> channel) {
  channel_ = std::move(channel);
  // Epoll has already reported bytes that came with the handshake's last message.
  channel_->OnReadable(false);
  state_ = State::kOpen;
  handshake_.emplace<std::monostate>();
  frame_buffer_.resize(wire::kFrameBytesMax);
  QueueWaiting();
}

void TcpConnection::QueueWaiting() {
  for (Waiting& each : std::exchange(waiting_, {})) {
    if (each.source) {
      PostWrite(*each.source, each.target, each.context);
    } else {
      PostFrame(std::move(each.frame));
    }
  }
  waiting_bytes_ = 0;
}

void TcpConnection::Queue(Post& post, std::span<const std::byte> bytes, TcpRecordHeader header) {
  header.length = static_cast<uint32_t>(bytes.size());
  post.header = ToBytes(header);
  channel_->Queue(post.header);
  if (!bytes.empty()) channel_->Queue(bytes);
  queued_ += sizeof(TcpHeaderBytes) + bytes.size();
  post.end = queued_;
}

void TcpConnection::PostWrite(RegionSlice source, wire::RemoteRef target, uint64_t context) {
  if (!open()) {
    waiting_.push_back({.source = source, .target = target, .context = context, .frame = {}});
    waiting_bytes_ += source.length;
    return;
  }
  const std::span<const std::byte> bytes =
      source.registration->bytes().subspan(source.offset, source.length);
  for (size_t offset = 0; offset < bytes.size(); offset += kWriteRecordBytesMax) {
    Queue(posts_.emplace_back(),
          bytes.subspan(offset, std::min(kWriteRecordBytesMax, bytes.size() - offset)),
          {.type = TcpRecordType::kWrite, .key = target.key, .address = target.address + offset});
  }
  if (bytes.empty()) posts_.emplace_back().end = queued_;
  posts_.back().context = context;
}

void TcpConnection::PostFrame(std::vector<std::byte> frame) {
  if (!open()) {
    waiting_bytes_ += frame.size();
    waiting_.push_back({.source = std::nullopt, .target = {}, .frame = std::move(frame)});
    return;
  }
  Post& post = posts_.emplace_back();
  post.frame = std::move(frame);
  Queue(post, post.frame, {.type = TcpRecordType::kFrame});
}

void TcpConnection::PostHeartbeat() {
  if (open()) Queue(posts_.emplace_back(), {}, {.type = TcpRecordType::kHeartbeat});
}

uint64_t TcpConnection::pending_bytes() const {
  return waiting_bytes_ + (channel_ == nullptr ? 0 : channel_->unsent_bytes());
}

absl::Status TcpConnection::Advance() {
  if (!open()) return absl::OkStatus();
  const absl::Status status = channel_->Flush();
  while (!posts_.empty() && posts_.front().end <= channel_->sent()) {
    if (posts_.front().context) done_.push_back(*posts_.front().context);
    posts_.pop_front();
  }
  return status;
}

std::optional<uint64_t> TcpConnection::TakeDone() {
  if (done_.empty()) return std::nullopt;
  const uint64_t context = done_.front();
  done_.pop_front();
  return context;
}

absl::StatusOr<TcpConnection::ReadResult> TcpConnection::Read(const RegionTable& regions) {
  if (!open()) return ReadResult::kNothing;
  if (!in_body_) {
    TALWEG_ASSIGN_OR_RETURN(const bool whole, channel_->Receive(header_bytes_));
    if (!whole) return ReadResult::kNothing;
    header_ = FromBytes(header_bytes_);
    if (header_.type == TcpRecordType::kHeartbeat && header_.length == 0) {
      return ReadResult::kHeartbeat;
    }
    in_body_ = true;
  }
  // Looked up each time, because a region may be gone since the write's first bytes came.
  TALWEG_ASSIGN_OR_RETURN(const std::span<std::byte> place, BodyPlace(regions));
  TALWEG_ASSIGN_OR_RETURN(const bool whole, channel_->Receive(place));
  if (!whole) return ReadResult::kNothing;
  in_body_ = false;
  if (header_.type == TcpRecordType::kWrite) return ReadResult::kWrite;
  frame_ = place;
  return ReadResult::kFrame;
}

absl::StatusOr<std::span<std::byte>> TcpConnection::BodyPlace(const RegionTable& regions) {
  const size_t length = header_.length;
  if (header_.type == TcpRecordType::kFrame && length > 0 && length <= wire::kFrameBytesMax) {
    return std::span(frame_buffer_).first(length);
  }
  if (header_.type == TcpRecordType::kWrite && length > 0 && length <= kWriteRecordBytesMax) {
    const auto place = PlaceIn(regions, header_.key, header_.address, length, identity_);
    if (place) return *place;
    return absl::InvalidArgumentError("has written " + Counted(length, "byte") +
                                      " to a place that was not given to it");
  }
  return absl::InvalidArgumentError(
      "has sent a record of type " + std::to_string(static_cast<uint32_t>(header_.type)) +
      " and length " + std::to_string(length) + ", which does not exist");
}

void TcpConnection::OnReadable(bool is_ending) {
  if (channel_ != nullptr) channel_->OnReadable(is_ending);
}

void TcpConnection::Close() {
  if (closed()) return;
  state_ = State::kClosed;
  // Unread bytes make the kernel reset the connection, and the peer then loses what was sent to it.
  // So this side reads them first, within bounds.
  shutdown(socket_.get(), SHUT_WR);
  std::array<std::byte, 16 * 1024> ignored;
  for (size_t drained = 0; drained < kDrainBytesMax;) {
    const ssize_t got = recv(socket_.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    drained += static_cast<size_t>(got);
  }
  handshake_.emplace<std::monostate>();
  shaking_.reset();
  channel_.reset();
  socket_.Reset();
  waiting_.clear();
  waiting_bytes_ = 0;
  posts_.clear();
  done_.clear();
}

}  // namespace talweg::transport
