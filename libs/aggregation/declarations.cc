// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/declarations.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/counted.h"
#include "libs/base/fingerprint.h"

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

// Why a tensor has failed, if longer texts have no room.
constexpr size_t kShortTextBytes = 256;

// Ends the text at the end of a UTF-8 character.
void Shorten(std::string& text) {
  size_t end = std::min(text.size(), kShortTextBytes);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
    --end;
  }
  text.resize(end);
}

// What a tensor's record takes that its declaration makes as long as it likes.
uint64_t RecordBytes(const wire::Declare& entry) {
  return entry.name.size() + entry.group.size() * sizeof(view::Place);
}

Round HeldBy(const AggregatorTensor& tensor) {
  // If not all members take part in each slice, the slices here may be summed without this member.
  // No round is over without it.
  if (tensor.local.empty() || tensor.agreed->collective.is_pairwise()) return tensor.held;
  Round summed = tensor.local.front().round.standing().round;
  for (const LocalSlice& slice : tensor.local) {
    summed = std::min(summed, slice.round.standing().round);
  }
  return std::max(tensor.held, summed);
}

}  // namespace

void Declarations::OnView() {
  answers_ = false;
  // Drops open rounds: their members hold the contributions.
  for (auto& [key, tensor] : *tensors_) tensor.LeaveEpoch();
}

void Declarations::AnswerAll(Effects& out) {
  answers_ = true;
  for (auto& [key, tensor] : *tensors_) memory_->ReleaseUnused(tensor, out);
  for (auto& [key, tensor] : *tensors_) AnswerMembers(tensor, out);
}

void Declarations::AnswerMembers(AggregatorTensor& tensor, Effects& out) {
  for (uint32_t i = 0; i < view_->member_count(); ++i) Answer(tensor, MemberIndex{i}, out);
}

bool Declarations::IsRefused(ConnectionId connection, const wire::Declare& entry, Effects& out) {
  if (tensors_->count(entry.key) != 0) return false;
  std::string text;
  if (tensors_->size() >= config_->tensors_max) {
    text =
        "' has declared " + Counted(config_->tensors_max, "tensor") + " already, which is the most";
  } else if (record_bytes_ + RecordBytes(entry) > config_->record_bytes_max) {
    text = "' has tensors whose names and groups take " + FormatBytes(record_bytes_) +
           " at aggregator '" + config_->self_name + "', and they may take " +
           FormatBytes(config_->record_bytes_max) + ": declare fewer tensors, or smaller groups";
  } else {
    return false;
  }
  ++counters_->declares_over_budget;
  Say(connection,
      wire::Declared{.key = entry.key,
                     .status = wire::DeclaredStatus::kOverBudget,
                     .text = "tensor '" + entry.name + "': job '" + config_->name + text},
      out);
  return true;
}

bool Declarations::OnDeclare(ConnectionId connection, MemberIndex member,
                             const wire::Declare& entry, Effects& out) {
  const std::string problem = DeclareProblem(entry, view_->view());
  if (!problem.empty()) ++counters_->declares_invalid;
  if (entry.name.empty() || entry.key != TensorKey{Fingerprint64(entry.name)}) {
    Say(connection,
        wire::Declared{.key = entry.key, .status = wire::DeclaredStatus::kInvalid, .text = problem},
        out);
    return false;
  }
  if (IsRefused(connection, entry, out)) return true;
  AggregatorTensor& tensor = (*tensors_)[entry.key];
  tensor.key = entry.key;
  if (tensor.declarations.empty()) tensor.declarations.resize(view_->member_count());
  Declaration& declaration = tensor.declarations[member.value()];
  const bool asks_again = tensor.poison && declaration.answered;
  declaration = {.declared = true, .answered = false, .result = entry.result};
  if (tensor.poison) {
    AnswerPoisoned(tensor, member, StatusOf(tensor.poison->code), out);
    return !asks_again;
  }

  const Agreement said = AgreementOf(entry, view_->epoch());
  const std::string disagreement = tensor.agreed ? Disagreement(*tensor.agreed, said) : "";
  if (!problem.empty() || !disagreement.empty()) {
    Poison(tensor, wire::FailedCode::kMismatch, disagreement.empty() ? problem : disagreement, out);
    return true;
  }
  if (!tensor.agreed) {
    tensor.agreed = said;
    record_bytes_ += RecordBytes(entry);
  }
  tensor.agreed->root_rank = said.root_rank;  // Ranks have new numbers in every view.
  tensor.agreed->root_epoch = view_->epoch();
  if (!tensor.Placed() && !PlaceOrPoison(tensor, out)) return true;
  if (!tensor.participation.Includes(member)) {
    declaration = {};
    Say(connection,
        wire::Declared{.key = entry.key,
                       .status = wire::DeclaredStatus::kInvalid,
                       .text = "tensor '" + entry.name + "': " + view_->MemberText(member) +
                               " has no rank in it, " + Describe(*tensor.agreed)},
        out);
    return true;
  }
  memory_->EnsureSlots(tensor, member, out);
  Answer(tensor, member, out);
  return true;
}

