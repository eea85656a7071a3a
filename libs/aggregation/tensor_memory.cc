// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/tensor_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/counted.h"

namespace talweg::aggregation {

TensorMemory::TensorMemory(const AggregatorCoreConfig* config, const PresentView* view,
                           MemoryBudget* budget)
    : config_(config), view_(view), budget_(budget) {
  TALWEG_CHECK(budget_ != nullptr);
}

TensorMemory::~TensorMemory() {
  budget_->Release(place_.used_bytes());
  if (tenant_ != nullptr) tenant_->Give(place_.used_bytes(), place_.used_tensors());
}

void TensorMemory::SetQuota(const view::JobQuota& quota, std::shared_ptr<PlaceBudget> tenant) {
  quota_ = quota;
  place_.set_limit(quota.limit);
  if (tenant == tenant_) return;
  if (tenant_ != nullptr) tenant_->Give(place_.used_bytes(), place_.used_tensors());
  tenant_ = std::move(tenant);
  if (tenant_ != nullptr) tenant_->Take(place_.used_bytes(), place_.used_tensors());
}

std::string TensorMemory::RoomProblem(uint64_t needed_bytes) const {
  const auto problem = [&](const PlaceBudget& budget, const std::string& whose) -> std::string {
    const std::string remedy = ": raise it for that " + whose.substr(0, whose.find(' ')) +
                               " in the scheduler's quotas_file, or add aggregators";
    switch (budget.Judge(needed_bytes)) {
      case PlaceBudget::Verdict::kFits: return "";
      case PlaceBudget::Verdict::kTooManyBytes:
        return whose + " has " + FormatBytes(budget.used_bytes()) +
               " of the memory_bytes_max=" + FormatBytes(budget.limit().memory_bytes_max) +
               " that it may have there" + remedy;
      case PlaceBudget::Verdict::kTooManyTensors:
        return whose + " has " + std::to_string(budget.used_tensors()) +
               " of the tensors_max=" + std::to_string(budget.limit().tensors_max) +
               " tensors that it may have there" + remedy;
    }
    return "";
  };
  const std::string of_job = problem(place_, "job '" + config_->name + "'");
  if (!of_job.empty() || tenant_ == nullptr) return of_job;
  return problem(*tenant_, "tenant '" + quota_.tenant + "'");
}

std::string TensorMemory::Place(AggregatorTensor& tensor, Effects& out) {
  const bool lies_as_before = tensor.Place(view_->view(), *view_->self());
  const uint64_t slot_bytes = tensor.SlotBytes();
  const uint32_t member_count = tensor.participation.member_count();
  const uint64_t needed_bytes = slot_bytes * (member_count + 1);
  // The tensor had this much in an older view, so the present rules do not matter.
  const bool keeps = tensor.is_placed && needed_bytes <= tensor.reserved_bytes;
  Unreserve(tensor);
  const std::string problem = keeps ? "" : RoomProblem(needed_bytes);
  if (!problem.empty() || !budget_->Reserve(needed_bytes)) {
    return "tensor '" + tensor.agreed->name + "' needs " + FormatBytes(needed_bytes) +
           " at aggregator '" + config_->self_name + "' (" + FormatBytes(slot_bytes) +
           " for each of " + Counted(member_count, "member") + " and for the result), and " +
           (!problem.empty() ? problem
                             : FormatBytes(budget_->used_bytes()) + " of its " +
                                   FormatBytes(budget_->limit_bytes()) +
                                   " are taken: raise the aggregator's "
                                   "memory_bytes_max, or add aggregators");
  }
  tensor.reserved_bytes = needed_bytes;
  tensor.is_placed = true;
  place_.Take(needed_bytes, 1);
  if (tenant_ != nullptr) tenant_->Take(needed_bytes, 1);
  if (tensor.result != AllocationId{0} && !lies_as_before) {
    Release(tensor.result, out);
    tensor.result = AllocationId{0};
  }
  if (tensor.result == AllocationId{0} && slot_bytes > 0) {
    tensor.result_is_here = false;
    tensor.result = Allocate(tensor, std::nullopt, slot_bytes, out);
  }
  return "";
}

void TensorMemory::EnsureSlots(AggregatorTensor& tensor, MemberIndex member, Effects& out) {
  const view::MemberIdentity& id = view_->IdOf(member);
  const uint64_t bytes = tensor.SlotBytes();
  const auto found = tensor.slots.find(id);
  if (found != tensor.slots.end()) {
    if (found->second.bytes == bytes) return;
    // This connection is of the present epoch: nothing of an older epoch lands there any more.
    ReleaseSlots(tensor, id, out);
  }
  Slots& slots = tensor.slots[id];
  slots.bytes = bytes;
  if (bytes == 0) {
    slots.ref = wire::RemoteRef{};
    return;
  }
  slots.id = Allocate(tensor, id, bytes, out);
}

void TensorMemory::OnAllocated(AggregatorTensor& tensor, const Use& use, wire::RemoteRef ref) {
  if (use.member) {
    tensor.slots.at(*use.member).ref = ref;
  } else {
    tensor.result_is_here = true;
  }
}

AllocationId TensorMemory::Allocate(const AggregatorTensor& tensor,
                                    const std::optional<view::MemberIdentity>& member,
                                    uint64_t bytes, Effects& out) {
  const AllocationId id{++last_allocation_};
  uses_[id] = {.tensor = tensor.key, .member = member};
  out.push_back(AllocateMemory{.id = id, .tensor = tensor.key, .member = member, .bytes = bytes});
  return id;
}

void TensorMemory::Release(AllocationId id, Effects& out) {
  out.push_back(ReleaseMemory{id});
  uses_.erase(id);
}

void TensorMemory::ReleaseSlots(AggregatorTensor& tensor, const view::MemberIdentity& member,
                                Effects& out) {
  const auto found = tensor.slots.find(member);
  if (found == tensor.slots.end()) return;
  if (found->second.id != AllocationId{0}) Release(found->second.id, out);
  tensor.slots.erase(found);
}

void TensorMemory::ReleaseDeparted(AggregatorTensor& tensor, Effects& out) {
  if (!view_->self()) return ReleaseAll(tensor, out);
  std::vector<view::MemberIdentity> departed;
  for (const auto& [member, slots] : tensor.slots) {
    if (!view_->IndexOf(member)) departed.push_back(member);
  }
  for (const view::MemberIdentity& member : departed) {
    ReleaseSlots(tensor, member, out);
  }
}

void TensorMemory::ReleaseUnused(AggregatorTensor& tensor, Effects& out) {
  const bool declared = std::any_of(tensor.declarations.begin(), tensor.declarations.end(),
                                    [](const Declaration& d) { return d.declared; });
  if (!declared || tensor.poison) return ReleaseAll(tensor, out);
  std::vector<view::MemberIdentity> unused;
  for (const auto& [member, slots] : tensor.slots) {
    const std::optional<MemberIndex> index = view_->IndexOf(member);
    if (!index || !tensor.DeclaredBy(*index)) unused.push_back(member);
  }
  for (const view::MemberIdentity& member : unused) ReleaseSlots(tensor, member, out);
}

void TensorMemory::ReleaseAll(AggregatorTensor& tensor, Effects& out) {
  while (!tensor.slots.empty()) {
    const view::MemberIdentity member = tensor.slots.begin()->first;
    ReleaseSlots(tensor, member, out);
  }
  if (tensor.result != AllocationId{0}) {
    Release(tensor.result, out);
    tensor.result = AllocationId{0};
    for (LocalSlice& slice : tensor.local) slice.writes_under_way = 0;
  }
  tensor.slice_count = 0;  // A later declaration places the tensor again.
  Unreserve(tensor);
}

void TensorMemory::Unreserve(AggregatorTensor& tensor) {
  budget_->Release(tensor.reserved_bytes);
  const uint64_t tensors = tensor.is_placed ? 1 : 0;
  place_.Give(tensor.reserved_bytes, tensors);
  if (tenant_ != nullptr) tenant_->Give(tensor.reserved_bytes, tensors);
  tensor.reserved_bytes = 0;
  tensor.is_placed = false;
}

const TensorMemory::Use* TensorMemory::Find(AllocationId id) const {
  const auto found = uses_.find(id);
  return found == uses_.end() ? nullptr : &found->second;
}

}  // namespace talweg::aggregation
