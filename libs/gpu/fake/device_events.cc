// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/device_events.h"

#include <absl/strings/str_cat.h>

#include <utility>

namespace talweg::gpu::fake {

EventId DeviceEvents::Add(Event event) {
  const EventId id(next_++);
  events_[id] = std::move(event);
  return id;
}

absl::StatusOr<DeviceEvents::Event*> DeviceEvents::Find(EventId event) {
  const auto at = events_.find(event);
  if (at == events_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no event ", event.value(), " on this device"));
  }
  if (at->second.imported && at->second.shared->destroyed_by_owner) {
    world_.Violate("uses an event that its owner has destroyed");
  }
  return &at->second;
}

void DeviceEvents::Destroy(EventId event) {
  const auto at = events_.find(event);
  if (at == events_.end()) return;
  if (!at->second.imported) at->second.shared->destroyed_by_owner = true;
  events_.erase(at);
}

void DeviceEvents::OnDeviceGone() {
  for (auto& [id, event] : events_) {
    if (!event.imported) event.shared->owner_dead = true;
  }
}

}  // namespace talweg::gpu::fake
