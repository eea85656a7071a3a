// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_RANK_SUM_H_
#define TALWEG_LIBS_SHM_CLIENT_RANK_SUM_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/contributions.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/result_way.h"
#include "libs/shm/client/round_call.h"
#include "libs/shm/client/round_parts.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/waiting.h"

namespace talweg::shm {

// Each rank sums all contributions straight into its caller's buffer. The ranks share the work of
// large tensors (docs/shared_memory.md, "Ranks that sum"). Any thread; result_way.h says what each
// function does.
class RankSum : public SummedByRanks {
 public:
  RankSum(Contributions& contributions, const RoundParts& parts, const Streaming& streaming,
          ClientStatistics& statistics)
      : SummedByRanks(contributions),
        parts_(parts),
        streaming_(streaming),
        statistics_(statistics) {}

  static bool GoesInPlace(const RankTensor&) { return false; }
  RankStatus Take(RoundCall& call, const CompleteRound& complete, uint64_t bytes, ErrorText& error);
  // Sums into memory of this rank's own.
  RankStatus Show(RoundCall& call, const CompleteRound& complete, uint64_t bytes, const void** data,
                  ErrorText& error);

 private:
  // Writes the parts that this rank gets.
  RankStatus Sum(RankTensor& tensor, const CompleteRound& complete, const Target& target,
                 ErrorText& error);
  void SumShared(RankTensor& tensor, const CompleteRound& complete, std::byte* out, uint64_t bytes);
  RankStatus SumIntoOwnResult(RankTensor& tensor, const CompleteRound& complete, uint64_t bytes,
                              const void** data, ErrorText& error);

  const RoundParts& parts_;
  const Streaming& streaming_;
  ClientStatistics& statistics_;
  Mutex result_mutex_;  // Guards every tensor's own_result.
};

static_assert(ResultWay<RankSum>);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_RANK_SUM_H_
