// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/status/status.h"
#include "libs/transport/tcp/channel.h"
#include "libs/transport/tcp/readable_socket.h"
#include "libs/transport/tcp/tls_records.h"

namespace talweg::transport {
namespace {

// The bytes that are sealed for one system call, and the bytes that one reads. They are few enough
// that the kernel and this channel find each other's bytes in a cache.
constexpr size_t kSealedBytes = 256 * 1024;
constexpr size_t kReadBytes = 256 * 1024;
// A unit of at least this size begins a record of its own, which the receiver opens straight into
// the unit's place. Smaller units share records, and are copied.
constexpr size_t kLargeBytes = 4 * 1024;
constexpr size_t kPartsMax = 64;
// The most consecutive records without data.
constexpr int kRecordsWithoutDataMax = 32;

constexpr uint8_t kCloseNotify = 0;
// A KeyUpdate message: its type, the three bytes of its length, and whether an answer is wanted.
using KeyUpdateMessage = std::array<std::byte, 5>;
constexpr KeyUpdateMessage kKeyUpdate = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1},
                                         std::byte{0}};
constexpr std::byte kAnswerWanted{1};

// Seals units straight into the send buffer, and opens records straight into units.
class TlsRecordChannel final : public Channel {
 public:
  TlsRecordChannel(int socket, const std::optional<TrafficSecret>& ours,
                   const TrafficSecret& theirs, const TlsRecordOptions& options)
      : socket_(socket), options_(options), theirs_(theirs), readable_(socket), read_(kReadBytes) {
    if (!ours) return;
    ours_.emplace(*ours);
    sealed_.resize(kSealedBytes);
  }

  void Queue(std::span<const std::byte> unit) override {
    TALWEG_CHECK(ours_.has_value());
    if (unit.empty()) return;
    units_.push_back(unit);
    queued_ += unit.size();
  }
  absl::Status Flush() override;
  uint64_t sent() const override { return sent_; }
  uint64_t unsent_bytes() const override { return queued_ - sent_ + sealed_end_ - sealed_gone_; }
  absl::StatusOr<bool> Receive(std::span<std::byte> unit) override;
  bool drained() const override { return readable_.drained(); }
  void OnReadable(bool is_ending) override { readable_.OnReadable(is_ending); }

 private:
  void SealUnits();
  size_t SealRecord();
  void SealKeyUpdate();
  std::span<std::byte> SealedRoom() { return std::span(sealed_).subspan(sealed_end_); }
  absl::StatusOr<bool> SendSealed();

  absl::StatusOr<size_t> NextRecordBytes() const;
  absl::StatusOr<size_t> ReadMore();
  absl::StatusOr<size_t> OpenRecord(std::span<const std::byte> record, std::span<std::byte> rest);
  absl::Status OnMessage(uint8_t type, std::span<const std::byte> message);

  const int socket_;
  const TlsRecordOptions options_;

  std::optional<TlsSealer> ours_;
  std::deque<std::span<const std::byte>> units_;
  size_t front_taken_ = 0;  // How much of the first unit is sealed.
  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  bool answer_due_ = false;  // The peer has asked for a new key of ours.
  std::vector<std::byte> sealed_;
  size_t sealed_end_ = 0;
  size_t sealed_gone_ = 0;  // How much of sealed_ the kernel has.

  TlsOpener theirs_;
  ReadableSocket readable_;
  std::vector<std::byte> read_;
  size_t read_begin_ = 0;
  size_t read_end_ = 0;
  // The part of a record that goes to later units.
  std::array<std::byte, kTlsContentBytesMax> opened_{};
  size_t opened_begin_ = 0;
  size_t opened_end_ = 0;
  size_t received_ = 0;
  int without_data_ = 0;
};

absl::Status TlsRecordChannel::Flush() {
  while (true) {
    SealUnits();
    TALWEG_ASSIGN_OR_RETURN(const bool all_gone, SendSealed());
    if (!all_gone || units_.empty()) return absl::OkStatus();
  }
}

void TlsRecordChannel::SealUnits() {
  constexpr size_t kRoom = sizeof(kKeyUpdate) + kTlsExtraBytes + kTlsRecordBytesMax;
  while (!units_.empty() && SealedRoom().size() >= kRoom) {
    if (answer_due_ || ours_->key().records() >= options_.records_of_key_max) SealKeyUpdate();
    for (size_t left = SealRecord(); left > 0;) {
      const size_t of_front = std::min(left, units_.front().size() - front_taken_);
      front_taken_ += of_front;
      sent_ += of_front;
      left -= of_front;
      if (front_taken_ < units_.front().size()) break;
      units_.pop_front();
      front_taken_ = 0;
    }
  }
}

// Returns how many bytes of units are in the record.
size_t TlsRecordChannel::SealRecord() {
  std::array<std::span<const std::byte>, kPartsMax> parts;
  size_t count = 0;
  size_t bytes = 0;
  for (const std::span<const std::byte> unit : units_) {
    const auto part = count == 0 ? unit.subspan(front_taken_) : unit;
    const bool is_large = part.size() >= kLargeBytes;
    if (count > 0 && (is_large || bytes + part.size() > kTlsContentBytesMax)) break;
    parts[count] = part.first(std::min(part.size(), kTlsContentBytesMax));
    bytes += parts[count].size();
    ++count;
    if (is_large || count == parts.size()) break;
  }
  sealed_end_ += ours_->Seal(TlsContent::kData, std::span(parts).first(count), SealedRoom());
  return bytes;
}

void TlsRecordChannel::SealKeyUpdate() {
  const std::span<const std::byte> message(kKeyUpdate);
  sealed_end_ += ours_->Seal(TlsContent::kHandshake, std::span(&message, 1), SealedRoom());
  ours_->key().Update();
  answer_due_ = false;
}

