// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/segment.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "libs/base/bytes.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace talweg::shm {
namespace {

const char* UseName(SegmentUse use) {
  switch (use) {
    case SegmentUse::kControl: return "talweg-control";
    case SegmentUse::kContribution:
    case SegmentUse::kSharedContribution:
    case SegmentUse::kOnePlace: return "talweg-contribution";
    case SegmentUse::kResult: return "talweg-result";
  }
  return "talweg";
}

bool OnlyReads(SegmentUse use) {
  return use == SegmentUse::kContribution || use == SegmentUse::kSharedContribution;
}

Failure KernelRefused(SegmentUse use, uint64_t bytes, const char* call) {
  const int error = errno;
  Failure failure{RankStatus::kOutOfMemory, "no segment of " + FormatBytes(bytes) + " (" +
                                                UseName(use) + "): " + call + ": " +
                                                std::strerror(error)};
  if (error == EMFILE || error == ENFILE) {
    failure.status = RankStatus::kLimit;
    failure.text += "; raise the agent's limit of open files (ulimit -n)";
  }
  return failure;
}

// Has the kernel back the whole huge pages of the range as such, whatever its policy for shared
// memory is. Huge pages come in a third of the time, and all processes that map them have them at
// once; 4 KiB pages would cost each process as much again. Kernels before 6.1 refuse. Then, or
// without a free huge page, fallocate backs the rest.
void BackWithHugePages(const Segment& segment, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kHuge = Mapping::kHugePageBytes;
  constexpr uint64_t kPage = 4096;
  const uint64_t begin = offset / kHuge * kHuge;
  const uint64_t end = (offset + bytes) / kHuge * kHuge;
  if (end <= begin) return;
  for (uint64_t at = begin; at < end; at += kHuge) {
    // The kernel refuses a huge page that is empty.
    if (::fallocate(segment.fd.get(), 0, static_cast<off_t>(at), kPage) != 0) return;
  }
  // In one call, because each call waits for every CPU.
  ::madvise(segment.mapping.data() + begin, end - begin, MADV_COLLAPSE);
}

// Maps the pages that the range has. If the kernel refuses, whoever touches a page first does it.
void MapPages(SegmentUse use, const Segment& segment, uint64_t offset, uint64_t bytes) {
  // While a call lasts no thread of this process can map or unmap memory. So calls are short.
  constexpr uint64_t kCallBytes = Mapping::kHugePageBytes;
  constexpr uint64_t kPage = 4096;
  const int advice = OnlyReads(use) ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
  const uint64_t end = offset + bytes;
  for (uint64_t at = offset / kPage * kPage; at < end;) {
    const uint64_t next = std::min(end, at / kCallBytes * kCallBytes + kCallBytes);
    if (::madvise(segment.mapping.data() + at, next - at, advice) != 0) return;
    at = next;
  }
}

}  // namespace

Outcome<Segment> CreateSegment(SegmentUse use, uint64_t bytes) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Kernels since 6.3 may insist on knowing that memory is not executable. Older ones do not know
  // the flag.
  Descriptor fd(::memfd_create(UseName(use), flags | MFD_NOEXEC_SEAL));
  if (!fd.valid() && errno == EINVAL) fd = Descriptor(::memfd_create(UseName(use), flags));
  if (!fd.valid()) return KernelRefused(use, bytes, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return KernelRefused(use, bytes, "ftruncate");
  }
  const auto access = OnlyReads(use) ? Mapping::Access::kRead : Mapping::Access::kReadWrite;
  Mapping mapping = Mapping::Map(fd.get(), bytes, access);
  if (!mapping.valid()) return KernelRefused(use, bytes, "mmap");
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (use != SegmentUse::kSharedContribution) seals |= F_SEAL_SEAL;
  // After our own writable mapping, which stays writable.
  if (use == SegmentUse::kResult) seals |= F_SEAL_FUTURE_WRITE;
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
    return KernelRefused(use, bytes, "fcntl(F_ADD_SEALS), which needs Linux 5.1");
  }
  return Segment{bytes, std::move(fd), std::move(mapping)};
}

void SealAgainstWriters(const Segment& segment) {
  ::fcntl(segment.fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

Outcome<bool> BackWithMemory(SegmentUse use, const Segment& segment, uint64_t offset,
                             uint64_t bytes) {
  BackWithHugePages(segment, offset, bytes);
  int result;
  do {
    result =
        ::fallocate(segment.fd.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    return Failure{RankStatus::kOutOfMemory,
                   "the kernel has no " + FormatBytes(bytes) +
                       " of shared memory left (fallocate: " + std::strerror(errno) +
                       "); free memory, or raise the memory limit of the agent's control group"};
  }
  MapPages(use, segment, offset, bytes);
  return true;
}

}  // namespace talweg::shm
