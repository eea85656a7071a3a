// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/wakeups.h"

#include <unistd.h>

#include <utility>

namespace talweg::gpu::cuda {

Wakeups& Wakeups::Get() {
  static Wakeups* const all = new Wakeups;  // Never destroyed: the driver may call at exit.
  return *all;
}

void* Wakeups::Add(Wakeup wakeup) {
  const std::lock_guard lock(mutex_);
  under_way_.emplace(++last_, std::move(wakeup));
  return reinterpret_cast<void*>(last_);
}

std::optional<Wakeup> Wakeups::Take(void* number) {
  const std::lock_guard lock(mutex_);
  auto node = under_way_.extract(reinterpret_cast<uintptr_t>(number));
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

void Wakeups::DropAll(const std::shared_ptr<Descriptor>& descriptor) {
  const std::lock_guard lock(mutex_);
  std::erase_if(under_way_,
                [&](const auto& entry) { return entry.second.descriptor == descriptor; });
}

void Wakeups::Signal(void* number) {
  const std::optional<Wakeup> wakeup = Get().Take(number);
  if (!wakeup) return;
  wakeup->is_idle->store(true);
  const uint64_t one = 1;
  // A full counter means that many wake-ups are waiting already.
  [[maybe_unused]] const ssize_t written = write(wakeup->descriptor->get(), &one, sizeof(one));
}

}  // namespace talweg::gpu::cuda
