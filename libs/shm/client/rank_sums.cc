// SPDX-License-Identifier: Apache-2.0
// Tensors that the ranks sum (docs/shared_memory.md, "Ranks that sum"): what a rank reads of its
// neighbours' memory.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "libs/reduce/reduce.h"
#include "libs/shm/client/client.h"
#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {
namespace {

bool Overlap(const std::byte* a, const std::byte* b, uint64_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(a);
  const auto to = reinterpret_cast<uintptr_t>(b);
  return from < to + bytes && to < from + bytes;
}

}  // namespace

bool Client::FindContributions(const Tensor& tensor, uint64_t round,
                               const std::byte** inputs) const {
  const uint64_t offset = tensor.offset + (round & 1) * tensor.stride;
  for (uint32_t i = 0; i < identity_.local_size; ++i) {
    if (i == identity_.local_rank) {
      inputs[i] = tensor.ContributionOf(round);
      continue;
    }
    const PeerPart& part = peers_[i * kPartsMax + tensor.part];
    const std::byte* base = part.base.load(std::memory_order_acquire);
    // One that is too short for this tensor is an agent's mistake, and never ready.
    if (base == nullptr || part.bytes < tensor.bytes || offset > part.bytes - tensor.bytes) {
      return false;
    }
    inputs[i] = base + offset;
  }
  return true;
}

bool Client::HasContributions(const Tensor& tensor) const {
  const std::byte* inputs[kSummingRanksMax];
  return FindContributions(tensor, 0, inputs) && FindContributions(tensor, 1, inputs);
}

RankStatus Client::SumContributions(const Tensor& tensor, uint64_t round, std::byte* out,
                                    ErrorText& error) const {
  const std::byte* inputs[kSummingRanksMax];
  const uint32_t count = identity_.local_size;
  const DType dtype = tensor.dtype.load(std::memory_order_relaxed);
  const Op op = tensor.op.load(std::memory_order_relaxed);
  const uint32_t root = tensor.root.load(std::memory_order_relaxed);
  if (!FindContributions(tensor, round, inputs) ||
      (op == Op::kBroadcast ? root >= count : !reduce::IsReduction(dtype, op))) {
    return error.Fail(RankStatus::kInternal, "tensor '%s': it cannot be summed here",
                      NameOf(tensor));
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (!Overlap(inputs[i], out, tensor.bytes)) continue;
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': the result of round %llu cannot be written over its "
                      "contribution, which other ranks are reading; give another buffer",
                      NameOf(tensor), static_cast<unsigned long long>(round));
  }
  if (op == Op::kBroadcast) {
    CopyOut(out, inputs[root], tensor.bytes);
    return RankStatus::kOk;
  }
  reduce::ReduceSpec spec = reduce::OnlyHop(dtype, op, count);
  spec.stores =
      tensor.bytes >= kStreamOutBytesMin ? reduce::Stores::kStreaming : reduce::Stores::kCached;
  reduce::Reduce(spec, {inputs, count}, out, tensor.bytes / DTypeSize(dtype));
  return RankStatus::kOk;
}

RankStatus Client::SumInPlace(Tensor& tensor, uint64_t round, const void** data, ErrorText& error) {
  const MutexLock lock(result_mutex_);
  if (!tensor.own_result.valid()) {
    tensor.own_result = Mapping::MapPrivate(tensor.bytes);
    if (!tensor.own_result.valid()) {
      return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory for its result: %s",
                        NameOf(tensor), std::strerror(errno));
    }
  }
  if (tensor.own_result_round != round) {
    const RankStatus status = SumContributions(tensor, round, tensor.own_result.data(), error);
    if (status != RankStatus::kOk) return status;
    tensor.own_result_round = round;
  }
  *data = tensor.own_result.data();
  return RankStatus::kOk;
}

}  // namespace talweg::shm
