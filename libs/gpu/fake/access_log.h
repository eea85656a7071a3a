// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_ACCESS_LOG_H_
#define TALWEG_LIBS_GPU_FAKE_ACCESS_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace talweg::gpu::fake {

// The host, a NIC, or one stream.
using Actor = uint64_t;
inline constexpr Actor kHost = 0;
// What NICs read, and write. No stream has these numbers.
inline constexpr Actor kNicReads = ~Actor{0};
inline constexpr Actor kNicWrites = ~Actor{0} - 1;

// How far a piece of work knows every actor to have come. An access of actor a at a's tick t is
// done for everybody whose Of(a) is at least t.
class VectorClock {
 public:
  uint64_t Of(Actor actor) const {
    const auto at = ticks_.find(actor);
    return at == ticks_.end() ? 0 : at->second;
  }
  uint64_t Tick(Actor actor) { return ++ticks_[actor]; }
  void Merge(const VectorClock& other) {
    for (const auto& [actor, tick] : other.ticks_) {
      uint64_t& mine = ticks_[actor];
      if (mine < tick) mine = tick;
    }
  }

 private:
  std::map<Actor, uint64_t> ticks_;
};

enum class AccessKind : uint8_t { kRead, kWrite };

// Who touched which bytes of one piece of memory. Two accesses to a byte, one of them a write, are
// a race if no chain of stream order, events and the host's questions orders them. The log finds a
// race whatever time the accesses happened to take.
class AccessLog {
 public:
  struct Access {
    uint64_t begin;
    uint64_t end;
    Actor actor;
    uint64_t tick;
    AccessKind kind;
    std::string what;
  };

  // Enters an access by `actor` at the tick that `clock` has for it. Returns an earlier access that
  // it races with.
  std::optional<Access> Enter(uint64_t begin, uint64_t end, AccessKind kind, Actor actor,
                              const VectorClock& clock, const std::string& what);

  // An access by one of these actors that this clock does not know to be done.
  std::optional<Access> Unfinished(const VectorClock& clock,
                                   const std::function<bool(Actor)>& is_of_interest) const;

 private:
  std::vector<Access> accesses_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_ACCESS_LOG_H_
