// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_TENSOR_TABLE_H_
#define TALWEG_LIBS_PIPELINE_TENSOR_TABLE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_tensor.h"
#include "libs/pipeline/effects.h"

namespace talweg::pipeline {

// The tensors that ranks of this node have declared, in order of first declaration, and those of
// them that only some ranks have pushed.
class TensorTable {
 public:
  explicit TensorTable(uint32_t rank_count) : rank_count_(rank_count) {}

  // The table must not have a tensor of this name.
  AgentTensor& Add(const Declaration& declaration, LocalRank declared_by);

  // Return null if there is no such tensor.
  AgentTensor* Find(TensorIndex index) const;
  AgentTensor* Find(TensorKey key) const;
  AgentTensor& At(TensorIndex index) const { return *tensors_[index.value()]; }
  AgentTensor& At(TensorKey key) const { return At(index_by_key_.at(key)); }
  const std::vector<std::unique_ptr<AgentTensor>>& all() const { return tensors_; }
  // Tensors that some local ranks have pushed, but not all.
  const std::set<TensorIndex>& half_pushed() const { return half_pushed_; }
  bool AnyAwaitsDecision() const;

  // `rank`, which is in the tensor's group, pushes the open round for the first time.
  void AddPush(AgentTensor& tensor, LocalRank rank);
  // The open round goes on without the ranks that have not pushed it.
  void LeaveOutMissing(AgentTensor& tensor);
  void OpenNextRound(AgentTensor& tensor);

  void CheckInvariants() const;

 private:
  const uint32_t rank_count_;
  std::vector<std::unique_ptr<AgentTensor>> tensors_;
  std::unordered_map<TensorKey, TensorIndex> index_by_key_;  // For look-ups only.
  std::set<TensorIndex> half_pushed_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_TENSOR_TABLE_H_
