// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_KERNEL_COMBINER_H_
#define TALWEG_SERVICES_AGENT_KERNEL_COMBINER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "services/agent/agent_driver.h"
#include "services/agent/combine.h"

namespace talweg::agent {

// Combines with the kernels of libs/reduce.
class KernelCombiner final : public RankCombiner {
 public:
  void Combine(const pipeline::TensorSpec& spec, bool is_final, uint32_t rank_count,
               std::span<const std::byte* const> inputs,
               std::span<std::byte> output) const override {
    CombineRanks(spec.collective.dtype, spec.collective.op, is_final, rank_count, inputs, output);
  }
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_KERNEL_COMBINER_H_
