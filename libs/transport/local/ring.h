// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LOCAL_RING_H_
#define TALWEG_LIBS_TRANSPORT_LOCAL_RING_H_

#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "libs/base/descriptor.h"

// The shared memory of a local connection. Each side makes one memfd, which only that side writes;
// the peer maps it for reading.
//
//   0          64              128            192           256     4096          4096 + ring_bytes
//   +----------+---------------+--------------+-------------+-------+-------------+
//   | identity | write_position| read_position| sleep state | beats | records ... |
//   +----------+---------------+--------------+-------------+-------+-------------+
//
// Positions count bytes since the beginning and never go back. A position modulo ring_bytes is a
// place. The writer of a file publishes its write_position after whole records. Its read_position
// says how far it has read its peer's file.
namespace talweg::transport {

struct RingControl {
  uint64_t magic;
  uint32_t version;
  uint32_t unused;
  uint64_t ring_bytes;
  alignas(64) std::atomic<uint64_t> write_position;
  alignas(64) std::atomic<uint64_t> read_position;
  // Odd: this side sleeps, or is about to. It counts up, so that a peer rings once for each sleep.
  alignas(64) std::atomic<uint32_t> sleep_count;
  // 1: this side has something to send that did not fit, and waits for room.
  std::atomic<uint32_t> blocked;
  // Counts up while this side's event loop turns. 0: this side's release does not count.
  alignas(64) std::atomic<uint32_t> beats;
};

inline constexpr uint64_t kRingMagic = 0x474e524c57414c54;
inline constexpr uint32_t kRingVersion = 1;
inline constexpr size_t kRingDataOffset = 4096;
inline constexpr size_t kRingBytesMin = 256 * 1024;
inline constexpr size_t kRingBytesMax = size_t{1} << 30;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint64_t>) == 8 && sizeof(std::atomic<uint32_t>) == 4);
static_assert(offsetof(RingControl, write_position) == 64);
static_assert(offsetof(RingControl, read_position) == 128);
static_assert(offsetof(RingControl, sleep_count) == 192);
static_assert(offsetof(RingControl, blocked) == 196);
static_assert(offsetof(RingControl, beats) == 256);
static_assert(sizeof(RingControl) <= kRingDataOffset);

enum class RecordType : uint32_t { kFrame = 1, kWrite = 2 };

// Precedes the bytes of a record. Records begin at multiples of 64.
struct RecordHeader {
  RecordType type;
  uint32_t length;
  uint64_t key;  // kWrite: where the bytes belong.
  uint64_t address;
};
static_assert(sizeof(RecordHeader) == 24);
inline constexpr size_t kRecordAlignment = 64;
inline constexpr size_t kRecordHeaderBytes = 64;

// A mapped ring. Its data is mapped twice in a row, so that no record is ever in two pieces.
class RingMapping {
 public:
  // Makes a new ring for this side, sealed against other writers and changes of size.
  static absl::StatusOr<RingMapping> Create(size_t ring_bytes);
  // Opens a peer's ring for reading. INVALID_ARGUMENT if a peer of our version would not send it.
  static absl::StatusOr<RingMapping> Open(int memory_descriptor);

  RingMapping() = default;
  RingMapping(RingMapping&& other) noexcept;
  RingMapping& operator=(RingMapping&& other) noexcept;
  ~RingMapping() { Unmap(); }

  bool valid() const { return base_ != nullptr; }
  size_t ring_bytes() const { return ring_bytes_; }
  RingControl* control() const { return reinterpret_cast<RingControl*>(base_); }
  // Returns the place of that position. The ring_bytes() bytes from there are contiguous.
  std::byte* At(uint64_t position) const {
    return base_ + kRingDataOffset + (position & (ring_bytes_ - 1));
  }
  int memory_descriptor() const { return memory_.get(); }

 private:
  absl::Status Map(int memory_descriptor, size_t ring_bytes, int protection);
  void Unmap();

  Descriptor memory_;
  std::byte* base_ = nullptr;
  size_t ring_bytes_ = 0;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOCAL_RING_H_
