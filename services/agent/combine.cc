// SPDX-License-Identifier: Apache-2.0
#include "services/agent/combine.h"

#include <cstdint>
#include <cstring>

namespace talweg::agent {

reduce::ReduceSpec RankHop(DType dtype, Op op, bool is_final, size_t rank_count) {
  const auto ranks = static_cast<uint32_t>(rank_count);
  return is_final ? reduce::OnlyHop(dtype, op, ranks) : reduce::FirstHop(dtype, op, ranks);
}

void CombineRanks(DType dtype, Op op, bool is_final, size_t rank_count,
                  std::span<const std::byte* const> inputs, std::span<std::byte> output) {
  if (op == Op::kCopy) {
    std::memcpy(output.data(), inputs.front(), output.size());
    return;
  }
  reduce::Reduce(RankHop(dtype, op, is_final, rank_count), inputs, output.data(),
                 output.size() / DTypeSize(dtype));
}

}  // namespace talweg::agent
