// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ROUND_STATES_H_
#define TALWEG_LIBS_SHM_CLIENT_ROUND_STATES_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/pushed_rounds.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {

// What the agent says about rounds in the control segment. Any thread may ask.
class RoundStates {
 public:
  explicit RoundStates(const AgentLink& link) : link_(link) {}

  const TensorState& Of(const RankTensor& tensor) const {
    return link_.control().tensor_state(tensor.index);
  }
  // The last round that the agent has published.
  uint64_t Completed(const RankTensor& tensor) const {
    return Of(tensor).completed_round.load(std::memory_order_seq_cst);
  }

  // Whether the round is complete: the agent says so, or the other ranks do, if they can be seen.
  bool IsComplete(const RankTensor& tensor, uint64_t round, const PushedRounds& others) const {
    return Completed(tensor) >= round || others.AllReach(round);
  }

  // For a complete round. Returns kOk, or why the round has no result.
  RankStatus Status(const RankTensor& tensor, uint64_t round, ErrorText& error) const;
  bool Succeeded(const RankTensor& tensor, uint64_t round) const;
  // For a complete round. Whether its result does not have what this rank contributed: the round
  // went on without it.
  bool LeavesOut(const RankTensor& tensor, uint64_t round) const {
    return tensor.collective.leaves_out() && LeftOutRound(LeftOutWord(tensor, round)) == round;
  }
  // The number of ranks in the result of such a round.
  uint64_t RanksWithout(const RankTensor& tensor, uint64_t round) const {
    return LeftOutRanks(LeftOutWord(tensor, round));
  }

  uint32_t EventsLost() const {
    return link_.control().agent_line().events_lost.load(std::memory_order_seq_cst);
  }
  // Whether the tensor's open round has lost its GPU's events.
  bool LostItsEvents(const RankTensor& tensor) const {
    return tensor.pushed_at.load(std::memory_order_relaxed) != EventsLost();
  }

 private:
  uint64_t LeftOutWord(const RankTensor& tensor, uint64_t round) const {
    return Of(tensor).left_out[round & 1].load(std::memory_order_relaxed);
  }

  const AgentLink& link_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ROUND_STATES_H_
