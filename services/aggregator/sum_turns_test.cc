// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/sum_turns.h"

#include <map>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::aggregator {
namespace {

// Returns a sum of two inputs, without memory.
PendingSum SumOf(uint64_t round, size_t length_bytes) {
  return {.id = {.round = Round{round}},
          .length_bytes = length_bytes,
          .inputs = std::vector<SlotMemory>(2)};
}

TEST_CASE("SumTurns: a job's sums are done in their order", "[aggregator]") {
  SumTurns turns;
  JobSums sums;
  turns.Set(JobId{1}, {});
  CHECK(turns.Next() == std::nullopt);
  turns.Add(JobId{1}, sums, SumOf(1, 100));
  turns.Add(JobId{1}, sums, SumOf(2, 100));
  CHECK(turns.pending() == 2);
  for (const uint64_t round : {1, 2}) {
    REQUIRE(turns.Next() == JobId{1});
    const PendingSum sum = turns.Begin(JobId{1}, sums);
    CHECK(sum.id.round == Round{round});
    CHECK(ReadBytes(sum) == 200);
    turns.End(JobId{1}, sums);
  }
  CHECK(turns.Next() == std::nullopt);
  CHECK(turns.pending() == 0);
  CHECK(turns.ServedBytes(JobId{1}) >= 400);
}

TEST_CASE("SumTurns: jobs take turns by their weight", "[aggregator]") {
  SumTurns turns;
  std::map<JobId, JobSums> sums;
  std::map<JobId, int> done;
  for (const uint32_t job : {1, 2}) {
    turns.Set(JobId{job}, {.weight = job, .tenant_weight = job});
    for (uint64_t i = 0; i < 60; ++i) turns.Add(JobId{job}, sums[JobId{job}], SumOf(i, kMiB));
  }
  for (int i = 0; i < 60; ++i) {
    const JobId next = turns.Next().value();
    turns.Begin(next, sums[next]);
    turns.End(next, sums[next]);
    ++done[next];
  }
  CHECK(done[JobId{1}] >= 19);
  CHECK(done[JobId{1}] <= 21);
}

TEST_CASE("SumTurns: a sum that is dropped is not pending", "[aggregator]") {
  SumTurns turns;
  JobSums sums;
  turns.Set(JobId{1}, {});
  turns.Add(JobId{1}, sums, SumOf(1, 100));
  turns.Remove(JobId{1});
  CHECK(turns.Next() == std::nullopt);
  CHECK(turns.pending() == 1);
  turns.Drop(sums);
  CHECK(turns.pending() == 0);
  CHECK(sums.empty());
}

}  // namespace
}  // namespace talweg::aggregator
