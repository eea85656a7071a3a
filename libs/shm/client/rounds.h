// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ROUNDS_H_
#define TALWEG_LIBS_SHM_CLIENT_ROUNDS_H_

#include <cstdint>

#include "libs/shm/client/agent_bell.h"
#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/agent_sum.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/contributions.h"
#include "libs/shm/client/device_result.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/in_place_sum.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/rank_sum.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/client/result_way.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/round_parts.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/transfers.h"
#include "libs/shm/client/waiting.h"

namespace talweg::shm {

// The rounds that this rank has pushed. A wait finds its round, lets the way by which the result
// comes (result_way.h) wait for it and take it, and ends the round. Any thread may call any
// function.
class Rounds {
 public:
  Rounds(AgentLink& link, ClientHealth& health, AgentBell& bell, const ClientIdentity& identity,
         const RankMemory& memory, const RoundStates& states, Streaming& streaming,
         Waiting& waiting, ClientStatistics& statistics, Mutex& state_mutex)
      : health_(health),
        bell_(bell),
        identity_(identity),
        memory_(memory),
        states_(states),
        streaming_(streaming),
        waiting_(waiting),
        statistics_(statistics),
        state_mutex_(state_mutex),
        parts_(link, streaming),
        contributions_(link, identity, memory, states, parts_, waiting),
        agent_sum_(link, states, parts_, streaming, waiting, statistics),
        rank_sum_(contributions_, parts_, streaming, statistics),
        in_place_sum_(health, contributions_, streaming, waiting, statistics),
        device_result_(link, states, waiting) {}

  // Does not wait. Returns kOk if the round is over, or kPending.
  RankStatus Poll(const RankTensor& tensor, uint64_t round, ErrorText& error);
  RankStatus Wait(RankTensor& tensor, uint64_t round, const Taking& taking, int64_t timeout_ns,
                  ErrorText& error);
  // Returns the result of the round that was taken last.
  RankStatus Result(RankTensor& tensor, uint64_t round, const void** data, uint64_t* bytes,
                    ErrorText& error);
  uint64_t RanksSummed(const RankTensor& tensor) const;
  // In how many rounds this rank was left out.
  uint64_t LeftOutCount(const RankTensor& tensor) const;
  // The round that was pushed and not taken; 0 if there is none.
  uint64_t OpenRound(const RankTensor& tensor) const;

  // Call it when the client is closed. Returns when no thread sums anything that other ranks wait
  // for.
  void FinishPieces() { in_place_sum_.FinishPieces(); }

 private:
  // How a wait ends.
  struct Ending {
    bool is_late = false;  // The deadline passed first.
    bool is_taken = false;
    bool ranks_disagree = false;
  };

  // Find the round, if it is the last that was pushed, or taken. The tensor has one more reader
  // then.
  RankStatus FindPushed(RoundCall& call, uint64_t round, ErrorText& error);
  RankStatus FindTaken(RoundCall& call, uint64_t round, ErrorText& error);
  // Calls `take` with the way by which the round's result comes.
  template <typename Take>
  RankStatus InItsWay(const RoundCall& call, const Take& take) {
    if (call.opened.on_device) return take(device_result_);
    if (call.tensor.shape.in_place) return take(in_place_sum_);
    if (call.tensor.ranks_sum) return take(rank_sum_);
    return take(agent_sum_);
  }
  template <ResultWay Way>
  RankStatus WaitIn(Way& way, RoundCall& call, int64_t begin_ns, int64_t timeout_ns, Ending* ending,
                    ErrorText& error);
  // For a complete round that has a result. `reads`: the lengths are wanted.
  template <ResultWay Way>
  RankStatus TakeIn(Way& way, RoundCall& call, bool reads, Ending* ending, ErrorText& error);
  template <ResultWay Way>
  RankStatus ShowIn(Way& way, RoundCall& call, const void** data, uint64_t* bytes,
                    ErrorText& error);
  // The round is over for this rank. Call with the state mutex locked.
  void End(RankTensor& tensor, uint64_t round);

  ClientHealth& health_;
  AgentBell& bell_;
  const ClientIdentity& identity_;
  const RankMemory& memory_;
  const RoundStates& states_;
  Streaming& streaming_;
  Waiting& waiting_;
  ClientStatistics& statistics_;
  Mutex& state_mutex_;
  RoundParts parts_;
  Contributions contributions_;
  AgentSum agent_sum_;
  RankSum rank_sum_;
  InPlaceSum in_place_sum_;
  DeviceResult device_result_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ROUNDS_H_
