// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/local/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <new>
#include <string>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/counted.h"
#include "libs/status/status.h"

namespace talweg::transport {

RingMapping::RingMapping(RingMapping&& other) noexcept
    : memory_(std::move(other.memory_)),
      base_(std::exchange(other.base_, nullptr)),
      ring_bytes_(std::exchange(other.ring_bytes_, 0)) {}

RingMapping& RingMapping::operator=(RingMapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    memory_ = std::move(other.memory_);
    base_ = std::exchange(other.base_, nullptr);
    ring_bytes_ = std::exchange(other.ring_bytes_, 0);
  }
  return *this;
}

void RingMapping::Unmap() {
  if (base_ != nullptr) munmap(base_, kRingDataOffset + 2 * ring_bytes_);
  base_ = nullptr;
}

absl::Status RingMapping::Map(int memory_descriptor, size_t ring_bytes, int protection) {
  void* const room = mmap(nullptr, kRingDataOffset + 2 * ring_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return status::ErrnoStatus(errno, "map a ring of " + FormatBytes(ring_bytes));
  }
  base_ = static_cast<std::byte*>(room);
  ring_bytes_ = ring_bytes;
  if (mmap(base_, kRingDataOffset + ring_bytes, protection, MAP_SHARED | MAP_FIXED,
           memory_descriptor, 0) == MAP_FAILED ||
      mmap(base_ + kRingDataOffset + ring_bytes, ring_bytes, protection, MAP_SHARED | MAP_FIXED,
           memory_descriptor, kRingDataOffset) == MAP_FAILED) {
    return status::ErrnoStatus(errno, "map a ring of " + FormatBytes(ring_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<RingMapping> RingMapping::Create(size_t ring_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kRingBytesMin ||
      ring_bytes > kRingBytesMax) {
    return absl::InvalidArgumentError(
        "a ring of " + FormatBytes(ring_bytes) + ": it must be a power of two from " +
        FormatBytes(kRingBytesMin) + " to " + FormatBytes(kRingBytesMax));
  }
  RingMapping ring;
  ring.memory_.Reset(memfd_create("talweg-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!ring.memory_.valid()) return status::ErrnoStatus(errno, "memfd_create of a ring");
  const int fd = ring.memory_.get();
  if (ftruncate(fd, static_cast<off_t>(kRingDataOffset + ring_bytes)) != 0) {
    return status::ErrnoStatus(errno, "a ring of " + FormatBytes(ring_bytes));
  }
  TALWEG_RETURN_IF_ERROR(ring.Map(fd, ring_bytes, PROT_READ | PROT_WRITE));
  RingControl* const control = new (ring.base_) RingControl{};
  control->ring_bytes = ring_bytes;
  control->beats = 1;
  control->version = kRingVersion;
  control->magic = kRingMagic;
  constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  // After this mapping nobody can make another writable one. Kernels before 5.1 cannot ensure that,
  // but a Talweg peer maps for reading anyway.
  if (fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0 &&
      fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return status::ErrnoStatus(errno, "seal a ring");
  }
  return ring;
}

absl::StatusOr<RingMapping> RingMapping::Open(int memory_descriptor) {
  // Without these seals the peer could truncate the file under this mapping, which would kill this
  // process.
  const int seals = fcntl(memory_descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return absl::InvalidArgumentError("the peer's ring is not sealed");
  }
  struct stat file {};
  if (fstat(memory_descriptor, &file) != 0)
    return status::ErrnoStatus(errno, "fstat of the peer's ring");
  const size_t ring_bytes = static_cast<size_t>(file.st_size) - kRingDataOffset;
  if (file.st_size <= static_cast<off_t>(kRingDataOffset) || !std::has_single_bit(ring_bytes) ||
      ring_bytes < kRingBytesMin || ring_bytes > kRingBytesMax) {
    return absl::InvalidArgumentError("the peer's ring has " + Counted(file.st_size, "byte"));
  }
  RingMapping ring;
  TALWEG_RETURN_IF_ERROR(ring.Map(memory_descriptor, ring_bytes, PROT_READ));
  const RingControl& control = *ring.control();
  if (control.magic != kRingMagic || control.version != kRingVersion ||
      control.ring_bytes != ring_bytes) {
    return absl::InvalidArgumentError(
        "the peer's ring has version " + std::to_string(control.version) +
        " and says that it has " + Counted(control.ring_bytes, "byte") + "; expected " +
        std::to_string(kRingVersion) + " and " + std::to_string(ring_bytes));
  }
  return ring;
}

}  // namespace talweg::transport
