// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_DEVICE_STREAMS_H_
#define TALWEG_LIBS_GPU_FAKE_DEVICE_STREAMS_H_

#include <absl/status/status.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "libs/gpu/device.h"
#include "libs/gpu/fake/place.h"
#include "libs/gpu/fake/world.h"

namespace talweg::gpu::fake {

// The streams of one device: the work posted to each, and what it knows of others' work.
class DeviceStreams {
 public:
  // The world outlives this object.
  explicit DeviceStreams(World& world) : world_(world) {}

  StreamId New(size_t gpu, StreamPriority priority);
  void Destroy(StreamId stream);
  bool Has(StreamId stream) const { return streams_.contains(stream); }
  // INVALID_ARGUMENT: there is no such stream.
  absl::Status Check(StreamId stream) const;
  VectorClock& clock_of(StreamId stream) { return streams_.at(stream).clock; }

  // While reserved, the stream takes no other work.
  void Reserve(StreamId stream, bool reserved);
  // Records the accesses of `work`, and posts it.
  void Post(StreamId stream, Work work, const std::vector<Access>& accesses,
            const std::string& what);

  // A violation if work of these streams may still use the memory.
  void CheckUnused(const Memory& memory, const char* doing) const;
  // `doing` waits for all work of these streams. A violation if some of it may never end.
  void CheckEnds(const std::string& doing) const;

  // Stops the streams' work where it is.
  void Stop();
  // The device is gone. Its work is over for every actor.
  void Drop();

 private:
  struct Stream {
    VectorClock clock;
    bool reserved = false;
  };

  World& world_;
  std::map<StreamId, Stream> streams_;
  std::set<Actor> actors_;  // Destroyed streams, too.
  VectorClock stopped_;     // What was posted when they were stopped.
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_DEVICE_STREAMS_H_
