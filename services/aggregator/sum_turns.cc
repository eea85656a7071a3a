// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/sum_turns.h"

#include <cstring>
#include <span>
#include <utility>

#include "libs/base/bytes.h"

namespace talweg::aggregator {

PendingSum PendingSumOf(const aggregation::Sum& effect, const JobMemory& memory) {
  PendingSum sum = {.id = effect.id,
                    .dtype = effect.dtype,
                    .op = effect.op,
                    .encoding = effect.encoding,
                    .offset_bytes = effect.offset_bytes,
                    .length_bytes = effect.length_bytes,
                    .rank_count_total = effect.rank_count_total,
                    .result = memory.Of(effect.result)};
  sum.inputs.reserve(effect.inputs.size());
  sum.rank_counts.reserve(effect.inputs.size());
  sum.travel_bytes.reserve(effect.inputs.size());
  for (const aggregation::SumInput& input : effect.inputs) {
    sum.inputs.push_back(memory.Of(input.slots));
    sum.rank_counts.push_back(static_cast<float>(input.rank_count));
    sum.travel_bytes.push_back(input.travel_bytes);
  }
  return sum;
}

PendingSum PendingSumOf(const aggregation::CopyResult& effect, const JobMemory& memory) {
  PendingSum copy = {.id = effect.id,
                     .op = Op::kCopy,
                     .offset_bytes = effect.offset_bytes,
                     .length_bytes = effect.travel_bytes,
                     .result = memory.Of(effect.result)};
  copy.inputs.push_back(memory.Of(effect.source));
  return copy;
}

SumOutcome SumMaker::Make(const PendingSum& sum) {
  if (sum.length_bytes == 0) return {};
  SliceSum slice{.dtype = sum.dtype,
                 .op = sum.op,
                 .rank_counts = sum.rank_counts,
                 .rank_count_total = sum.rank_count_total,
                 .length_bytes = sum.length_bytes};
  if (sum.encoding != Encoding::kPlain) return MakeEncoded(sum, slice);
  slice.output = sum.result.bytes().subspan(sum.offset_bytes, sum.length_bytes).data();
  slice.inputs.reserve(sum.inputs.size());
  for (const SlotMemory& input : sum.inputs) {
    slice.inputs.push_back(input.bytes().subspan(sum.offset_bytes, sum.length_bytes).data());
  }
  if (sum.op == Op::kCopy) {
    std::memcpy(slice.output, slice.inputs.front(), sum.length_bytes);
  } else {
    summer_->Sum(slice);
  }
  return {.travel_bytes = sum.length_bytes};
}

SumOutcome SumMaker::MakeEncoded(const PendingSum& sum, SliceSum& slice) {
  // Kernels read and write whole cache lines best.
  const size_t stride_bytes = RoundUp(sum.length_bytes, kCacheLineBytes);
  const size_t needed_bytes = stride_bytes * (sum.inputs.size() + 1);
  if (scratch_.size() < needed_bytes) scratch_.resize(needed_bytes);
  const auto plain = [&](size_t place) {
    return std::span(scratch_).subspan(place * stride_bytes, sum.length_bytes);
  };
  for (size_t i = 0; i < sum.inputs.size(); ++i) {
    const std::span<const std::byte> encoded =
        sum.inputs[i].bytes().subspan(sum.offset_bytes, sum.travel_bytes[i]);
    if (!codec_->Decode(sum.encoding, encoded, plain(i))) return {.undecodable = i};
    slice.inputs.push_back(plain(i).data());
  }
  slice.output = plain(sum.inputs.size()).data();
  summer_->Sum(slice);
  const std::span<std::byte> result =
      sum.result.bytes().subspan(sum.offset_bytes, TravelBytesMax(sum.encoding, sum.length_bytes));
  const uint64_t seed = encoding::SeedOf(sum.id.round, sum.offset_bytes, encoding::kSumGiver);
  return {.travel_bytes = codec_->Encode(sum.encoding, seed, plain(sum.inputs.size()), result)};
}

void SumTurns::Add(JobId job, JobSums& sums, PendingSum sum) {
  if (sums.empty()) fair_share_.SetWaits(job, true);
  sums.push_back(std::move(sum));
  ++pending_;
}

PendingSum SumTurns::Begin(JobId job, JobSums& sums) {
  PendingSum sum = std::move(sums.front());
  fair_share_.Serve(job, ReadBytes(sum));  // Before the sum's effects are charged.
  sums.pop_front();
  --pending_;
  return sum;
}

void SumTurns::End(JobId job, const JobSums& sums) {
  if (sums.empty()) fair_share_.SetWaits(job, false);
}

void SumTurns::Drop(JobSums& sums) {
  pending_ -= sums.size();
  sums.clear();
}

}  // namespace talweg::aggregator
