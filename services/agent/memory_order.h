// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_MEMORY_ORDER_H_
#define TALWEG_SERVICES_AGENT_MEMORY_ORDER_H_

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "libs/runtime/private_pages.h"
#include "libs/shm/daemon/unbacked_memory.h"

namespace talweg::agent {

using runtime::PrivatePages;

// What a tensor needs of the kernel before anybody touches its memory. Nothing is asked for if the
// memory is given back before its turn comes. Copyable.
class MemoryOrder {
 public:
  void Add(const shm::UnbackedMemory& memory) {
    if (!memory.empty()) shared_.push_back(memory);
  }
  void Add(const std::shared_ptr<PrivatePages>& pages) { pages_.push_back(pages); }
  bool empty() const { return shared_.empty() && pages_.empty(); }

  // Any thread, but the orders of one agent one after another. Takes the time that the kernel
  // needs. RESOURCE_EXHAUSTED if it has no memory.
  absl::Status Fill() const;
  // Prepares for the orders that follow. Likewise.
  void FillAhead() const;

 private:
  std::vector<shm::UnbackedMemory> shared_;
  std::vector<std::weak_ptr<PrivatePages>> pages_;
};

using OrderNumber = uint64_t;

// Whoever fills orders, in the order in which they come.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // MemoryOrders::OnFilled follows, now or later.
  virtual void Ask(OrderNumber number, MemoryOrder order) = 0;
};

// The orders that are not filled yet. Owned by the data thread.
class MemoryOrders {
 public:
  using Then = std::function<void(const absl::Status&)>;

  // `source` outlives this. Null: the caller of Place fills each order itself.
  explicit MemoryOrders(MemorySource* source) : source_(source) {}

  // Has the order filled, then calls `then` with the outcome. That is before this returns if the
  // order asks for nothing or there is no source.
  void Place(MemoryOrder order, Then then);
  // The source has filled the order. Does nothing if the order was forgotten.
  void OnFilled(OrderNumber number, const absl::Status& status);
  // Nobody waits for the orders any more.
  void Forget() { waiting_.clear(); }

  size_t waiting_count() const { return waiting_.size(); }

 private:
  MemorySource* const source_;
  OrderNumber next_ = 1;
  std::map<OrderNumber, Then> waiting_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_MEMORY_ORDER_H_
