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
// each at a place of its own.
struct Target {
  std::byte* out = nullptr;
  uint64_t bytes = 0;
  void* const* places = nullptr;
  const uint64_t* rooms = nullptr;
};

// The parts that this rank gets of a round that is complete. What says how long they are may be
// changed by others at any time: every length is checked where it is used. Any thread.
class RoundParts {
 public:
  RoundParts(const AgentLink& link, const Streaming& streaming)
      : link_(link), streaming_(streaming) {}

  // Says their lengths, unless `lengths` is null, and their sum.
  RankStatus SayLengths(const RankTensor& tensor, const CompleteRound& complete, uint64_t* lengths,
                        uint64_t* bytes, ErrorText& error) const;
  // Whether there is room for each, of `bytes` together; kInvalidArgument: not so, and the round
  // may stay open. `has_own_place`: they need none of the caller's.
  RankStatus CheckRoom(const RankTensor& tensor, const CompleteRound& complete,
                       const Taking& taking, bool has_own_place, uint64_t bytes, bool* stays_open,
                       ErrorText& error) const;
  // Copies them, from the result or from who gives them.
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
