// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_DEVICE_RESULT_H_
#define TALWEG_LIBS_SHM_CLIENT_DEVICE_RESULT_H_

#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/result_way.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/client/waiting.h"

namespace talweg::shm {

// The agent writes the result over the gradient, on a GPU, before the round is complete
// (docs/gpu.md). The rank only waits. A round that loses its events is not complete until it is
// pushed again. Any thread; result_way.h says what each function does.
class DeviceResult {
 public:
  static constexpr bool kInHostMemory = false;

  DeviceResult(AgentLink& link, const RoundStates& states, Waiting& waiting)
      : link_(link), states_(states), waiting_(waiting) {}

  static bool GoesInPlace(const RankTensor&) { return false; }
  Awaited Await(RoundCall& call, RankStatus* over) {
    const RankTensor& tensor = call.tensor;
    const OpenedRound& opened = call.opened;
    return waiting_.Await(
        [&] {
          return states_.IsComplete(tensor, opened.round, opened.others) ||
                 states_.LostItsEvents(tensor);
        },
        call.deadline,
        {link_.control().rank_line().waiters, tensor.index, 0, !opened.others.visible()}, over);
  }
  Awaited AwaitInputs(RoundCall&, RankStatus*) { return Awaited::kDone; }
  // All parts are full.
  RankStatus Find(const RoundCall& call, CompleteRound* complete, ErrorText&) const {
    complete->lengths = RoundLengths(call.tensor.buffer);
    return RankStatus::kOk;
  }
  RankStatus Take(RoundCall&, const CompleteRound&, uint64_t, ErrorText&) {
    return RankStatus::kOk;
  }
  RankStatus Show(RoundCall& call, const CompleteRound&, uint64_t, const void**, ErrorText& error) {
    return FailOnDevice(call.tensor, error);
  }

 private:
  AgentLink& link_;
  const RoundStates& states_;
  Waiting& waiting_;
};

static_assert(ResultWay<DeviceResult>);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_DEVICE_RESULT_H_