// Returns whether nothing is left.
absl::StatusOr<bool> TlsRecordChannel::SendSealed() {
  while (sealed_gone_ < sealed_end_) {
    const ssize_t taken = send(socket_, sealed_.data() + sealed_gone_, sealed_end_ - sealed_gone_,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      return status::ErrnoStatus(errno, "send");
    }
    sealed_gone_ += static_cast<size_t>(taken);
  }
  sealed_end_ = sealed_gone_ = 0;
  return true;
}

absl::Status NoRecord() {
  return absl::DataLossError(
      "sent bytes that are not a record of this TLS connection: somebody has changed, repeated or "
      "left out "
      "bytes on their way");
}

absl::StatusOr<bool> TlsRecordChannel::Receive(std::span<std::byte> unit) {
  size_t turn_bytes = 0;
  while (received_ < unit.size()) {
    const std::span<std::byte> rest = unit.subspan(received_);
    if (opened_begin_ < opened_end_) {
      const size_t bytes = std::min(rest.size(), opened_end_ - opened_begin_);
      memcpy(rest.data(), opened_.data() + opened_begin_, bytes);
      opened_begin_ += bytes;
      received_ += bytes;
      continue;
    }
    TALWEG_ASSIGN_OR_RETURN(const size_t record_bytes, NextRecordBytes());
    if (record_bytes > 0) {
      const auto record = std::span(read_).subspan(read_begin_, record_bytes);
      TALWEG_ASSIGN_OR_RETURN(const size_t bytes, OpenRecord(record, rest));
      read_begin_ += record_bytes;
      received_ += bytes;
      continue;
    }
    if (turn_bytes >= kTurnBytesMax) return false;
    TALWEG_ASSIGN_OR_RETURN(const size_t bytes, ReadMore());
    if (bytes == 0) return false;
    turn_bytes += bytes;
  }
  received_ = 0;
  return true;
}

// Returns the size of the next record, or 0 if it has not come as a whole.
absl::StatusOr<size_t> TlsRecordChannel::NextRecordBytes() const {
  const auto come = std::span(read_).subspan(read_begin_, read_end_ - read_begin_);
  if (come.size() < kTlsHeaderBytes) return 0;
  const std::optional<size_t> bytes = TlsRecordBytes(come.first<kTlsHeaderBytes>());
  if (!bytes) return NoRecord();
  return *bytes <= come.size() ? *bytes : 0;
}

// Returns how many bytes came, 0 if there are none.
absl::StatusOr<size_t> TlsRecordChannel::ReadMore() {
  if (read_begin_ > 0) {
    memmove(read_.data(), read_.data() + read_begin_, read_end_ - read_begin_);
    read_end_ -= read_begin_;
    read_begin_ = 0;
  }
  const iovec room = {read_.data() + read_end_, read_.size() - read_end_};
  TALWEG_ASSIGN_OR_RETURN(const size_t got, readable_.Read(std::span(&room, 1)));
  read_end_ += got;
  return got;
}

// Returns how many bytes of the record went to `rest`. The others wait in opened_.
absl::StatusOr<size_t> TlsRecordChannel::OpenRecord(std::span<const std::byte> record,
                                                    std::span<std::byte> rest) {
  const size_t content_max = record.size() - kTlsExtraBytes;
  const bool is_direct = content_max >= kLargeBytes && content_max <= rest.size();
  const std::span<std::byte> place =
      (is_direct ? rest : std::span<std::byte>(opened_)).first(content_max);
  const std::optional<TlsOpener::Opened> opened = theirs_.Open(record, place);
  if (!opened) return NoRecord();
  const bool is_data = opened->type == static_cast<uint8_t>(TlsContent::kData);
  without_data_ = is_data && opened->bytes > 0 ? 0 : without_data_ + 1;
  if (without_data_ > kRecordsWithoutDataMax) {
    return absl::InvalidArgumentError("has sent one TLS record without data after the other");
  }
  if (!is_data) {
    TALWEG_RETURN_IF_ERROR(OnMessage(opened->type, place.first(opened->bytes)));
    return 0;
  }
  if (is_direct) return opened->bytes;
  opened_begin_ = 0;
  opened_end_ = opened->bytes;
  return 0;
}

absl::Status TlsRecordChannel::OnMessage(uint8_t type, std::span<const std::byte> message) {
  if (type == static_cast<uint8_t>(TlsContent::kAlert) && message.size() == 2) {
    const auto alert = static_cast<uint8_t>(message[1]);
    if (alert == kCloseNotify) {
      return absl::UnavailableError("closed the connection, or its process ended");
    }
    return absl::UnavailableError("ended the connection with TLS alert " + std::to_string(alert));
  }
  if (type == static_cast<uint8_t>(TlsContent::kHandshake) && message.size() == kKeyUpdate.size() &&
      std::equal(message.begin(), message.end() - 1, kKeyUpdate.begin()) &&
      message.back() <= kAnswerWanted) {
    theirs_.key().Update();
    if (message.back() != kAnswerWanted) return absl::OkStatus();
    if (!ours_) {
      return absl::ResourceExhaustedError(
          "asks for a new key of this TLS connection, and the kernel takes none; another "
          "connection follows");
    }
    answer_due_ = true;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("has sent a TLS message of type " + std::to_string(type) +
                                    " and " + Counted(message.size(), "byte") +
                                    ", which is not due");
}

}  // namespace

std::unique_ptr<Channel> NewTlsRecordChannel(int socket, const std::optional<TrafficSecret>& ours,
                                             const TrafficSecret& theirs,
                                             const TlsRecordOptions& options) {
  return std::make_unique<TlsRecordChannel>(socket, ours, theirs, options);
}

}  // namespace talweg::transport
