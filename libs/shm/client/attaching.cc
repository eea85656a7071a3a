// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/attaching.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/mapping.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace talweg::shm {
namespace {

// The size of a place that a tensor is attached to.
uint64_t PlaceBytes(uint64_t tensor_bytes) { return RoundUp(tensor_bytes, kPageBytes); }

// Maps the same pages elsewhere. Not valid() if the kernel refuses: EINVAL for memory that is not
// shared, EFAULT for memory that is not mapped.
Mapping MapOnceMore(void* data, uint64_t bytes) {
  void* const again = ::mremap(data, 0, bytes, MREMAP_MAYMOVE);
  return again == MAP_FAILED ? Mapping() : Mapping::Adopt(again, bytes);
}

// Replaces the mapping at `address`, which is never unmapped.
bool PutAt(void* address, Mapping& mapping) {
  if (::mremap(mapping.data(), mapping.bytes(), mapping.bytes(), MREMAP_MAYMOVE | MREMAP_FIXED,
               address) == MAP_FAILED) {
    return false;
  }
  mapping.Release();
  return true;
}

}  // namespace

RankStatus Attaching::CheckAtRest(const RankTensor& tensor, const char* purpose,
                                  ErrorText& error) const {
  if (!tensor.is_a_home()) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%s' is not summed in place: its buffer cannot be %s", NameOf(tensor),
                      purpose);
  }
  if (tensor.pushing || tensor.pushed > tensor.taken || tensor.readers > 0) {
    return error.Fail(
        RankStatus::kBusy,
        "tensor '%s': its round %llu is open; wait for it before its buffer is %s", NameOf(tensor),
        static_cast<unsigned long long>(tensor.pushed + (tensor.pushing ? 1 : 0)), purpose);
  }
  return RankStatus::kOk;
}

RankStatus Attaching::Attach(RankTensor& tensor, void* address, ErrorText& error) {
  if (reinterpret_cast<uintptr_t>(address) % kPageBytes != 0) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s' cannot be attached to %p: give an address that begins a page",
                      NameOf(tensor), address);
  }
  const MutexLock lock(state_mutex_);
  if (const RankStatus rest = CheckAtRest(tensor, "attached", error); rest != RankStatus::kOk) {
    return rest;
  }
  if (address == nullptr) {
    tensor.place = nullptr;
    tensor.replaced.Reset();
    return RankStatus::kOk;
  }
  if (tensor.place != nullptr) {
    return error.Fail(RankStatus::kBusy,
                      "tensor '%s' is attached to %p; detach it before it is attached to %p",
                      NameOf(tensor), tensor.place, address);
  }
  const uint64_t bytes = PlaceBytes(tensor.bytes);
  Mapping replaced = MapOnceMore(address, bytes);
  if (!replaced.valid() && (errno == EINVAL || errno == EFAULT)) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%s' cannot be attached to %p: no shared mapping is there; make it "
                      "with MAP_SHARED",
                      NameOf(tensor), address);
  }
  Mapping shared = MapOnceMore(tensor.contribution, bytes);
  if (replaced.valid() && shared.valid()) {
    ::madvise(shared.data(), bytes, MADV_DONTFORK);
    ::madvise(shared.data(), bytes, MADV_POPULATE_WRITE);
    std::memcpy(tensor.contribution, address, tensor.bytes);
    if (PutAt(address, shared)) {
      // Frees the replaced memory only if it can be filled again without a risk of SIGBUS.
      if (::madvise(replaced.data(), bytes, MADV_POPULATE_WRITE) == 0) {
        ::madvise(replaced.data(), bytes, MADV_REMOVE);
      }
      tensor.place = address;
      tensor.replaced = std::move(replaced);
      return RankStatus::kOk;
    }
  }
  return error.Fail(RankStatus::kOutOfMemory, "tensor '%s' cannot be attached to %p: %s",
                    NameOf(tensor), address, std::strerror(errno));
}

RankStatus Attaching::Detach(RankTensor& tensor, ErrorText& error) {
  const MutexLock lock(state_mutex_);
  const RankStatus rest = CheckAtRest(tensor, "detached", error);
  // A round that is open at the goodbye belongs to the other ranks; the place belongs to this one.
  const bool may_go = rest == RankStatus::kBusy && health_.is_closed(std::memory_order_relaxed);
  if (rest != RankStatus::kOk && !(may_go && tensor.place != nullptr)) return rest;
  return tensor.place != nullptr ? DetachPlace(tensor, error) : DetachBuffer(tensor, error);
}

RankStatus Attaching::DetachPlace(RankTensor& tensor, ErrorText& error) {
  const Mapping& own = tensor.replaced;
  if (::madvise(own.data(), own.bytes(), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    return error.Fail(RankStatus::kOutOfMemory,
                      "tensor '%s': no memory to give back what it was attached to: %s",
                      NameOf(tensor), std::strerror(errno));
  }
  std::memcpy(own.data(), tensor.contribution, tensor.bytes);
  if (!PutAt(tensor.place, tensor.replaced)) {
    return error.Fail(RankStatus::kOutOfMemory, "tensor '%s' cannot be detached from %p: %s",
                      NameOf(tensor), tensor.place, std::strerror(errno));
  }
  tensor.place = nullptr;
  return RankStatus::kOk;
}

RankStatus Attaching::DetachBuffer(RankTensor& tensor, ErrorText& error) {
  // Maps the same pages elsewhere; then puts a private copy at the place that they had.
  const uint64_t bytes = tensor.home_bytes();
  const bool has_room = memory_.Reserve();
  Mapping shared = MapOnceMore(tensor.contribution, bytes);
  Mapping kept = Mapping::MapPrivate(bytes);
  if (has_room && shared.valid() && kept.valid()) {
    ::madvise(shared.data(), bytes, MADV_DONTFORK);
    std::memcpy(kept.data(), tensor.contribution, tensor.bytes);
    if (PutAt(tensor.contribution, kept)) {
      tensor.MoveTo(shared.data());
      memory_.Keep(0, SegmentKind::kContribution, std::move(shared));
      return RankStatus::kOk;
    }
  }
  return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory to keep its last result: %s",
                    NameOf(tensor), std::strerror(errno));
}

void Attaching::ReplaceInChild() {
  // Replaces nothing if something else is there by now.
  const auto replace = [](void* place, uint64_t bytes) {
    ::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
           -1, 0);
  };
  tensors_.ForEach([&replace](const RankTensor& tensor) {
    if (!tensor.is_a_home()) return;
    replace(tensor.contribution, tensor.home_bytes());
    if (tensor.place != nullptr) replace(tensor.place, PlaceBytes(tensor.bytes));
  });
}

}  // namespace talweg::shm
