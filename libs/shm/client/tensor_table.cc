// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/tensor_table.h"

#include <cstdlib>
#include <new>

#include "libs/shm/layout/arrivals.h"

namespace talweg::shm {

TensorTable::~TensorTable() {
  ForEach([](RankTensor& tensor) {
    std::free(tensor.name.load());
    tensor.own_result.Reset();
    std::free(&tensor);
  });
  std::free(tensors_);
}

bool TensorTable::Begin(uint32_t max) {
  max_ = max;
  tensors_ = static_cast<std::atomic<RankTensor*>*>(std::calloc(max, sizeof(*tensors_)));
  return tensors_ != nullptr;
}

RankTensor* TensorTable::Find(uint32_t tensor) const {
  return tensor < max_ ? tensors_[tensor].load(std::memory_order_acquire) : nullptr;
}

RankStatus TensorTable::FailNoTensor(uint32_t tensor, ErrorText& error) {
  return error.Fail(RankStatus::kInvalidArgument,
                    "%u is not a tensor of this client: use what talweg_declare gave", tensor);
}

const char* TensorTable::Adopt(const Declared& declared, const Declare& declare) {
  const bool ranks_sum = declared.summed_by != SummedBy::kAgent;
  const bool is_group = IsGroup(declare);
  const Collective collective = declare.collective();
  const uint32_t rank_count = is_group ? declare.ranks.size() : identity_.size;
  if (ranks_sum && identity_.local_size > kSummingRanksMax) {
    return "more ranks than can sum";
  }
  if (ranks_sum && (is_group || identity_.size != identity_.local_size)) {
    return "some of the job's ranks cannot sum for all";
  }
  if (declared.tensor >= max_) return "the tensor's index is past the limit";
  if (!BufferShape::Fits(collective, rank_count)) return "the tensor is too large";
  const BufferShape buffer = BufferShape::Of(collective, rank_count);
  if (declared.tensor_bytes != buffer.data_bytes) return "the tensor has another length";
  const bool has_tables = link_.minor() >= kCollectivesMinor;
  const uint64_t buffer_bytes = has_tables ? buffer.total_bytes() : buffer.data_bytes;
  if (RankTensor* known = tensors_[declared.tensor].load(std::memory_order_relaxed)) {
    if (known->collective != collective) return "the tensor is another";
    // Declared on a GPU first, and now in host memory: its thread has not pushed the tensor yet.
    if (known->contribution == nullptr && declared.contribution.segment != 0) {
      known->contribution =
          memory_.Locate(declared.contribution, SegmentKind::kContribution, buffer_bytes);
      if (known->contribution == nullptr) return "a contribution lies outside of its segment";
    }
    return nullptr;
  }
  // No contribution: the tensor is pushed from a GPU.
  const bool has_contribution = declared.contribution.segment != 0;
  const bool in_place = declared.summed_by == SummedBy::kRanksInPlace;
  const RankSumShape shape =
      has_contribution && ranks_sum
          ? RankSumShape::Of(buffer, identity_.local_size, in_place, link_.minor())
          : RankSumShape{};
  std::byte* contribution = has_contribution
                                ? memory_.Locate(declared.contribution, SegmentKind::kContribution,
                                                 ranks_sum ? shape.bytes() : buffer_bytes)
                                : nullptr;
  if (has_contribution && contribution == nullptr) {
    return "a contribution lies outside of its segment";
  }
  std::byte* results[2] = {};
  const bool one_place = has_contribution && !ranks_sum &&
                         declared.result[0] == declared.contribution &&
                         declared.result[1] == declared.contribution;
  for (int parity = 0; parity < 2 && !ranks_sum; ++parity) {
    results[parity] =
        one_place ? contribution
                  : memory_.Locate(declared.result[parity], SegmentKind::kResult, buffer_bytes);
    if (results[parity] == nullptr) return "a result lies outside of its segment";
  }
  const std::byte* arrivals = nullptr;
  if (declared.arrivals.segment != 0) {
    arrivals = memory_.Locate(declared.arrivals, SegmentKind::kResult,
                              ArrivalsBytes(declared.tensor_bytes));
    if (arrivals == nullptr) return "a tensor's arrivals lie outside of their segment";
  }
  void* memory = std::calloc(1, sizeof(RankTensor));
  if (memory == nullptr) return "no memory for the tensor";
  RankTensor* tensor = new (memory) RankTensor;
  const auto place_of = [&](uint32_t rank) { return is_group ? declare.ranks.Find(rank) : rank; };
  tensor->index = declared.tensor;
  tensor->collective = collective;
  tensor->rank_count = rank_count;
  tensor->rank = place_of(identity_.number);
  tensor->root = collective.has_root() ? place_of(declare.root_rank) : 0;
  tensor->buffer = buffer;
  tensor->has_tables = has_tables && buffer.has_lengths();
  tensor->gives =
      Parts::Of(collective.gives, tensor->rank, rank_count, tensor->root, buffer.part_count);
  tensor->gets =
      Parts::Of(collective.gets, tensor->rank, rank_count, tensor->root, buffer.part_count);
  tensor->bytes = buffer.data_bytes;
  tensor->contribution = contribution;
  tensor->result[0] = results[0];
  tensor->result[1] = results[1];
  tensor->arrivals = arrivals;
  tensor->pushed = tensor->taken = declared.completed_round;
  tensor->ranks_sum = ranks_sum;
  tensor->one_place = one_place;
  tensor->part = declared.part;
  tensor->offset = declared.contribution.offset;
  tensor->shape = shape;
  if (in_place) memory_.MapWritable(declared.part);
  statistics_.tensors.fetch_add(1, std::memory_order_relaxed);
  tensors_[declared.tensor].store(tensor, std::memory_order_release);
  return nullptr;
}

}  // namespace talweg::shm
