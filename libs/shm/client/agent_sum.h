// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_AGENT_SUM_H_
#define TALWEG_LIBS_SHM_CLIENT_AGENT_SUM_H_

#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/result_way.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/round_parts.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/waiting.h"

namespace talweg::shm {

// The agent sums, or receives, the result and writes it to the node's result arena. A rank copies
// it from there; it copies a large one while it arrives (docs/shared_memory.md, "Taking what has
// come"). Any thread; result_way.h says what each function does.
class AgentSum {
 public:
  static constexpr bool kInHostMemory = true;

  AgentSum(AgentLink& link, const RoundStates& states, const RoundParts& parts,
           const Streaming& streaming, Waiting& waiting, ClientStatistics& statistics)
      : link_(link),
        states_(states),
        parts_(parts),
        streaming_(streaming),
        waiting_(waiting),
        statistics_(statistics) {}

  static bool GoesInPlace(const RankTensor& tensor) {
    return tensor.in_place.load(std::memory_order_relaxed);
  }
  Awaited Await(RoundCall& call, RankStatus* over);
  // There are no inputs to wait for.
  Awaited AwaitInputs(RoundCall&, RankStatus*) { return Awaited::kDone; }
  RankStatus Find(const RoundCall& call, CompleteRound* complete, ErrorText& error) const;
  RankStatus Take(RoundCall& call, const CompleteRound& complete, uint64_t bytes, ErrorText& error);
  RankStatus Show(RoundCall& call, const CompleteRound& complete, uint64_t bytes, const void** data,
                  ErrorText& error);

 private:
  // The part of the round that may be copied before the round is complete.
  ArrivingResult Arriving(const RoundCall& call) const;

  AgentLink& link_;
  const RoundStates& states_;
  const RoundParts& parts_;
  const Streaming& streaming_;
  Waiting& waiting_;
  ClientStatistics& statistics_;
};

static_assert(ResultWay<AgentSum>);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_AGENT_SUM_H_
