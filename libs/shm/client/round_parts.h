// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ROUND_PARTS_H_
#define TALWEG_LIBS_SHM_CLIENT_ROUND_PARTS_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/transfers.h"

namespace talweg::shm {

// Where a rank wants the parts that it gets, of `bytes` together: one after another at `out`, or
// each at its own place.
struct Target {
  std::byte* out = nullptr;
  uint64_t bytes = 0;
  void* const* places = nullptr;
  const uint64_t* rooms = nullptr;
};

// The parts that this rank gets of a complete round. Others may change the lengths at any time, so
// each length is checked where it is used. Any thread.
class RoundParts {
 public:
  RoundParts(const AgentLink& link, const Streaming& streaming)
      : link_(link), streaming_(streaming) {}

  // Writes the parts' lengths to `lengths`, unless that is null, and their sum to `bytes`.
  RankStatus SayLengths(const RankTensor& tensor, const CompleteRound& complete, uint64_t* lengths,
                        uint64_t* bytes, ErrorText& error) const;
  // Checks that there is room for the parts, of `bytes` together. kInvalidArgument: there is not,
  // and *stays_open says whether the round stays open. `has_own_place`: the parts need no room of
  // the caller's.
  RankStatus CheckRoom(const RankTensor& tensor, const CompleteRound& complete,
                       const Taking& taking, bool has_own_place, uint64_t bytes, bool* stays_open,
                       ErrorText& error) const;
  // Copies the parts, from the result or from the ranks that give them.
  RankStatus Copy(const RankTensor& tensor, const CompleteRound& complete, const Target& target,
                  ErrorText& error) const;
  RankStatus FailLength(const RankTensor& tensor, uint64_t length, ErrorText& error) const;

 private:
  static RankStatus FailRoom(const RankTensor& tensor, uint64_t round, uint64_t bytes,
                             uint64_t room, ErrorText& error);

  const AgentLink& link_;
  const Streaming& streaming_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ROUND_PARTS_H_
