// SPDX-License-Identifier: Apache-2.0
#include "services/agent/tensor_memory.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/shm/layout/rank_sums.h"
#include "libs/status/status.h"
#include "libs/wire/frames.h"

namespace talweg::agent {
namespace {

constexpr uint64_t kPageBytes = 4096;

std::span<std::byte> BytesOf(const std::shared_ptr<PrivatePages>& pages) {
  return pages == nullptr ? std::span<std::byte>() : pages->bytes();
}

}  // namespace

bool TensorMemory::RanksSum(uint32_t rank_count) {
  constexpr uint32_t kFew = 4;
  const uint32_t cpus = std::max(1u, std::thread::hardware_concurrency());
  return rank_count <= std::min(shm::kSummingRanksMax, std::max(kFew, cpus));
}

const TensorMemory::Entry* TensorMemory::Find(pipeline::TensorIndex tensor) const {
  return tensor.value() < tensors_.size() ? tensors_[tensor.value()].get() : nullptr;
}

const TensorMemory::Entry& TensorMemory::At(pipeline::TensorIndex tensor) const {
  const Entry* const entry = Find(tensor);
  TALWEG_CHECK(entry != nullptr);
  return *entry;
}

absl::StatusOr<shm::ResultBuffer> TensorMemory::AllocateResult(uint64_t bytes, bool on_device,
                                                               MemoryOrder* order) {
  // A driver pins whole pages, and each page only once. So the buffer shares no page with another.
  auto buffer = ranks_->AllocateResult(on_device ? RoundUp(bytes, kPageBytes) + kPageBytes : bytes);
  if (!buffer.ok()) return absl::ResourceExhaustedError(buffer.failure().text);
  shm::ResultBuffer result = buffer.value();
  order->Add(result.unbacked);
  if (on_device) {
    const auto address = reinterpret_cast<uintptr_t>(result.bytes.data());
    const uint64_t skipped = RoundUp(address, kPageBytes) - address;
    result.location.offset += skipped;
    result.bytes = result.bytes.subspan(skipped, bytes);
  }
  return result;
}

absl::StatusOr<bool> TensorMemory::AllocateOnePlace(Entry& entry, const Wishes& wishes,
                                                    MemoryOrder* order) {
  const bool may_be = one_view_ && travels_ && rank_count_ == 1 && !entry.on_device &&
                      !entry.spec.collective.encodes() && !entry.spec.collective.leaves_out();
  if (!may_be || !wishes.one_place) return false;
  auto place = ranks_->AllocateOnePlace(*wishes.one_place, entry.shape.total_bytes());
  if (!place.ok()) {
    if (place.failure().status == shm::RankStatus::kClosed) return false;
    return absl::ResourceExhaustedError(place.failure().text);
  }
  order->Add(place.value().unbacked);
  entry.one_place = true;
  entry.results.count = 1;
  entry.results.buffers[0] = place.value();
  entry.contributions[0] = shm::ContributionBuffer{place.value().location, place.value().bytes};
  CountContribution(entry, LocalRank{0});
  return true;
}

absl::Status TensorMemory::AllocateResults(Entry& entry, MemoryOrder* order) {
  for (size_t parity = 0; parity < entry.results.count; ++parity) {
    TALWEG_ASSIGN_OR_RETURN(entry.results.buffers[parity],
                            AllocateResult(entry.shape.total_bytes(), entry.on_device, order));
    bytes_ += entry.shape.total_bytes();
  }
  return absl::OkStatus();
}

void TensorMemory::AddArrivalLog(Entry& entry, MemoryOrder* order) {
  const uint64_t log_bytes = shm::ArrivalsBytes(entry.shape.data_bytes);
  if (log_bytes == 0 || entry.on_device || !tells_arrivals_) return;
  // The log only makes a tensor faster. Without memory for it the tensor is not refused.
  if (const auto log = AllocateResult(log_bytes, false, order); log.ok()) {
    entry.results.arrivals_location = log->location;
    entry.results.arrivals = shm::ArrivalLog(log->bytes);
    bytes_ += log_bytes;
  }
}

std::shared_ptr<PrivatePages> TensorMemory::AllocateTravel(const Entry& entry, MemoryOrder* order) {
  const uint64_t bytes = entry.spec.collective.travel_bytes_max(entry.spec.bytes());
  if (bytes == 0) return nullptr;
  // With a NIC on the GPU only short contributions pass through the host.
  auto pages = std::make_shared<PrivatePages>(bytes, /*is_rarely_used=*/entry.nic.has_value());
  order->Add(pages);
  bytes_ += bytes;
  return pages;
}

absl::Status TensorMemory::Allocate(pipeline::TensorIndex tensor, const pipeline::TensorSpec& spec,
                                    Wishes wishes, MemoryOrder* order) {
  TALWEG_CHECK(tensor.value() == tensors_.size());
  tensors_.push_back(nullptr);
  auto entry = std::make_unique<Entry>();
  entry->spec = spec;
  entry->shape = shm::BufferShape::Of(spec.collective, spec.rank_count());
  entry->on_device = wishes.on_device;
  entry->nic = std::move(wishes.nic);
  entry->contributions.resize(rank_count_);
  if (RanksSum(spec) && !wishes.on_device) {
    auto place = ranks_->PlanContribution(entry->shape, wishes.in_place);
    if (!place.ok()) return absl::ResourceExhaustedError(place.failure().text);
    entry->shared = place.value();
    tensors_.back() = std::move(entry);
    return absl::OkStatus();
  }
  // A rank that is left out takes the result while the next one comes.
  const bool leaves_out = spec.collective.leaves_out();
  const bool one_result = one_view_ && !wishes.on_device && !leaves_out;
  if (one_result) entry->results.count = 1;
  TALWEG_ASSIGN_OR_RETURN(const bool in_one_place, AllocateOnePlace(*entry, wishes, order));
  if (!in_one_place) {
    TALWEG_RETURN_IF_ERROR(AllocateResults(*entry, order));
    AddArrivalLog(*entry, order);
  }
  const bool encodes = spec.collective.encodes() && travels_;
  if (encodes) entry->arrivals = AllocateTravel(*entry, order);
  const bool reduces = (rank_count_ > 1 || wishes.on_device || encodes || leaves_out) && travels_;
  entry->reduces_into_result = reduces && one_result && !encodes;
  if (reduces && !entry->reduces_into_result) entry->send_buffer = AllocateTravel(*entry, order);
  tensors_.back() = std::move(entry);
  return absl::OkStatus();
}

absl::Status TensorMemory::OnAllocated(pipeline::TensorIndex tensor) {
  At(tensor);
  Entry& entry = *tensors_[tensor.value()];
  entry.is_ready = true;
  // If the NIC uses memory on a GPU, the host's pages are not pinned for it.
  if (entry.nic || entry.shared) return absl::OkStatus();
  Results& results = entry.results;
  for (size_t parity = 0; parity < results.count; ++parity) {
    TALWEG_ASSIGN_OR_RETURN(results.regions[parity],
                            registrar_->Register(results.buffers[parity].bytes));
  }
  TALWEG_RETURN_IF_ERROR(Register(entry.arrivals, entry.arrivals_region));
  return Register(entry.send_buffer, entry.send_region);
}

absl::Status TensorMemory::Register(const std::shared_ptr<PrivatePages>& pages,
                                    transport::Region& region) {
  if (pages == nullptr) return absl::OkStatus();
  TALWEG_ASSIGN_OR_RETURN(region, registrar_->Register(pages->bytes()));
  return absl::OkStatus();
}

void TensorMemory::Drop(pipeline::TensorIndex tensor) { tensors_[tensor.value()].reset(); }

absl::Status TensorMemory::Attach(pipeline::TensorIndex tensor, LocalRank rank,
                                  shm::RankConnectionId connection, MemoryOrder* order) {
  At(tensor);
  Entry& entry = *tensors_[tensor.value()];
  if (entry.contributions[rank.value()]) return absl::OkStatus();
  if (entry.shared) {
    auto location = ranks_->PlaceContribution(connection, *entry.shared);
    if (!location.ok()) return absl::ResourceExhaustedError(location.failure().text);
    entry.contributions[rank.value()] = shm::ContributionBuffer{location.value(), {}};
    CountContribution(entry, rank);
    return absl::OkStatus();
  }
  auto buffer = ranks_->AllocateContribution(connection, entry.shape.total_bytes());
  if (!buffer.ok()) return absl::ResourceExhaustedError(buffer.failure().text);
  order->Add(buffer.value().unbacked);
  entry.contributions[rank.value()] = buffer.value();
  CountContribution(entry, rank);
  return absl::OkStatus();
}

absl::Status TensorMemory::OnAttached(pipeline::TensorIndex tensor, LocalRank rank) {
  At(tensor);
  Entry& entry = *tensors_[tensor.value()];
  const bool is_sent = rank_count_ == 1 && !entry.shared;
  if (!is_sent || entry.one_place || entry.contribution_region.valid()) return absl::OkStatus();
  // The bytes are only a source of writes, but Register takes a mutable span.
  const std::span<const std::byte> bytes = entry.contributions[rank.value()]->bytes;
  TALWEG_ASSIGN_OR_RETURN(
      entry.contribution_region,
      registrar_->Register({const_cast<std::byte*>(bytes.data()), bytes.size()}));
  return absl::OkStatus();
}

bool TensorMemory::TakesDevices(pipeline::TensorIndex tensor) const {
  const Entry& entry = At(tensor);
  const Collective& collective = entry.spec.collective;
  return !entry.shared && !collective.encodes() && !collective.leaves_out() &&
         (rank_count_ > 1 || entry.on_device);
}

bool TensorMemory::OnNic(const pipeline::SliceBytes& slice) const {
  return At(slice.tensor).nic &&
         (slice.memory == pipeline::Memory::kResult || slice.length_bytes > wire::kInlineBytesMax);
}

void TensorMemory::DropNicRegions() {
  for (const std::unique_ptr<Entry>& entry : tensors_) {
    if (entry != nullptr) entry->nic.reset();
  }
}

std::span<std::byte> TensorMemory::SendBuffer(pipeline::TensorIndex tensor) const {
  return BytesOf(At(tensor).send_buffer);
}

std::array<std::span<std::byte>, 2> TensorMemory::ResultPages(pipeline::TensorIndex tensor) const {
  const Entry& entry = At(tensor);
  std::array<std::span<std::byte>, 2> pages;
  for (size_t parity = 0; parity < 2 && entry.on_device; ++parity) {
    const std::span<std::byte> bytes = entry.results.buffers[parity].bytes;
    pages[parity] = {bytes.data(), RoundUp(bytes.size(), kPageBytes)};
  }
  return pages;
}

const pipeline::TensorSpec& TensorMemory::spec(pipeline::TensorIndex tensor) const {
  return At(tensor).spec;
}

shm::Location TensorMemory::ContributionLocation(pipeline::TensorIndex tensor,
                                                 LocalRank rank) const {
  const auto& contribution = At(tensor).contributions[rank.value()];
  TALWEG_CHECK(contribution.has_value());
  return contribution->location;
}

std::array<shm::Location, 2> TensorMemory::ResultLocations(pipeline::TensorIndex tensor) const {
  const Results& results = At(tensor).results;
  return {results.buffers[results.Of(Round{0})].location,
          results.buffers[results.Of(Round{1})].location};
}

shm::Location TensorMemory::ArrivalsLocation(pipeline::TensorIndex tensor) const {
  return At(tensor).results.arrivals_location;
}

void TensorMemory::WriteLengths(pipeline::TensorIndex tensor, Round round,
                                const std::vector<uint64_t>& lengths) {
  const Entry& entry = At(tensor);
  if (entry.shared || !entry.shape.has_lengths()) return;
  TALWEG_CHECK(lengths.size() <= entry.shape.part_count);
  std::byte* next =
      entry.results.buffers[entry.results.Of(round)].bytes.data() + entry.shape.table_offset();
  for (const uint64_t length : lengths) {
    const auto word = static_cast<uint32_t>(length);
    std::memcpy(next, &word, sizeof(word));
    next += sizeof(word);
  }
}

uint64_t TensorMemory::AddArrival(const pipeline::SliceBytes& result) {
  At(result.tensor);
  return tensors_[result.tensor.value()]->results.arrivals.Add(result.round, result.offset_bytes,
                                                               result.length_bytes);
}

const std::optional<shm::SharedPlace>& TensorMemory::Shared(pipeline::TensorIndex tensor) const {
  return At(tensor).shared;
}

std::array<wire::RemoteRef, 2> TensorMemory::ResultRefs(pipeline::TensorIndex tensor) const {
  // A tensor that is declared without memory has failed. Its declaration has empty references, and
  // nobody writes to it.
  const Entry* const entry = Find(tensor);
  if (!travels_ || entry == nullptr || !entry->is_ready) return {};
  if (entry->arrivals_region.valid()) {
    return {entry->arrivals_region.Ref(), entry->arrivals_region.Ref()};
  }
  const auto& regions = entry->nic ? entry->nic->results : entry->results.regions;
  return {regions[entry->results.Of(Round{0})].Ref(), regions[entry->results.Of(Round{1})].Ref()};
}

std::span<const std::byte> TensorMemory::Contribution(const pipeline::SliceBytes& slice,
                                                      LocalRank rank) const {
  const auto& contribution = At(slice.tensor).contributions[rank.value()];
  if (!contribution) return {};
  return contribution->bytes.subspan(slice.offset_bytes, slice.length_bytes);
}

std::span<std::byte> TensorMemory::Writable(const pipeline::SliceBytes& slice) const {
  const Entry& entry = At(slice.tensor);
  TALWEG_CHECK(slice.memory != pipeline::Memory::kContribution);
  const bool sends = slice.memory == pipeline::Memory::kSendBuffer && !entry.reduces_into_result;
  if (sends || slice.memory == pipeline::Memory::kArrivals) {
    return BytesOf(sends ? entry.send_buffer : entry.arrivals)
        .subspan(entry.spec.collective.travel_offset(slice.offset_bytes), slice.length_bytes);
  }
  return entry.results.buffers[entry.results.Of(slice.round)].bytes.subspan(slice.offset_bytes,
                                                                            slice.length_bytes);
}

std::span<const std::byte> TensorMemory::Readable(const pipeline::SliceBytes& slice) const {
  if (slice.memory == pipeline::Memory::kContribution) return Contribution(slice, LocalRank{0});
  return Writable(slice);
}

transport::RegionSlice TensorMemory::RegionOf(const pipeline::SliceBytes& slice) const {
  const Entry& entry = At(slice.tensor);
  const bool on_nic = OnNic(slice);
  const auto& results = on_nic ? entry.nic->results : entry.results.regions;
  const transport::Region* const result = &results[entry.results.Of(slice.round)];
  const transport::Region* region = nullptr;
  uint64_t offset_bytes = slice.offset_bytes;
  switch (slice.memory) {
    case pipeline::Memory::kContribution:
      region = entry.one_place ? result : &entry.contribution_region;
      break;
    case pipeline::Memory::kSendBuffer:
      region = on_nic ? &entry.nic->send : entry.reduces_into_result ? result : &entry.send_region;
      offset_bytes = entry.spec.collective.travel_offset(offset_bytes);
      break;
    case pipeline::Memory::kResult: region = result; break;
    case pipeline::Memory::kArrivals: break;  // Nothing is sent from there.
  }
  TALWEG_CHECK(region != nullptr && region->valid());
  return region->Slice(offset_bytes, slice.length_bytes);
}

void TensorMemory::CountContribution(const Entry& entry, LocalRank rank) {
  const uint64_t bytes =
      entry.shared ? shm::RankSumShape::Of(entry.shape, rank_count_, entry.shared->in_place).bytes()
                   : entry.shape.total_bytes();
  bytes_ += bytes;
  rank_bytes_[rank.value()] += bytes;
}

void TensorMemory::Forget() {
  tensors_.clear();
  bytes_ = 0;
  rank_bytes_.assign(rank_count_, 0);
}

}  // namespace talweg::agent
