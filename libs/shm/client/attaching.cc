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

// Describes a place that a tensor is attached to.
uint64_t PlaceBytes(uint64_t tensor_bytes) { return RoundUp(tensor_bytes, kPageBytes); }

// The same pages, elsewhere. Not valid() when the kernel refuses: with EINVAL what is not shared,
// with EFAULT what is not mapped.
Mapping MapOnceMore(void* data, uint64_t bytes) {
  void* const again = ::mremap(data, 0, bytes, MREMAP_MAYMOVE);
  return again == MAP_FAILED ? Mapping() : Mapping::Adopt(again, bytes);
}

// In place of what is mapped at `address`, which is never unmapped.
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
      // Nothing is lost where it cannot be filled again without fear of SIGBUS: it stays full.
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
  // A round that is open at the goodbye is the other ranks', and the place is this one's.
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
  // The same pages once more, elsewhere; then a copy of its own over the place they had.
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
  // Unless something else is there by now.
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
