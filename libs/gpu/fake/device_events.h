// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_DEVICE_EVENTS_H_
#define TALWEG_LIBS_GPU_FAKE_DEVICE_EVENTS_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>

#include "libs/gpu/device.h"
#include "libs/gpu/fake/world.h"

namespace talweg::gpu::fake {

// The events of one device: those that it made, and those that it imported.
class DeviceEvents {
 public:
  struct Event {
    std::shared_ptr<SharedEvent> shared;
    bool imported = false;
    bool exportable = false;
    bool recorded_here = false;
    bool is_shared() const { return imported || exportable; }
  };

  // The world outlives this object.
  explicit DeviceEvents(World& world) : world_(world) {}

  EventId Add(Event event);
  // INVALID_ARGUMENT: there is no such event. A violation if its owner has destroyed it.
  absl::StatusOr<Event*> Find(EventId event);
  void Destroy(EventId event);
  // The device is gone. Events that it had to record are never done.
  void OnDeviceGone();

 private:
  World& world_;
  uint64_t next_ = 1;
  std::map<EventId, Event> events_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_DEVICE_EVENTS_H_
