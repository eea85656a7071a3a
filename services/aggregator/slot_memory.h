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

#include "libs/base/bytes.h"
#include "libs/transport/transport.h"

namespace talweg::aggregator {

// Memory that a transport may register. Freed by the destructor.
class Mapping {
 public:
  virtual ~Mapping() = default;
  std::span<std::byte> bytes() const { return bytes_; }

 protected:
  std::span<std::byte> bytes_;
};

// Where mappings come from.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Zeroed, on a page. RESOURCE_EXHAUSTED: the system does not give it.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(size_t bytes) = 0;
};

// Anonymous memory whose pages are there: no page fault in the middle of a receive, no kill by a
// fault that cannot be served.
MemorySource& AnonymousMemory();

// A part of a registered mapping. Copies share it; the mapping is freed after the last of them.
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
    explicit Chunk(std::unique_ptr<Mapping> m) : mapping(std::move(m)) {}
    std::unique_ptr<Mapping> mapping;
    transport::Region region;  // Gone before the mapping.
  };

  SlotMemory(std::shared_ptr<Chunk> chunk, size_t offset, size_t bytes)
      : chunk_(std::move(chunk)),
        offset_(offset),
        bytes_(chunk_->mapping->bytes().subspan(offset, bytes)) {}

  std::shared_ptr<Chunk> chunk_;
  size_t offset_ = 0;
  std::span<std::byte> bytes_;
};

// How large the registrations are that small memory is cut from.
struct SlotLimits {
  size_t chunk_bytes_min = 256 * kKiB;
  size_t chunk_bytes_max = 64 * kMiB;
};

// Cuts the memory of one writer (a member of a job, or the results that we write) out of few large
// registrations, so that thousands of small tensors cost few of them, and so that no two members
// share one: a member's key opens nothing but its own slots.
//
// Chunks grow with what is used, to waste at most a quarter. Released memory is not given out again
// before its whole chunk is free and unmapped. One owner thread; `transport` and `source` outlive
// the memory.
class SlotPool {
 public:
  // `writer`: whose writes the memory takes. nullopt: nobody is meant to write there but we.
  SlotPool(transport::Transport* transport, MemorySource* source, SlotLimits limits = {},
           std::optional<transport::PeerIdentity> writer = std::nullopt)
      : transport_(transport), source_(source), limits_(limits), writer_(writer) {}

  // `bytes` of at least 1, on a cache line. RESOURCE_EXHAUSTED: no memory, or no more of it may be
  // locked.
  absl::StatusOr<SlotMemory> Allocate(uint64_t bytes);

 private:
  transport::Transport* const transport_;
  MemorySource* const source_;
  const SlotLimits limits_;
  const std::optional<transport::PeerIdentity> writer_;
  std::shared_ptr<SlotMemory::Chunk> chunk_;  // That allocations are cut from at present.
  size_t chunk_used_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_
