// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_MEMORY_THREAD_H_
#define TALWEG_SERVICES_AGGREGATOR_MEMORY_THREAD_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "libs/runtime/turn_thread.h"
#include "services/aggregator/slot_memory.h"

namespace talweg::aggregator {

// A thread that waits for the kernel's memory, so that a data thread does not: rounds go on while a
// tensor is declared. Mappings come in the order in which they were asked for.
class MemoryThread final : public MemorySource {
 public:
  // Has the data thread run `errand`. Called by the memory thread.
  using Post = std::function<void(std::function<void()> errand)>;

  explicit MemoryThread(Post post) : post_(std::move(post)) {}

  void Map(size_t bytes, std::weak_ptr<const void> wanted, Then then) override {
    thread_.Add({.run =
                     [this, bytes, wanted = std::move(wanted), then = std::move(then)] {
                       if (wanted.expired()) return;
                       post_([then, mapping = MapAnonymous(bytes, wanted)] { then(mapping); });
                     },
                 .when_idle = {}});
  }

 private:
  const Post post_;
  // Its end takes no longer than the kernel's present answer if nobody wants the mapping whose turn
  // it is.
  runtime::TurnThread thread_{"talweg-memory"};
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_MEMORY_THREAD_H_
