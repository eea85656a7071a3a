// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/local/connection.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/counted.h"
#include "libs/status/status.h"

namespace talweg::transport {
namespace {

// A longer write travels in several records. So the peer copies one record out while this side
// copies the next in, and both stay in a cache.
constexpr size_t kRecordBytesMax = 128 * 1024;
// With less room no record is written.
constexpr size_t kRecordBytesMin = 16 * 1024;

size_t RecordSpan(size_t length) { return kRecordHeaderBytes + RoundUp(length, kRecordAlignment); }

}  // namespace

absl::Status LocalConnection::Establish(PeerDescriptors peer) {
  TALWEG_ASSIGN_OR_RETURN(theirs_, RingMapping::Open(peer.ring.get()));
  peer_doorbell_ = std::move(peer.doorbell);
  return absl::OkStatus();
}

void LocalConnection::PostWrite(RegionSlice source, wire::RemoteRef target, uint64_t context) {
  Post& post = posts_.emplace_back();
  post.source = source;
  post.target = target;
  post.context = context;
  pending_bytes_ += source.length;
}

void LocalConnection::PostFrame(std::vector<std::byte> frame) {
  Post& post = posts_.emplace_back();
  post.is_frame = true;
  pending_bytes_ += frame.size();
  post.frame = std::move(frame);
}

absl::StatusOr<size_t> LocalConnection::Room() {
  const uint64_t peer_read = theirs_.control()->read_position.load(std::memory_order_acquire);
  if (peer_read < peer_read_ || peer_read > written_) {
    return absl::InvalidArgumentError(peer_ + " says that it has read " +
                                      std::to_string(peer_read) + " of " +
                                      Counted(written_, "byte") + " written to it");
  }
  peer_read_ = peer_read;
  return ours_.ring_bytes() - static_cast<size_t>(written_ - peer_read_);
}

absl::StatusOr<bool> LocalConnection::Advance(std::deque<uint64_t>* done) {
  if (!established() || posts_.empty()) return false;
  TALWEG_ASSIGN_OR_RETURN(size_t room, Room());
  const uint64_t before = written_;
  while (!posts_.empty()) {
    Post& post = posts_.front();
    const size_t used = AppendPart(post, room);
    const size_t length = post.is_frame ? post.frame.size() : post.source.length;
    if (used == 0 && post.copied_bytes < length) break;
    room -= used;
    if (post.copied_bytes < length) continue;
    if (!post.is_frame) done->push_back(post.context);
    posts_.pop_front();
  }
  return written_ != before;
}

// Appends the next piece of `post` to the ring. Returns the room that it took, or 0 if there was
// not enough.
size_t LocalConnection::AppendPart(Post& post, size_t room) {
  RecordHeader header{};
  const std::byte* bytes = nullptr;
  if (post.is_frame) {
    if (RecordSpan(post.frame.size()) > room) return 0;
    header.type = RecordType::kFrame;
    header.length = static_cast<uint32_t>(post.frame.size());
    bytes = post.frame.data();
  } else {
    const size_t left = post.source.length - post.copied_bytes;
    if (left == 0) return 0;
    size_t length = std::min(left, kRecordBytesMax);
    if (RecordSpan(length) > room) {
      if (room < RecordSpan(std::min(kRecordBytesMin, left))) return 0;
      length = std::min(length, room - kRecordHeaderBytes);
    }
    header.type = RecordType::kWrite;
    header.length = static_cast<uint32_t>(length);
    header.key = post.target.key;
    header.address = post.target.address + post.copied_bytes;
    bytes = post.source.registration->bytes().data() + post.source.offset + post.copied_bytes;
  }
  std::byte* const place = ours_.At(written_);
  memcpy(place, &header, sizeof(header));
  memcpy(place + kRecordHeaderBytes, bytes, header.length);
  post.copied_bytes += header.length;
  pending_bytes_ -= header.length;
  const size_t used = RecordSpan(header.length);
  written_ += used;
  // Published at once, so that the peer reads this record while this side copies the next. The
  // store is sequentially consistent, as is all of the peer's PrepareToSleep: either the peer sees
  // the record, or this side sees that the peer sleeps.
  ours_.control()->write_position.store(written_, std::memory_order_seq_cst);
  RingIfAsleep();
  return used;
}

void LocalConnection::RingIfAsleep() {
  const uint32_t sleep = theirs_.control()->sleep_count.load(std::memory_order_seq_cst);
  if ((sleep & 1) == 0 || sleep == rung_for_) return;
  rung_for_ = sleep;
  const uint64_t one = 1;
  // The write fails if the counter is full. Then the eventfd is readable, which is enough.
  [[maybe_unused]] const ssize_t ignored = write(peer_doorbell_.get(), &one, sizeof(one));
}

bool LocalConnection::HasInput() const {
  return theirs_.control()->write_position.load(std::memory_order_seq_cst) != read_;
}

absl::StatusOr<LocalConnection::ReadResult> LocalConnection::Read(const RegionTable& regions) {
  if (!established()) return ReadResult::kEmpty;
  const uint64_t end = theirs_.control()->write_position.load(std::memory_order_acquire);
  if (end == read_) return ReadResult::kEmpty;
  const uint64_t available = end - read_;
  RecordHeader header;
  // Copies before it checks, because the peer may change its memory at any time.
  memcpy(&header, theirs_.At(read_), sizeof(header));
  if (end < read_ || available > theirs_.ring_bytes() || available < kRecordHeaderBytes ||
      header.length > available - kRecordHeaderBytes) {
    return absl::InvalidArgumentError(
        peer_ + " has written a broken record at " + std::to_string(read_) + ": length " +
        std::to_string(header.length) + ", " + Counted(available, "byte") + " available");
  }
  const std::byte* const bytes = theirs_.At(read_) + kRecordHeaderBytes;
  ReadResult result = ReadResult::kWrite;
  if (header.type == RecordType::kFrame && header.length <= wire::kFrameBytesMax) {
    result = ReadResult::kFrame;
    frame_.assign(bytes, bytes + header.length);
  } else if (header.type == RecordType::kWrite) {
    const auto place = PlaceIn(regions, header.key, header.address, header.length, identity_);
    if (!place) {
      return absl::InvalidArgumentError(peer_ + " has written " + Counted(header.length, "byte") +
                                        " to a place that was not "
                                        "given to it");
    }
    memcpy(place->data(), bytes, header.length);
  } else {
    return absl::InvalidArgumentError(peer_ + " has written a record of type " +
                                      std::to_string(static_cast<uint32_t>(header.type)) +
                                      " and length " + std::to_string(header.length) +
                                      ", which does not exist");
  }
  read_ += RecordSpan(header.length);
  // Rounding may go past the position that a dishonest peer has published. An honest peer publishes
  // whole spans.
  read_ = std::min(read_, end);
  const bool drained = read_ == end;
  if (drained || read_ - read_published_ >= theirs_.ring_bytes() / 4) {
    read_published_ = read_;
    ours_.control()->read_position.store(read_, std::memory_order_seq_cst);
    if (theirs_.control()->blocked.load(std::memory_order_seq_cst) != 0) RingIfAsleep();
  }
  return result;
}

bool LocalConnection::PrepareToSleep() {
  if (!established()) return true;
  RingControl* const control = ours_.control();
  control->blocked.store(posts_.empty() ? 0 : 1, std::memory_order_seq_cst);
  if ((sleep_count_ & 1) == 0) ++sleep_count_;
  control->sleep_count.store(sleep_count_, std::memory_order_seq_cst);
  if (HasInput()) return false;
  if (posts_.empty()) return true;
  // The peer publishes its position only for every quarter of the ring, so enough room may be free
  // already.
  const uint64_t peer_read = theirs_.control()->read_position.load(std::memory_order_seq_cst);
  return peer_read == peer_read_;
}

void LocalConnection::Awake() {
  if ((sleep_count_ & 1) == 0) return;
  ++sleep_count_;
  ours_.control()->sleep_count.store(sleep_count_, std::memory_order_relaxed);
}

void LocalConnection::Beat() {
  // 0 would mean that this side never beats. The counter takes 272 years to wrap.
  ours_.control()->beats.store(++beats_, std::memory_order_relaxed);
}

bool LocalConnection::PeerHasBeaten() {
  const uint32_t seen = theirs_.control()->beats.load(std::memory_order_relaxed);
  return std::exchange(peer_beats_, seen) != seen || seen == 0;
}

void LocalConnection::Close() {
  socket_.Reset();
  peer_doorbell_.Reset();
  ours_ = RingMapping();
  theirs_ = RingMapping();
  posts_.clear();
  pending_bytes_ = 0;
}

}  // namespace talweg::transport
