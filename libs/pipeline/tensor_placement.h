// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_TENSOR_PLACEMENT_H_
#define TALWEG_LIBS_PIPELINE_TENSOR_PLACEMENT_H_

#include <string>

#include "libs/pipeline/agent_tensor.h"
#include "libs/pipeline/view_state.h"
#include "libs/view/view.h"

// Where a tensor's slices are summed in the present view, and whose ranks take part in it.
namespace talweg::pipeline {

// Whose ranks take part: by the view that the ranks' numbers are of, once and for all. Why there
// are no such ranks, or "".
std::string ResolveRanks(const ViewState& views, AgentTensor& tensor);

// Cuts the tensor as the present view does; all its slices are idle, and no owner has agreed. Why
// it cannot be used, or "". Then it still has its primary owner, so that others who declare the
// name hear of it there.
std::string PlaceTensor(const ViewState& views, AgentTensor& tensor);

// The ranks here follow `numbers`: what they call the ranks of a tensor that is resolved changes.
void Renumber(const view::View& numbers, AgentTensor& tensor);

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_TENSOR_PLACEMENT_H_
