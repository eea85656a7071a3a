// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_DECLARATIONS_H_
#define TALWEG_LIBS_PIPELINE_DECLARATIONS_H_

#include <cstdint>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/recovery.h"
#include "libs/pipeline/rounds.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/view_state.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// How a tensor is declared: the ranks of this node agree on it first, then its owners do
// (docs/protocol.md, section 4).
//
//   kAllocating --memory is there--> kDeclaring --all owners agreed--> kOpen
//                                        ^                               |
//                                        +-- a view, or a broken owner --+
//   any --disagreement, or no room--> kFailed
class Declarations {
 public:
  // All outlive this.
  Declarations(const AgentCoreConfig* config, ViewState* views, TensorTable* tensors,
               OwnerLinks* links, Rounds* rounds, Recovery* recovery, Failures* failures,
               AgentCoreCounters* counters)
      : config_(config),
        views_(views),
        tensors_(tensors),
        links_(links),
        rounds_(rounds),
        recovery_(recovery),
        failures_(failures),
        counters_(counters) {}

  // --- From ranks and the caller.

  void OnRankDeclare(LocalRank rank, uint32_t request, const Declaration& declaration,
                     Effects& out);
  void OnAllocated(TensorIndex index, const std::string& text, Effects& out);
  // From now on the ranks here use the numbers of `view`.
  void Follow(const view::View& view, Effects& out);

  // --- To owners, and from them.

  // If the owner is ready: declares the tensors that are due, or every tensor.
  void SendDue(const Owner& owner, Effects& out);
  void SendAll(const Owner& owner, Effects& out);
  void OnDeclared(AggregatorIndex from, const wire::Declared& entry, Effects& out);
  // An owner says that the tensor has failed.
  void OnFailed(const wire::Failed& entry, Effects& out);
  // The tensor opens if all owners have agreed.
  void OpenIfAgreed(AgentTensor& tensor, Effects& out);

 private:
  void Add(LocalRank rank, uint32_t request, const Declaration& declaration, Effects& out);
  // Two ranks of this node declare the tensor differently.
  void Poison(AgentTensor& tensor, LocalRank rank, const TensorSpec& spec, Effects& out);
  wire::Declare EntryOf(const AgentTensor& tensor) const;

  const AgentCoreConfig* const config_;
  ViewState* const views_;
  TensorTable* const tensors_;
  OwnerLinks* const links_;
  Rounds* const rounds_;
  Recovery* const recovery_;
  Failures* const failures_;
  AgentCoreCounters* const counters_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_DECLARATIONS_H_
