// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_TENSOR_SPEC_RULES_H_
#define TALWEG_LIBS_PIPELINE_TENSOR_SPEC_RULES_H_

#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/view_state.h"

// What a rank may declare.
namespace talweg::pipeline {

// "f32[100] broadcast from rank 3 among ranks 0, 3, 4".
std::string Describe(const TensorSpec& spec);

// Returns the one form of equal specs: clears fields that do not matter, and fills in "all ranks".
TensorSpec Normalized(TensorSpec spec, const ViewState& views);

// Returns why `rank` cannot declare the normalized `spec`, or "".
std::string Problem(const TensorSpec& spec, LocalRank rank, const ViewState& views,
                    const AgentCoreConfig& config);

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_TENSOR_SPEC_RULES_H_
