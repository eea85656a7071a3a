// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ROUND_STATES_H_
#define TALWEG_LIBS_SHM_CLIENT_ROUND_STATES_H_

#include <atomic>
#include <cstdint>
#include <optional>

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
  // For a complete round of a tensor with patience: what is known of it if it has a result. nullopt
  // for other tensors.
  std::optional<GoodRound> Good(const RankTensor& tensor, uint64_t round) const;

  uint32_t EventsLost() const {
    return link_.control().agent_line().events_lost.load(std::memory_order_seq_cst);
  }
  // Whether the tensor's open round has lost its GPU's events.
  bool LostItsEvents(const RankTensor& tensor) const {
    return tensor.pushed_at.load(std::memory_order_relaxed) != EventsLost();
  }

 private:
  const AgentLink& link_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ROUND_STATES_H_
