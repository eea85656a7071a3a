// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/asking.h"

#include <cstdio>

namespace talweg::shm {

RankStatus Asking::Whom(uint32_t tensor, uint64_t round, char* text, size_t text_bytes,
                        int64_t timeout_ns, ErrorText& error) {
  constexpr const char* kWhat = "whom a round waits for";
  text[0] = '\0';
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, kWhat, error);
  if (link_.minor() < kTellsWaitsMinor) return RankStatus::kOk;
  PendingAnswer pending;
  const Ask question{.tensor = tensor, .round = round};
  switch (questions_.Ask(question, pending, Deadline(timeout_ns), &over)) {
    case Awaited::kDone: break;
    case Awaited::kOver: return health_.FailOver(over, kWhat, error);
    case Awaited::kTimeout:
      return error.Fail(RankStatus::kTimeout, "%s: no answer within %.3f s", kWhat,
                        static_cast<double>(timeout_ns) / 1e9);
  }
  if (pending.status == RankStatus::kOk) {
    std::snprintf(text, text_bytes, "%s", pending.text);
  }
  return pending.Status(error);
}

}  // namespace talweg::shm
