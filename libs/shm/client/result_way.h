// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_RESULT_WAY_H_
#define TALWEG_LIBS_SHM_CLIENT_RESULT_WAY_H_

#include <concepts>
#include <cstdint>

#include "libs/shm/client/error_text.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/waiting.h"
#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// A way by which a round's result comes to a rank. There are four: AgentSum, RankSum, InPlaceSum,
// DeviceResult. Rounds (rounds.h) calls the functions of one way in this order.
template <typename Way>
concept ResultWay =
    requires(Way& way, RoundCall& call, CompleteRound* found, const CompleteRound& complete,
             uint64_t bytes, const void** data, RankStatus* over, ErrorText& error) {
      // Whether the result is in host memory: only then it has a length that must fit.
      { Way::kInHostMemory } -> std::convertible_to<bool>;
      // Whether the result replaces the rank's contribution if the caller wants it nowhere else.
      { Way::GoesInPlace(call.tensor) } -> std::same_as<bool>;
      // Waits until the round is complete, or never will be.
      { way.Await(call, over) } -> std::same_as<Awaited>;
      // Then waits until everything is mapped that the result is made of.
      { way.AwaitInputs(call, over) } -> std::same_as<Awaited>;
      // Finds what the result is made of, and how long its parts are. kMismatch: the ranks have
      // said different things about the round.
      { way.Find(call, found, error) } -> std::same_as<RankStatus>;
      // Brings the parts, of `bytes` together, to where the caller wants them. kTimeout: the round
      // stays open.
      { way.Take(call, complete, bytes, error) } -> std::same_as<RankStatus>;
      // Returns where the rank's one part lies, of `bytes`, until the rank's next push.
      { way.Show(call, complete, bytes, data, error) } -> std::same_as<RankStatus>;
    };

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_RESULT_WAY_H_
