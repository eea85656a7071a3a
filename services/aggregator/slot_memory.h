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
  // Returns zeroed memory that begins on a page. RESOURCE_EXHAUSTED: the system has no memory.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(size_t bytes) = 0;
};

// Anonymous memory with all pages present. So a receive takes no page fault, and no fault for which
// there is no memory kills the process.
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
    transport::Region region;  // Destroyed before the mapping.
  };

  SlotMemory(std::shared_ptr<Chunk> chunk, size_t offset, size_t bytes)
      : chunk_(std::move(chunk)),
        offset_(offset),
        bytes_(chunk_->mapping->bytes().subspan(offset, bytes)) {}

  std::shared_ptr<Chunk> chunk_;
  size_t offset_ = 0;
  std::span<std::byte> bytes_;
};

// The sizes of the registrations from which small memory is cut.
struct SlotLimits {
  size_t chunk_bytes_min = 256 * kKiB;
  size_t chunk_bytes_max = 64 * kMiB;
};

// Cuts the memory of one writer, a member of a job or this aggregator, out of few large
// registrations. So thousands of small tensors need few registrations. No two members share a
// registration, so a member's key gives access to its own slots only.
//
// Chunks grow with the used bytes, so that at most a quarter is wasted. A chunk's memory is not
// used again after its release; the chunk is unmapped when all of it is released. One owner thread.
// `transport` and `source` outlive the memory.
class SlotPool {
 public:
  // `writer`: the member that may write to the memory. nullopt: no peer is meant to, only this
  // aggregator; but the transport would take any peer's writes.
  SlotPool(transport::Transport* transport, MemorySource* source, SlotLimits limits = {},
           std::optional<transport::PeerIdentity> writer = std::nullopt)
      : transport_(transport), source_(source), limits_(limits), writer_(writer) {}

  // Returns `bytes` bytes, at least 1, that begin on a cache line. RESOURCE_EXHAUSTED: no memory,
  // or the limit of locked memory is reached.
  absl::StatusOr<SlotMemory> Allocate(uint64_t bytes);

 private:
  transport::Transport* const transport_;
  MemorySource* const source_;
  const SlotLimits limits_;
  const std::optional<transport::PeerIdentity> writer_;
  std::shared_ptr<SlotMemory::Chunk> chunk_;  // The chunk from which allocations are cut now.
  size_t chunk_used_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_
