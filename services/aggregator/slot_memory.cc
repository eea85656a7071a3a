// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/slot_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::aggregator {
namespace {

constexpr size_t kPageBytes = 4 * kKiB;
constexpr size_t kHugePageBytes = 2 * kMiB;

class AnonymousMapping final : public Mapping {
 public:
  explicit AnonymousMapping(std::span<std::byte> bytes) { bytes_ = bytes; }
  ~AnonymousMapping() override { munmap(bytes_.data(), bytes_.size()); }
  AnonymousMapping(const AnonymousMapping&) = delete;
  AnonymousMapping& operator=(const AnonymousMapping&) = delete;
};

class AnonymousSource final : public MemorySource {
 public:
  absl::StatusOr<std::unique_ptr<Mapping>> Map(size_t bytes) override {
    void* address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      const absl::Status status = status::ErrnoStatus(errno, "mapping " + FormatBytes(bytes));
      return absl::ResourceExhaustedError(status.message());
    }
    auto mapping =
        std::make_unique<AnonymousMapping>(std::span(static_cast<std::byte*>(address), bytes));
    if (bytes >= kHugePageBytes) madvise(address, bytes, MADV_HUGEPAGE);
    int result = -1;
    do {
      result = madvise(address, bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EINVAL) {  // A kernel before 5.14.
      for (size_t offset = 0; offset < bytes; offset += kPageBytes) {
        mapping->bytes()[offset] = std::byte{0};
      }
    } else if (result != 0) {
      const absl::Status status = status::ErrnoStatus(errno, "filling " + FormatBytes(bytes));
      return absl::ResourceExhaustedError(status.message());
    }
    return mapping;
  }
};

}  // namespace

MemorySource& AnonymousMemory() {
  static AnonymousSource source;
  return source;
}

absl::StatusOr<SlotMemory> SlotPool::Allocate(uint64_t bytes) {
  TALWEG_CHECK(bytes > 0);
  const uint64_t needed_bytes = RoundUp(bytes, kCacheLineBytes);
  const uint64_t chunk_bytes =
      std::clamp<uint64_t>(used_bytes_ / 4, limits_.chunk_bytes_min, limits_.chunk_bytes_max);
  const bool shares = needed_bytes <= chunk_bytes / 2;
  if (!shares || chunk_ == nullptr ||
      chunk_used_ + needed_bytes > chunk_->mapping->bytes().size()) {
    TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping,
                            source_->Map(RoundUp(shares ? chunk_bytes : needed_bytes, kPageBytes)));
    auto chunk = std::make_shared<SlotMemory::Chunk>(std::move(mapping));
    const std::span<std::byte> bytes_of_chunk = chunk->mapping->bytes();
    TALWEG_ASSIGN_OR_RETURN(chunk->region, writer_
                                               ? transport_->RegisterFor(bytes_of_chunk, *writer_)
                                               : transport_->Register(bytes_of_chunk));
    used_bytes_ += needed_bytes;
    if (!shares) return SlotMemory(std::move(chunk), 0, bytes);
    chunk_ = std::move(chunk);
    chunk_used_ = 0;
  } else {
    used_bytes_ += needed_bytes;
  }
  const size_t offset = chunk_used_;
  chunk_used_ += needed_bytes;
  return SlotMemory(chunk_, offset, bytes);
}

}  // namespace talweg::aggregator
