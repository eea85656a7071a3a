// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/slot_memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/runtime/private_pages.h"
#include "libs/status/status.h"

namespace talweg::aggregator {
namespace {

constexpr size_t kPageBytes = 4 * kKiB;

class AnonymousMapping final : public Mapping {
 public:
  explicit AnonymousMapping(size_t bytes) : pages_(bytes) {}

  absl::Status Fill(const std::weak_ptr<const void>& wanted) {
    TALWEG_RETURN_IF_ERROR(pages_.Fill([&wanted] { return !wanted.expired(); }));
    bytes_ = pages_.bytes();
    return absl::OkStatus();
  }

 private:
  runtime::PrivatePages pages_;
};

class AnonymousSource final : public MemorySource {
 public:
  void Map(size_t bytes, std::weak_ptr<const void> wanted, Then then) override {
    then(MapAnonymous(bytes, wanted));
  }
};

}  // namespace

absl::StatusOr<std::shared_ptr<Mapping>> MapAnonymous(size_t bytes,
                                                      const std::weak_ptr<const void>& wanted) {
  auto mapping = std::make_shared<AnonymousMapping>(bytes);
  TALWEG_RETURN_IF_ERROR(mapping->Fill(wanted));
  return mapping;
}

MemorySource& AnonymousMemory() {
  static AnonymousSource source;
  return source;
}

void SlotMemory::WhenMapped(Then then) {
  if (chunk_->status) return then(*chunk_->status);
  chunk_->waiting.push_back(std::move(then));
}

void SlotMemory::Chunk::Settle(absl::Status outcome) {
  status = std::move(outcome);
  for (const Then& then : std::exchange(waiting, {})) then(*status);
}

std::shared_ptr<SlotPool::Chunk> SlotPool::NewChunk(size_t bytes) {
  auto chunk = std::make_shared<Chunk>(bytes);
  const std::weak_ptr<Chunk> wanted = chunk;
  // The pool may be gone when the mapping comes.
  const auto take = [wanted, transport = transport_,
                     writer = writer_](absl::StatusOr<std::shared_ptr<Mapping>> mapping) {
    const std::shared_ptr<Chunk> taker = wanted.lock();
    if (taker == nullptr) return;
    if (!mapping.ok()) return taker->Settle(mapping.status());
    taker->mapping = *std::move(mapping);
    const std::span<std::byte> mapped = taker->mapping->bytes();
    absl::StatusOr<transport::Region> region =
        writer ? transport->RegisterFor(mapped, *writer) : transport->Register(mapped);
    if (region.ok()) taker->region = *std::move(region);
    taker->Settle(region.status());
  };
  source_->Map(bytes, wanted, take);
  return chunk;
}

SlotMemory SlotPool::Allocate(uint64_t bytes) {
  TALWEG_CHECK(bytes > 0);
  const uint64_t needed_bytes = RoundUp(bytes, kCacheLineBytes);
  const uint64_t chunk_bytes =
      std::clamp<uint64_t>(used_bytes_ / 4, limits_.chunk_bytes_min, limits_.chunk_bytes_max);
  const bool shares = needed_bytes <= chunk_bytes / 2;
  used_bytes_ += needed_bytes;
  if (!shares) return SlotMemory(NewChunk(RoundUp(needed_bytes, kPageBytes)), 0, bytes);
  const bool has_failed = chunk_ != nullptr && chunk_->status && !chunk_->status->ok();
  if (chunk_ == nullptr || has_failed || chunk_used_ + needed_bytes > chunk_->bytes) {
    chunk_ = NewChunk(RoundUp(chunk_bytes, kPageBytes));
    chunk_used_ = 0;
  }
  const size_t offset = chunk_used_;
  chunk_used_ += needed_bytes;
  return SlotMemory(chunk_, offset, bytes);
}

}  // namespace talweg::aggregator
