// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_TENSOR_PLACEMENT_H_
#define TALWEG_LIBS_PIPELINE_TENSOR_PLACEMENT_H_

#include <string>

#include "libs/pipeline/agent_tensor.h"
#include "libs/pipeline/view_state.h"
#include "libs/view/view.h"

// Where a tensor's slices are summed in the present view, and whose ranks take part in it.
namespace talweg::pipeline {

// Finds the group and the root by the numbers that the ranks use, once and for all. Returns "", or
// which rank does not exist.
std::string ResolveRanks(const ViewState& views, AgentTensor& tensor);

// Cuts the tensor into slices as the present view does. All its slices are idle then, and no owner
// has agreed. Returns "", or why the tensor cannot be used. It then still has its primary owner,
// from which others who declare the name hear of the failure.
std::string PlaceTensor(const ViewState& views, AgentTensor& tensor);

// The ranks here follow `numbers`: changes the rank numbers in the spec of a resolved tensor.
void Renumber(const view::View& numbers, AgentTensor& tensor);

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_TENSOR_PLACEMENT_H_
