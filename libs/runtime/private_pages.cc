// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/private_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "libs/base/bytes.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace talweg::runtime {
namespace {

// While the kernel fills a range no thread of this process can map or unmap memory. So ranges are
// short.
constexpr size_t kFillBytes = 2 * kMiB;
constexpr size_t kPageBytes = 4 * kKiB;

// Returns the error of the last call, or 0.
int Populate(std::span<std::byte> range) {
  int result;
  do {
    result = madvise(range.data(), range.size(), MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  return result == 0 ? 0 : errno;
}

}  // namespace

absl::Status PrivatePages::Fill(const std::function<bool()>& is_wanted) {
  void* const address = mmap(nullptr, wanted_, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    const absl::Status error = absl::ErrnoToStatus(errno, "mapping " + FormatBytes(wanted_));
    return absl::ResourceExhaustedError(error.message());
  }
  bytes_ = {static_cast<std::byte*>(address), wanted_};
  if (wanted_ >= kFillBytes) madvise(address, wanted_, MADV_HUGEPAGE);  // A failure costs time.
  if (is_rarely_used_) return absl::OkStatus();
  for (size_t at = 0; at < wanted_ && is_wanted(); at += kFillBytes) {
    const std::span<std::byte> range = bytes_.subspan(at, std::min(kFillBytes, wanted_ - at));
    const int error = Populate(range);
    if (error == EINVAL) {  // A kernel before 5.14.
      for (size_t page = 0; page < range.size(); page += kPageBytes) range[page] = std::byte{0};
    } else if (error != 0) {
      return absl::ResourceExhaustedError(
          "the kernel has no " + FormatBytes(wanted_) +
          " of memory left; free memory, or raise the memory limit of this process's control "
          "group");
    }
  }
  return absl::OkStatus();
}

PrivatePages::~PrivatePages() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace talweg::runtime
