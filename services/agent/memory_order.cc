// SPDX-License-Identifier: Apache-2.0
#include "services/agent/memory_order.h"

#include "libs/status/status.h"

namespace talweg::agent {

absl::Status MemoryOrder::Fill() const {
  for (const shm::UnbackedMemory& memory : shared_) {
    const auto backed = memory.Back();
    if (!backed.ok()) return absl::ResourceExhaustedError(backed.failure().text);
  }
  for (const std::weak_ptr<PrivatePages>& weak : pages_) {
    const std::shared_ptr<PrivatePages> pages = weak.lock();
    if (pages == nullptr) continue;
    TALWEG_RETURN_IF_ERROR(pages->Fill([&pages] { return pages.use_count() > 1; }));
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