// Only members that were told of the failure know of it. The tensor's owner may be new, and may
// hear of it from nobody else.
void Declarations::OnFailed(MemberIndex member, const wire::Failed& entry, Effects& out) {
  const auto found = tensors_->find(entry.key);
  if (found == tensors_->end() || !found->second.DeclaredBy(member) ||
      entry.code == wire::FailedCode::kJobFailed || entry.text.empty()) {
    ++counters_->frames_unexpected;
    return;
  }
  Poison(found->second, entry.code, entry.text, out);
}

void Declarations::OnLost(MemberIndex member) {
  for (auto& [key, tensor] : *tensors_) {
    if (!tensor.declarations.empty()) tensor.declarations[member.value()] = {};
  }
}

bool Declarations::PlaceOrPoison(AggregatorTensor& tensor, Effects& out) {
  std::string problem = memory_->Place(tensor, out);
  if (problem.empty()) return true;
  ++counters_->declares_over_budget;
  Poison(tensor, wire::FailedCode::kOverBudget, std::move(problem), out);
  return false;
}

void Declarations::Answer(AggregatorTensor& tensor, MemberIndex member, Effects& out) {
  if (!answers_ || tensor.poison || !tensor.DeclaredBy(member)) return;
  Declaration& declaration = tensor.declarations[member.value()];
  const std::optional<ConnectionId>& connection = attendance_->ConnectionOf(member);
  const view::MemberIdentity& id = view_->IdOf(member);
  // Whoever is answered contributes, and the last contribution is summed into the result.
  if (declaration.answered || !connection || !tensor.HasMemoryFor(id)) return;
  declaration.answered = true;
  Say(*connection,
      wire::Declared{.key = tensor.key,
                     .status = wire::DeclaredStatus::kOk,
                     .slot = *tensor.slots.at(id).ref,
                     .held = HeldBy(tensor)},
      out);
}

void Declarations::AnswerPoisoned(AggregatorTensor& tensor, MemberIndex member,
                                  wire::DeclaredStatus status, Effects& out) {
  Declaration& declaration = tensor.declarations[member.value()];
  const std::optional<ConnectionId>& connection = attendance_->ConnectionOf(member);
  if (!connection || !declaration.declared) return;
  if (!declaration.answered) {
    declaration.answered = true;
    Say(*connection,
        wire::Declared{.key = tensor.key, .status = status, .text = tensor.poison->text}, out);
  }
  Say(*connection,
      wire::Failed{.key = tensor.key, .code = tensor.poison->code, .text = tensor.poison->text},
      out);
}

void Declarations::Poison(AggregatorTensor& tensor, wire::FailedCode code, std::string text,
                          Effects& out) {
  if (tensor.poison) return;
  ++counters_->tensors_poisoned;
  const bool has_room = record_bytes_ + text.size() <= config_->record_bytes_max;
  if (!has_room) Shorten(text);
  wire::CutText(text);
  record_bytes_ += text.size();
  tensor.poison = aggregation::Poison{code, std::move(text)};
  // The tensor's memory stays until the next view: contributions may be on their way to it.
  for (uint32_t i = 0; i < tensor.declarations.size(); ++i) {
    AnswerPoisoned(tensor, MemberIndex{i}, StatusOf(code), out);
  }
}

void Declarations::OnAllocated(AllocationId id, wire::RemoteRef ref, Effects& out) {
  const TensorMemory::Use* const use = memory_->Find(id);
  if (use == nullptr) return;  // Released.
  AggregatorTensor& tensor = tensors_->at(use->tensor);
  TensorMemory::OnAllocated(tensor, *use, ref);
  if (!use->member) return AnswerMembers(tensor, out);
  const std::optional<MemberIndex> member = view_->IndexOf(*use->member);
  if (member) Answer(tensor, *member, out);
}

void Declarations::OnAllocationRefused(AllocationId id, const std::string& text, Effects& out) {
  const TensorMemory::Use* const use = memory_->Find(id);
  if (use == nullptr) return;
  AggregatorTensor& tensor = tensors_->at(use->tensor);
  ++counters_->declares_over_budget;
  Poison(tensor, wire::FailedCode::kOverBudget,
         "tensor '" + tensor.agreed->name + "': aggregator '" + config_->self_name +
             "' has no memory for it: " + text,
         out);
}

}  // namespace talweg::aggregation
