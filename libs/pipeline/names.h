// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_NAMES_H_
#define TALWEG_LIBS_PIPELINE_NAMES_H_

#include <memory>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_tensor.h"
#include "libs/pipeline/effects.h"
#include "libs/view/view.h"

// How texts name open rounds, and those for whom a round waits.
namespace talweg::pipeline {

// "a, b, c", and how many more there are if an error cannot name them all.
std::string Listed(const std::vector<std::string>& names);

// "ranks 2, 3 of node 1": the node's ranks that take part in the tensor. "node 1" if `view` is
// null, or has none of them.
std::string RanksOfNode(const view::View* view, const TensorSpec& spec, NodeRank node);

// Returns whether ranks here wait for the tensor's open round.
bool IsAwaited(const AgentTensor& tensor);

// "round 3 of tensor 'a', round 1 of tensor 'b'": the open rounds for which ranks here wait. "" if
// there is none.
std::string AwaitedRounds(const std::vector<std::unique_ptr<AgentTensor>>& tensors);

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_NAMES_H_
