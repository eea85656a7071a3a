// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_IN_PLACE_SUM_H_
#define TALWEG_LIBS_SHM_CLIENT_IN_PLACE_SUM_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/contributions.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/result_way.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/waiting.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {

// Each piece of a round is summed once, over all contributions, by the rank that begins it first
// (docs/shared_memory.md, "In place"). Any thread; result_way.h says what each function does.
class InPlaceSum : public SummedByRanks {
 public:
  InPlaceSum(ClientHealth& health, Contributions& contributions, const Streaming& streaming,
             Waiting& waiting, ClientStatistics& statistics)
      : SummedByRanks(contributions),
        health_(health),
        streaming_(streaming),
        waiting_(waiting),
        statistics_(statistics) {}

  static bool GoesInPlace(const RankTensor&) { return true; }
  RankStatus Take(RoundCall& call, const CompleteRound& complete, uint64_t bytes, ErrorText& error);
  RankStatus Show(RoundCall& call, const CompleteRound& complete, uint64_t bytes, const void** data,
                  ErrorText& error);

  // Call it when the client is closed. Begins no more pieces, and returns when those that were
  // begun are done.
  void FinishPieces();

 private:
  // Returns when the result, of `bytes`, lies where this rank's contribution was.
  RankStatus Sum(const RankTensor& tensor, const CompleteRound& complete, uint64_t bytes,
                 const Deadline& deadline, ErrorText& error);
  RankStatus AwaitPieces(const RankTensor& tensor, uint64_t round, uint64_t pieces,
                         InPlaceLine& line, const Deadline& deadline, ErrorText& error);

  ClientHealth& health_;
  const Streaming& streaming_;
  Waiting& waiting_;
  ClientStatistics& statistics_;
  std::atomic<uint32_t> summing_{0};  // How many threads begin pieces of rounds now.
};

static_assert(ResultWay<InPlaceSum>);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_IN_PLACE_SUM_H_
