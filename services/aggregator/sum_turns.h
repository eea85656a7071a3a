// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_SUM_TURNS_H_
#define TALWEG_SERVICES_AGGREGATOR_SUM_TURNS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "libs/aggregation/effects.h"
#include "libs/aggregation/fair_share.h"
#include "libs/base/dtype.h"
#include "libs/base/encoding.h"
#include "libs/base/ids.h"
#include "libs/encoding/codec.h"
#include "libs/view/job_quota.h"
#include "services/aggregator/job_memory.h"
#include "services/aggregator/slot_memory.h"
#include "services/aggregator/summer.h"

namespace talweg::aggregator {

// A sum, or a copy, that a core has asked for. Keeps the memory that it uses.
struct PendingSum {
  aggregation::SumId id;
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;  // kCopy: a copy.
  Encoding encoding = Encoding::kPlain;
  size_t offset_bytes = 0;           // In the slots.
  size_t length_bytes = 0;           // The data's; a copy's bytes that travel.
  std::vector<size_t> travel_bytes;  // By input: how many bytes it takes.
  std::vector<SlotMemory> inputs;    // Not valid if the tensor is empty.
  std::vector<float> rank_counts;
  uint32_t rank_count_total = 0;
  SlotMemory result;
};
using JobSums = std::deque<PendingSum>;  // In the order of the core's effects.

PendingSum PendingSumOf(const aggregation::Sum& effect, const JobMemory& memory);
PendingSum PendingSumOf(const aggregation::CopyResult& effect, const JobMemory& memory);

// What became of a sum.
struct SumOutcome {
  size_t travel_bytes = 0;            // That the result takes.
  std::optional<size_t> undecodable;  // The input whose bytes are no encoding.
};

// Makes sums, on its owner's thread.
class SumMaker {
 public:
  // Both outlive this object.
  SumMaker(const Summer* summer, const encoding::Codec* codec) : summer_(summer), codec_(codec) {}

  SumOutcome Make(const PendingSum& sum);

 private:
  // Inputs and output of `slice` are decoded, and lie in `scratch_`.
  SumOutcome MakeEncoded(const PendingSum& sum, SliceSum& slice);

  const Summer* const summer_;
  const encoding::Codec* const codec_;
  std::vector<std::byte> scratch_;
};

// Chooses the job whose sum is next, if sums of several jobs wait (docs/quotas.md). Each job keeps
// its own sums. The caller gives the sums of a job that is over to Drop. One owner thread.
class SumTurns {
 public:
  // A job begins, or its quota changes.
  void Set(JobId job, const view::JobQuota& quota) { fair_share_.Set(job, quota); }
  // The job is over, and none of its sums waits.
  void Remove(JobId job) { fair_share_.Remove(job); }

  void Add(JobId job, JobSums& sums, PendingSum sum);
  // Returns nullopt if no sum waits.
  std::optional<JobId> Next() const { return fair_share_.Next(); }
  // Returns the next sum of the job that Next has returned. Call End after the sum's effects are
  // performed.
  PendingSum Begin(JobId job, JobSums& sums);
  void End(JobId job, const JobSums& sums);
  // Drops sums that are not wanted any more.
  void Drop(JobSums& sums);

  // Other work for the job counts towards its share of this thread.
  void Charge(JobId job, uint64_t bytes) { fair_share_.Charge(job, bytes); }
  uint64_t ServedBytes(JobId job) const { return fair_share_.ServedBytes(job); }

  size_t pending() const { return pending_; }

 private:
  aggregation::FairShare fair_share_;
  size_t pending_ = 0;
};

// Returns how many bytes a sum reads.
inline uint64_t ReadBytes(const PendingSum& sum) { return sum.length_bytes * sum.inputs.size(); }

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SUM_TURNS_H_
