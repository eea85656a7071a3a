// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CONTRIBUTIONS_H_
#define TALWEG_LIBS_SHM_CLIENT_CONTRIBUTIONS_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/round_parts.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/client/waiting.h"

namespace talweg::shm {

// What all ranks of the node have contributed to a round that they sum; one of them finds it in its
// neighbours' memory (docs/shared_memory.md, "Ranks that sum"). Any thread.
class Contributions {
 public:
  Contributions(AgentLink& link, const ClientIdentity& identity, const RankMemory& memory,
                const RoundStates& states, const RoundParts& parts, Waiting& waiting)
      : link_(link),
        identity_(identity),
        memory_(memory),
        states_(states),
        parts_(parts),
        waiting_(waiting) {}

  // Waits until the round is complete.
  Awaited Await(const RoundCall& call, RankStatus* over);
  // Waits until the other ranks' memory is mapped here. It comes by the socket before its first
  // round is complete.
  Awaited AwaitMemory(const RankTensor& tensor, const Deadline& deadline, RankStatus* over);
  // Finds where the contributions to complete->round lie, and how long its parts are. kMismatch:
  // the ranks have said different things about the round.
  RankStatus Find(const RoundCall& call, CompleteRound* complete, ErrorText& error) const;

 private:
  RankStatus FindArenas(const RankTensor& tensor, std::byte** arenas, ErrorText& error) const;
  // The lengths that `rank` has pushed; null: all parts are full.
  static const uint32_t* PushedTable(const RankTensor& tensor, const CompleteRound& complete,
                                     uint32_t rank);
  // Compares what the ranks have said about a round.
  RankStatus Compare(const RankTensor& tensor, const CompleteRound& complete,
                     ErrorText& error) const;

  AgentLink& link_;
  const ClientIdentity& identity_;
  const RankMemory& memory_;
  const RoundStates& states_;
  const RoundParts& parts_;
  Waiting& waiting_;
};

// What RankSum and InPlaceSum share; result_way.h says what each function does.
class SummedByRanks {
 public:
  static constexpr bool kInHostMemory = true;

  explicit SummedByRanks(Contributions& contributions) : contributions_(contributions) {}

  Awaited Await(RoundCall& call, RankStatus* over) { return contributions_.Await(call, over); }
  Awaited AwaitInputs(RoundCall& call, RankStatus* over) {
    return contributions_.AwaitMemory(call.tensor, call.deadline, over);
  }
  RankStatus Find(const RoundCall& call, CompleteRound* complete, ErrorText& error) const {
    return contributions_.Find(call, complete, error);
  }

 private:
  Contributions& contributions_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CONTRIBUTIONS_H_
