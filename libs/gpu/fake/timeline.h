// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_TIMELINE_H_
#define TALWEG_LIBS_GPU_FAKE_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "libs/base/random.h"
#include "libs/gpu/device.h"
#include "libs/gpu/fake/access_log.h"

namespace talweg::gpu::fake {

// One recording of an event.
struct Mark {
  bool done = false;
  Actor recorder = kHost;
  VectorClock clock;  // The work that is done when the mark is.
  std::vector<std::function<void()>> on_done;
};

// The engines of a GPU. Each does one piece of work at a time.
enum class Engine : uint8_t { kNone, kToHost, kToDevice, kCompute };
inline constexpr size_t kEngineCount = 4;

// Work that several streams do together. It starts when all of them have reached it.
struct Rendezvous {
  size_t parties = 0;
  int64_t not_before_ns = 0;
  int64_t duration_ns = 0;
  bool hangs = false;
  bool over = false;  // Done, or aborted.
  std::function<void()> begin;
  std::function<void()> end;

  size_t arrived = 0;
  std::optional<int64_t> ends_ns;
};

// Exactly one of: timed work on an engine, a wait for a mark, a mark, a rendezvous.
struct Work {
  Engine engine = Engine::kNone;
  int64_t duration_ns = 0;
  std::function<void()> begin;
  std::function<void()> end;

  std::shared_ptr<Mark> waits_for;
  std::shared_ptr<Mark> marks;
  std::shared_ptr<Rendezvous> joint;
};

// Streams of work on the engines of several GPUs, in virtual time: each stream in its order, all
// streams concurrently. Work that is ready at the same time is taken by priority, then at random.
// Effects happen at the beginning and end of work, at times that do not depend on when Advance is
// called.
class Timeline {
 public:
  Timeline(size_t gpu_count, uint64_t seed) : engines_(gpu_count), random_(seed) {}

  Actor NewStream(size_t gpu, StreamPriority priority);
  void Post(Actor stream, Work work);
  // The stream's work goes on. The stream ends with the last of it.
  void Close(Actor stream);
  // The stream's work is never done.
  void Drop(Actor stream);

  // Moves to `now_ns`, which never goes back. Do not call it from within an effect.
  void Advance(int64_t now_ns);
  int64_t now_ns() const { return now_ns_; }
  // Returns when the next work ends if nothing more is posted.
  std::optional<int64_t> NextEndNs() const;
  bool IsIdle(Actor stream) const;
  // Returns what the end of the stream may wait for for ever: work of streams that are not in
  // `own`, or a collective that hangs. Null: nothing.
  const char* MayNeverEnd(Actor stream, const std::set<Actor>& own) const;

 private:
  struct Stream {
    size_t gpu;
    StreamPriority priority;
    bool closed = false;
    bool at_rendezvous = false;
    std::optional<int64_t> ends_ns;  // When the first work ends, once begun.
    std::deque<Work> works;
  };
  using Engines = bool[kEngineCount];  // Whether each is taken.
  struct GpuEngines {
    Engines taken = {};
  };

  // Begins and passes all work that can begin or pass at now_ns_. Returns whether there was any.
  bool Settle();
  bool PassInstant(Stream& stream);
  bool BeginTimed();
  bool EndDue();
  void EndFirst(Stream& stream);

  std::vector<GpuEngines> engines_;
  Random random_;
  int64_t now_ns_ = 0;
  Actor next_stream_ = kHost + 1;
  std::map<Actor, Stream> streams_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_TIMELINE_H_
