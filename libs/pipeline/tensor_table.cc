// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/tensor_table.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

namespace talweg::pipeline {

AgentTensor& TensorTable::Add(const Declaration& declaration, LocalRank declared_by) {
  auto tensor = std::make_unique<AgentTensor>();
  tensor->index = TensorIndex{static_cast<uint32_t>(tensors_.size())};
  tensor->key = TensorKey{Fingerprint64(declaration.spec.name)};
  tensor->spec = declaration.spec;
  tensor->wishes = declaration.wishes;
  tensor->declared_by = declared_by;
  tensor->told.resize(rank_count_);
  tensor->pushed.resize(rank_count_);
  index_by_key_[tensor->key] = tensor->index;
  return *tensors_.emplace_back(std::move(tensor));
}

AgentTensor* TensorTable::Find(TensorIndex index) const {
  return index.value() < tensors_.size() ? tensors_[index.value()].get() : nullptr;
}

AgentTensor* TensorTable::Find(TensorKey key) const {
  const auto it = index_by_key_.find(key);
  return it == index_by_key_.end() ? nullptr : &At(it->second);
}

bool TensorTable::AnyAwaitsDecision() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& tensor) { return tensor->awaits_decision(); });
}

void TensorTable::AddPush(AgentTensor& tensor, LocalRank rank) {
  tensor.pushed[rank.value()] = true;
  ++tensor.pushed_count;
  if (tensor.contributed()) {
    half_pushed_.erase(tensor.index);
  } else {
    half_pushed_.insert(tensor.index);
  }
}

void TensorTable::LeaveOutMissing(AgentTensor& tensor) {
  tensor.LeaveOutMissing();
  half_pushed_.erase(tensor.index);
}

void TensorTable::OpenNextRound(AgentTensor& tensor) {
  half_pushed_.erase(tensor.index);
  tensor.OpenNextRound();
}

void TensorTable::CheckInvariants() const {
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    tensor->CheckInvariants();
    TALWEG_CHECK(half_pushed_.contains(tensor->index) ==
                 (tensor->pushed_count > 0 && !tensor->contributed()));
  }
}

}  // namespace talweg::pipeline
