// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "libs/aggregation/aggregator_core.h"
#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

// Declarations: who agrees with whom, and where contributions go.
namespace talweg::aggregation {
namespace {

wire::DeclaredStatus StatusOf(wire::FailedCode code) {
  switch (code) {
    case wire::FailedCode::kOverBudget: return wire::DeclaredStatus::kOverBudget;
    case wire::FailedCode::kAborted: return wire::DeclaredStatus::kAborted;
    case wire::FailedCode::kInvalid: return wire::DeclaredStatus::kInvalid;
    case wire::FailedCode::kMismatch:
    case wire::FailedCode::kJobFailed: break;
  }
  return wire::DeclaredStatus::kMismatch;
}

Round HeldBy(const AggregatorTensor& tensor) {
  // Where not all take part in each slice, those here may be summed without the one that asks. No
  // round is over without it.
  if (tensor.local.empty() || tensor.agreed->collective.gives == Share::kRow) return tensor.held;
  Round summed = tensor.local.front().round.standing().round;
  for (const LocalSlice& slice : tensor.local) {
    summed = std::min(summed, slice.round.standing().round);
  }
  return std::max(tensor.held, summed);
}

}  // namespace

void AggregatorCore::OnDeclare(ConnectionId connection, MemberIndex member,
                               const wire::Declare& entry, Effects& out) {
  const std::string problem = DeclareProblem(entry, view_);
  if (!problem.empty()) ++counters_.declares_invalid;
  if (entry.name.empty() || entry.key != TensorKey{Fingerprint64(entry.name)}) {
    // There is no tensor that this could be about.
    SendEntry(
        connection,
        wire::Declared{.key = entry.key, .status = wire::DeclaredStatus::kInvalid, .text = problem},
        out);
    return;
  }
  if (tensors_.size() >= config_.tensors_max && tensors_.count(entry.key) == 0) {
    ++counters_.declares_over_budget;
    SendEntry(connection,
              wire::Declared{.key = entry.key,
                             .status = wire::DeclaredStatus::kOverBudget,
                             .text = "tensor '" + entry.name + "': job '" + config_.name +
                                     "' has declared " + std::to_string(config_.tensors_max) +
                                     " tensors already, which is the most"},
              out);
    return;
  }
  AggregatorTensor& tensor = tensors_[entry.key];
  tensor.key = entry.key;
  if (tensor.declarations.empty()) tensor.declarations.resize(members_.size());
  Declaration& declaration = tensor.declarations[member.value()];
  declaration = {.declared = true, .answered = false, .result = entry.result};
  if (tensor.poison) {
    AnswerPoisoned(tensor, member, StatusOf(tensor.poison->code), out);
    return;
  }

  const Agreement said = AgreementOf(entry, view_.epoch);
  const std::string disagreement = tensor.agreed ? Disagreement(*tensor.agreed, said) : "";
  if (!problem.empty() || !disagreement.empty()) {
    PoisonTensor(tensor, wire::FailedCode::kMismatch, disagreement.empty() ? problem : disagreement,
                 out);
    return;
  }
  if (!tensor.agreed) tensor.agreed = said;
  tensor.agreed->root_rank = said.root_rank;  // Ranks are counted anew in every view.
  tensor.agreed->root_epoch = view_.epoch;
  if (!tensor.Placed() && !PlaceTensor(tensor, out)) return;
  if (!tensor.participation.Includes(member)) {
    declaration = {};
    SendEntry(connection,
              wire::Declared{.key = entry.key,
                             .status = wire::DeclaredStatus::kInvalid,
                             .text = "tensor '" + entry.name + "': " + MemberText(member) +
                                     " has no rank in it, " + Describe(*tensor.agreed)},
              out);
    return;
  }
  EnsureMemory(tensor, member, out);
  AnswerIfReady(tensor, member, out);
}

// Only who had been told of it knows, and it may be told by nobody else again: its owner may be
// new.
void AggregatorCore::OnFailed(MemberIndex member, const wire::Failed& entry, Effects& out) {
  const auto found = tensors_.find(entry.key);
  if (found == tensors_.end() || !found->second.DeclaredBy(member) ||
      entry.code == wire::FailedCode::kJobFailed || entry.text.empty()) {
    ++counters_.frames_unexpected;
    return;
  }
  PoisonTensor(found->second, entry.code, entry.text, out);
}

std::string AggregatorCore::RoomProblem(uint64_t needed_bytes) const {
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
  const std::string of_job = problem(place_, "job '" + config_.name + "'");
  if (!of_job.empty() || tenant_ == nullptr) return of_job;
  return problem(*tenant_, "tenant '" + quota_.tenant + "'");
}

bool AggregatorCore::PlaceTensor(AggregatorTensor& tensor, Effects& out) {
  const bool lies_as_before = tensor.Place(view_, *self_);
  const uint64_t slot_bytes = tensor.SlotBytes();
  const uint32_t member_count = tensor.participation.member_count();
  const uint64_t needed_bytes = slot_bytes * (member_count + 1);
  // It had as much in an older view, whatever the rules are now.
  const bool keeps = tensor.is_placed && needed_bytes <= tensor.reserved_bytes;
  Unreserve(tensor);
  const std::string problem = keeps ? "" : RoomProblem(needed_bytes);
  if (!problem.empty() || !budget_->Reserve(needed_bytes)) {
    ++counters_.declares_over_budget;
    PoisonTensor(tensor, wire::FailedCode::kOverBudget,
                 "tensor '" + tensor.agreed->name + "' needs " + FormatBytes(needed_bytes) +
                     " at aggregator '" + config_.self_name + "' (" + FormatBytes(slot_bytes) +
                     " for each of " + std::to_string(member_count) +
                     " members and for the result), and " +
                     (!problem.empty() ? problem
                                       : FormatBytes(budget_->used_bytes()) + " of its " +
                                             FormatBytes(budget_->limit_bytes()) +
                                             " are taken: raise the aggregator's "
                                             "memory_bytes_max, or add aggregators"),
                 out);
    return false;
  }
  tensor.reserved_bytes = needed_bytes;
  tensor.is_placed = true;
  place_.Take(needed_bytes, 1);
  if (tenant_ != nullptr) tenant_->Take(needed_bytes, 1);
  if (tensor.result != AllocationId{0} && !lies_as_before) {
    out.push_back(ReleaseMemory{tensor.result});
    allocations_.erase(tensor.result);
    tensor.result = AllocationId{0};
  }
  if (tensor.result == AllocationId{0} && slot_bytes > 0) {
    tensor.result = AllocationId{++last_allocation_};
    allocations_[tensor.result] = {.tensor = tensor.key};
    out.push_back(AllocateMemory{
        .id = tensor.result, .tensor = tensor.key, .member = std::nullopt, .bytes = slot_bytes});
  }
  return true;
}

void AggregatorCore::EnsureMemory(AggregatorTensor& tensor, MemberIndex member, Effects& out) {
  const view::MemberIdentity& id = view_.members[member.value()].id;
  const uint64_t bytes = tensor.SlotBytes();
  const auto found = tensor.slots.find(id);
  if (found != tensor.slots.end()) {
    if (found->second.bytes == bytes) return;
    // This connection is of the present epoch: nothing of an older one lands there any more.
    ReleaseSlots(tensor, id, out);
  }
  Slots& slots = tensor.slots[id];
  slots.bytes = bytes;
  if (bytes == 0) {
    slots.ref = wire::RemoteRef{};
    return;
  }
  slots.id = AllocationId{++last_allocation_};
  allocations_[slots.id] = {.tensor = tensor.key, .member = id};
  out.push_back(AllocateMemory{.id = slots.id, .tensor = tensor.key, .member = id, .bytes = bytes});
}

void AggregatorCore::AnswerIfReady(AggregatorTensor& tensor, MemberIndex member, Effects& out) {
  if (!reports_complete_ || tensor.poison || !tensor.DeclaredBy(member)) return;
  Declaration& declaration = tensor.declarations[member.value()];
  const std::optional<ConnectionId>& connection = members_[member.value()].connection;
  const auto slots = tensor.slots.find(view_.members[member.value()].id);
  if (declaration.answered || !connection || slots == tensor.slots.end() || !slots->second.ref) {
    return;
  }
  declaration.answered = true;
  SendEntry(*connection,
            wire::Declared{.key = tensor.key,
                           .status = wire::DeclaredStatus::kOk,
                           .slot = *slots->second.ref,
                           .held = HeldBy(tensor)},
            out);
}

void AggregatorCore::AnswerPoisoned(AggregatorTensor& tensor, MemberIndex member,
                                    wire::DeclaredStatus status, Effects& out) {
  Declaration& declaration = tensor.declarations[member.value()];
  const std::optional<ConnectionId>& connection = members_[member.value()].connection;
  if (!connection || !declaration.declared) return;
  if (!declaration.answered) {
    declaration.answered = true;
    SendEntry(*connection,
              wire::Declared{.key = tensor.key, .status = status, .text = tensor.poison->text},
              out);
  }
  SendEntry(
      *connection,
      wire::Failed{.key = tensor.key, .code = tensor.poison->code, .text = tensor.poison->text},
      out);
}

void AggregatorCore::PoisonTensor(AggregatorTensor& tensor, wire::FailedCode code, std::string text,
                                  Effects& out) {
  if (tensor.poison) return;
  ++counters_.tensors_poisoned;
  wire::CutText(text);
  tensor.poison = Poison{code, std::move(text)};
  // Its memory stays until the next view: contributions may be under way to it.
  for (uint32_t i = 0; i < tensor.declarations.size(); ++i) {
    AnswerPoisoned(tensor, MemberIndex{i}, StatusOf(code), out);
  }
}

void AggregatorCore::ReleaseSlots(AggregatorTensor& tensor, const view::MemberIdentity& member,
                                  Effects& out) {
  const auto found = tensor.slots.find(member);
  if (found == tensor.slots.end()) return;
  if (found->second.id != AllocationId{0}) {
    out.push_back(ReleaseMemory{found->second.id});
    allocations_.erase(found->second.id);
  }
  tensor.slots.erase(found);
}

void AggregatorCore::ReleaseAll(AggregatorTensor& tensor, Effects& out) {
  while (!tensor.slots.empty()) {
    const view::MemberIdentity member = tensor.slots.begin()->first;
    ReleaseSlots(tensor, member, out);
  }
  if (tensor.result != AllocationId{0}) {
    out.push_back(ReleaseMemory{tensor.result});
    allocations_.erase(tensor.result);
    tensor.result = AllocationId{0};
    for (LocalSlice& slice : tensor.local) slice.writes_under_way = 0;
  }
  tensor.slice_count = 0;  // Placed anew when somebody declares it.
  Unreserve(tensor);
}

void AggregatorCore::ReleaseUndeclared(Effects& out) {
  for (auto& [key, tensor] : tensors_) {
    const bool declared = std::any_of(tensor.declarations.begin(), tensor.declarations.end(),
                                      [](const Declaration& d) { return d.declared; });
    if (!declared || tensor.poison) {
      ReleaseAll(tensor, out);
      continue;
    }
    std::vector<view::MemberIdentity> unused;
    for (const auto& [member, slots] : tensor.slots) {
      const std::optional<MemberIndex> index = view_.IndexOf(member);
      if (!index || !tensor.DeclaredBy(*index)) unused.push_back(member);
    }
    for (const view::MemberIdentity& member : unused) ReleaseSlots(tensor, member, out);
  }
}

void AggregatorCore::Unreserve(AggregatorTensor& tensor) {
  budget_->Release(tensor.reserved_bytes);
  const uint64_t tensors = tensor.is_placed ? 1 : 0;
  place_.Give(tensor.reserved_bytes, tensors);
  if (tenant_ != nullptr) tenant_->Give(tensor.reserved_bytes, tensors);
  tensor.reserved_bytes = 0;
  tensor.is_placed = false;
}

void AggregatorCore::OnAllocated(AllocationId id, wire::RemoteRef ref, Effects& out) {
  const auto use = allocations_.find(id);
  if (use == allocations_.end() || !use->second.member) return;  // Released, or a result.
  AggregatorTensor& tensor = tensors_.at(use->second.tensor);
  tensor.slots.at(*use->second.member).ref = ref;
  const std::optional<MemberIndex> member = view_.IndexOf(*use->second.member);
  if (member) AnswerIfReady(tensor, *member, out);
}

void AggregatorCore::OnAllocationRefused(AllocationId id, const std::string& text, Effects& out) {
  const auto use = allocations_.find(id);
  if (use == allocations_.end()) return;
  AggregatorTensor& tensor = tensors_.at(use->second.tensor);
  ++counters_.declares_over_budget;
  PoisonTensor(tensor, wire::FailedCode::kOverBudget,
               "tensor '" + tensor.agreed->name + "': aggregator '" + config_.self_name +
                   "' has no memory for it: " + text,
               out);
}

}  // namespace talweg::aggregation
