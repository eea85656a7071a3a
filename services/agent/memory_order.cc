// SPDX-License-Identifier: Apache-2.0
#include "services/agent/memory_order.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "libs/base/bytes.h"
#include "libs/status/status.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace talweg::agent {
namespace {

// While the kernel fills a range no thread of this process can map or unmap memory. So ranges are
// short.
constexpr size_t kFillBytes = size_t{2} << 20;

}  // namespace

absl::Status PrivatePages::Fill(const std::shared_ptr<PrivatePages>& pages) {
  const size_t wanted = pages->wanted_;
  void* address = mmap(nullptr, wanted, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return status::ErrnoStatus(errno, "mmap of " + FormatBytes(wanted));
  pages->bytes_ = {static_cast<std::byte*>(address), wanted};
  madvise(address, wanted, MADV_HUGEPAGE);  // A failure only costs time.
  for (size_t at = 0; at < wanted && !pages->is_rarely_used_; at += kFillBytes) {
    if (pages.use_count() == 1) break;
    int result;
    do {
      result = madvise(pages->bytes_.data() + at, std::min(kFillBytes, wanted - at),
                       MADV_POPULATE_WRITE);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) continue;
    if (errno == EINVAL) break;  // A kernel before 5.14: the pages come one by one.
    return absl::ResourceExhaustedError("the kernel has no " + FormatBytes(wanted) +
                                        " of memory left; free memory, or raise the memory limit "
                                        "of the agent's control group");
  }
  return absl::OkStatus();
}

PrivatePages::~PrivatePages() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

absl::Status MemoryOrder::Fill() const {
  for (const shm::UnbackedMemory& memory : shared_) {
    const auto backed = memory.Back();
    if (!backed.ok()) return absl::ResourceExhaustedError(backed.failure().text);
  }
  for (const std::weak_ptr<PrivatePages>& weak : pages_) {
    const std::shared_ptr<PrivatePages> pages = weak.lock();
    if (pages != nullptr) TALWEG_RETURN_IF_ERROR(PrivatePages::Fill(pages));
  }
  return absl::OkStatus();
}

void MemoryOrder::FillAhead() const {
  for (const shm::UnbackedMemory& memory : shared_) memory.BackAhead();
}

void MemoryOrders::Place(MemoryOrder order, Then then) {
  if (order.empty()) return then(absl::OkStatus());
  if (source_ == nullptr) return then(order.Fill());
  const OrderNumber number = next_++;
  waiting_.emplace(number, std::move(then));
  source_->Ask(number, std::move(order));
}

void MemoryOrders::OnFilled(OrderNumber number, const absl::Status& status) {
  const auto waiting = waiting_.extract(number);
  if (!waiting.empty()) waiting.mapped()(status);
}

}  // namespace talweg::agent
