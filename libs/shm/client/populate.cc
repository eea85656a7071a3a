// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/populate.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "libs/base/bytes.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/mapping.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace talweg::shm {
namespace {

// Below this the kernel's call costs more than the page faults.
constexpr uint64_t kPopulateBytesMin = 256 * 1024;
// As madvise.
int Advise(const std::byte* begin, uint64_t bytes, int advice) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = address / kPageBytes * kPageBytes;
  return ::madvise(reinterpret_cast<void*>(first), address + bytes - first, advice);
}

// Has the kernel back what it can of `begin` with huge pages, whatever its policy for shared memory
// is. Huge pages come in half the time, and the sums need no walks of page tables. Kernels before
// 6.1 refuse. Then, or without a free huge page, nothing changes.
void BackWithHugePages(std::byte* begin, uint64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = RoundUp(address, Mapping::kHugePageBytes);
  const uintptr_t end = (address + bytes) / Mapping::kHugePageBytes * Mapping::kHugePageBytes;
  if (end <= first) return;
  for (uintptr_t at = first; at < end; at += Mapping::kHugePageBytes) {
    // The kernel refuses a huge page that is empty.
    if (::madvise(reinterpret_cast<void*>(at), kPageBytes, MADV_POPULATE_WRITE) != 0) return;
  }
  // In one call, because each call waits for every CPU.
  ::madvise(reinterpret_cast<void*>(first), end - first, MADV_COLLAPSE);
}

}  // namespace

bool Populate(RankTensor& tensor) {
  if (tensor.populated.exchange(true)) return true;
  if (tensor.ranks_sum) {
    // Nobody else has the kernel back these pages.
    const uint64_t bytes = tensor.shape.bytes();
    BackWithHugePages(tensor.contribution, bytes);
    if (Advise(tensor.contribution, bytes, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) {
      tensor.populated.store(false);
      return false;
    }
    for (uint64_t at = 0; at < bytes; at += kPageBytes) {  // A kernel before 5.14.
      const_cast<volatile std::byte*>(tensor.contribution)[at] = std::byte{0};
    }
    return true;
  }
  if (tensor.bytes < kPopulateBytesMin) return true;
  // Kernels before 5.14 do not know MADV_POPULATE_WRITE: their pages come one by one.
  if (tensor.contribution == nullptr) {  // The tensor is on a GPU, and so are its results.
    tensor.populated.store(false);
    return true;
  }
  Advise(tensor.contribution, tensor.bytes, MADV_POPULATE_WRITE);
  if (tensor.one_place) return true;
  Advise(tensor.result[0], tensor.bytes, MADV_POPULATE_READ);
  Advise(tensor.result[1], tensor.bytes, MADV_POPULATE_READ);
  return true;
}

}  // namespace talweg::shm
