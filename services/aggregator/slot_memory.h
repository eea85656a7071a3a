// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_
#define TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "libs/transport/transport.h"

namespace talweg {

// Anonymous memory whose pages are there: no page fault in the middle of a receive, no kill by a
// fault that cannot be served.
class Mapping {
 public:
  // RESOURCE_EXHAUSTED: the system does not give it.
  static absl::StatusOr<Mapping> Create(size_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) = delete;
  ~Mapping();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

// A part of a registered mapping. Copies share it; the mapping is freed behind the last of them.
class SlotMemory {
 public:
  SlotMemory() = default;

  bool valid() const { return chunk_ != nullptr; }
  std::span<std::byte> bytes() const { return bytes_; }
  wire::RemoteRef ref() const { return chunk_->region.Ref(offset_); }
  transport::RegionSlice Slice(size_t offset, size_t length) const {
    return chunk_->region.Slice(offset_ + offset, length);
  }

 private:
  friend class SlotPool;
  struct Chunk {
    explicit Chunk(Mapping m) : mapping(std::move(m)) {}
    Mapping mapping;
    transport::Region region;  // Gone before the mapping.
  };

  SlotMemory(std::shared_ptr<Chunk> chunk, size_t offset, size_t bytes)
      : chunk_(std::move(chunk)),
        offset_(offset),
        bytes_(chunk_->mapping.bytes().subspan(offset, bytes)) {}

  std::shared_ptr<Chunk> chunk_;
  size_t offset_ = 0;
  std::span<std::byte> bytes_;
};

// Cuts the memory of one writer (a member of a job, or the results that we write) out of few large
// registrations, so that thousands of small tensors cost few of them, and so that no two members
// share one: a member's key opens nothing but its own slots.
//
// Chunks grow with what is used, to waste at most a quarter. Released memory is not given out again
// before its whole chunk is free and unmapped. One owner thread; `transport` outlives the memory.
class SlotPool {
 public:
  // `writer`: whose writes the memory takes. nullopt: nobody is meant to write there but we.
  explicit SlotPool(transport::Transport* transport,
                    std::optional<transport::PeerIdentity> writer = std::nullopt)
      : transport_(transport), writer_(writer) {}

  // `bytes` of at least 1, on a cache line. RESOURCE_EXHAUSTED: no memory, or no more of it may be
  // locked.
  absl::StatusOr<SlotMemory> Allocate(uint64_t bytes);

 private:
  transport::Transport* const transport_;
  const std::optional<transport::PeerIdentity> writer_;
  std::shared_ptr<SlotMemory::Chunk> chunk_;  // That allocations are cut from at present.
  size_t chunk_used_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace talweg

#endif  // TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_
