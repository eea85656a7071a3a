// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_
#define TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

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
  using Then = std::function<void(absl::StatusOr<std::shared_ptr<Mapping>> mapping)>;

  virtual ~MemorySource() = default;
  // Calls `then` with zeroed memory that begins on a page, on the data thread: inside this call, or
  // later. RESOURCE_EXHAUSTED: the system has no memory. Nobody wants the memory any more when
  // `wanted` has expired.
  virtual void Map(size_t bytes, std::weak_ptr<const void> wanted, Then then) = 0;
};

// Anonymous memory with all pages present. So a receive takes no page fault, and no fault for which
// there is no memory kills the process. Takes the time that the kernel needs.
absl::StatusOr<std::shared_ptr<Mapping>> MapAnonymous(size_t bytes,
                                                      const std::weak_ptr<const void>& wanted);
// Such memory, for which the caller of Map waits.
MemorySource& AnonymousMemory();

// A part of a registered mapping, perhaps of one that is to come. Copies share it; the mapping is
// freed after the last of them.
class SlotMemory {
 public:
  // The mapping is there, or there is none.
  using Then = std::function<void(const absl::Status& status)>;

  SlotMemory() = default;

  bool valid() const { return chunk_ != nullptr; }
  size_t size() const { return size_; }
  // Calls `then` when the mapping is there, or known not to come: inside this call, or later.
  // Never, if all who share the mapping are gone before.
  void WhenMapped(Then then);
  bool is_mapped() const { return chunk_->mapping != nullptr; }
  // Once the mapping is there.
  std::span<std::byte> bytes() const { return chunk_->mapping->bytes().subspan(offset_, size_); }
  wire::RemoteRef ref() const { return chunk_->region.Ref(offset_); }
  transport::RegionSlice Slice(size_t offset, size_t length) const {
    return chunk_->region.Slice(offset_ + offset, length);
  }

 private:
  friend class SlotPool;
  struct Chunk {
    explicit Chunk(size_t chunk_bytes) : bytes(chunk_bytes) {}
    // It has been mapped and registered, or could not be.
    void Settle(absl::Status outcome);

    const size_t bytes;
    std::optional<absl::Status> status;  // nullopt: its mapping is to come.
    std::vector<Then> waiting;
    std::shared_ptr<Mapping> mapping;
    transport::Region region;  // Destroyed before the mapping.
  };

  SlotMemory(std::shared_ptr<Chunk> chunk, size_t offset, size_t size)
      : chunk_(std::move(chunk)), offset_(offset), size_(size) {}

  std::shared_ptr<Chunk> chunk_;
  size_t offset_ = 0;
  size_t size_ = 0;
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

  // Returns `bytes` bytes, at least 1, that begin on a cache line, and may have to be mapped first.
  // The mapping fails with RESOURCE_EXHAUSTED: no memory, or the limit of locked memory is reached.
  SlotMemory Allocate(uint64_t bytes);

 private:
  using Chunk = SlotMemory::Chunk;

  // Returns a chunk whose mapping has been asked for.
  std::shared_ptr<Chunk> NewChunk(size_t bytes);

  transport::Transport* const transport_;
  MemorySource* const source_;
  const SlotLimits limits_;
  const std::optional<transport::PeerIdentity> writer_;
  std::shared_ptr<Chunk> chunk_;  // The chunk from which allocations are cut now.
  size_t chunk_used_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SLOT_MEMORY_H_
