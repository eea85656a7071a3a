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
// NICs' reads and writes. No stream has these numbers.
inline constexpr Actor kNicReads = ~Actor{0};
inline constexpr Actor kNicWrites = ~Actor{0} - 1;

// How far every actor has come, as a piece of work knows it. An access of actor a at a's tick t is
// known to be done if Of(a) is at least t.
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

// The accesses to one piece of memory. Two accesses to a byte, one of them a write, are a race if
// no chain of stream order, events and the host's queries orders them. The log finds a race
// whatever time the accesses happened to take.
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

  // Records an access by `actor` at its tick in `clock`. Returns an earlier access that it races
  // with.
  std::optional<Access> Enter(uint64_t begin, uint64_t end, AccessKind kind, Actor actor,
                              const VectorClock& clock, const std::string& what);

  // Returns an access by one of these actors that is not done by `clock`.
  std::optional<Access> Unfinished(const VectorClock& clock,
                                   const std::function<bool(Actor)>& is_of_interest) const;

 private:
  std::vector<Access> accesses_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_ACCESS_LOG_H_
