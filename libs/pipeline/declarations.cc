// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/declarations.h"

#include <memory>
#include <utility>
#include <vector>

#include "libs/base/fingerprint.h"
#include "libs/pipeline/tensor_placement.h"
#include "libs/pipeline/tensor_spec_rules.h"

namespace talweg::pipeline {
namespace {

wire::FailedCode CodeOf(Status status) {
  switch (status) {
    case Status::kMismatch: return wire::FailedCode::kMismatch;
    case Status::kOverBudget: return wire::FailedCode::kOverBudget;
    case Status::kAborted: return wire::FailedCode::kAborted;
    case Status::kOk:
    case Status::kInvalid:
    case Status::kJobFailed: break;
  }
  return wire::FailedCode::kInvalid;
}

Status StatusOf(wire::DeclaredStatus status) {
  switch (status) {
    case wire::DeclaredStatus::kOk: return Status::kOk;
    case wire::DeclaredStatus::kMismatch: return Status::kMismatch;
    case wire::DeclaredStatus::kOverBudget: return Status::kOverBudget;
    case wire::DeclaredStatus::kInvalid: return Status::kInvalid;
    case wire::DeclaredStatus::kAborted: return Status::kAborted;
  }
  return Status::kInvalid;
}

Status StatusOf(wire::FailedCode code) {
  switch (code) {
    case wire::FailedCode::kMismatch: return Status::kMismatch;
    case wire::FailedCode::kOverBudget: return Status::kOverBudget;
    case wire::FailedCode::kAborted: return Status::kAborted;
    case wire::FailedCode::kInvalid: return Status::kInvalid;
    case wire::FailedCode::kJobFailed: break;
  }
  return Status::kJobFailed;
}

}  // namespace

void Declarations::OnRankDeclare(LocalRank rank, uint32_t request, const Declaration& declaration,
                                 Effects& out) {
  const auto refuse = [&](Status status, const std::string& text) {
    out.push_back(
        DeclareReply{.local_rank = rank, .request = request, .status = status, .text = text});
  };
  if (views_->has_failed()) return refuse(Status::kJobFailed, views_->failed_text());
  const TensorSpec spec = Normalized(declaration.spec, *views_);
  if (const std::string problem = Problem(spec, rank, *views_, *config_); !problem.empty()) {
    return refuse(Status::kInvalid, problem);
  }
  AgentTensor* const tensor = tensors_->Find(TensorKey{Fingerprint64(spec.name)});
  if (tensor == nullptr) return Add(rank, request, {spec, declaration.wishes}, out);
  if (tensor->spec.name != spec.name) {
    return refuse(Status::kInvalid, "tensors '" + tensor->spec.name + "' and '" + spec.name +
                                        "' have the same fingerprint; rename one of them");
  }
  if (tensor->failed_status == Status::kOk && tensor->spec != spec) {
    Poison(*tensor, rank, spec, out);
  }
  if (tensor->failed_status != Status::kOk) {
    return refuse(tensor->failed_status, tensor->failed_text);
  }
  tensor->pending.push_back({rank, request});
  if (tensor->state == TensorState::kOpen) OpenIfAgreed(*tensor, out);
}

void Declarations::Add(LocalRank rank, uint32_t request, const Declaration& declaration,
                       Effects& out) {
  const TensorSpec& spec = declaration.spec;
  if (tensors_->all().size() >= config_->tensors_max) {
    const std::string text = "tensor '" + spec.name + "' would be one more than the " +
                             std::to_string(config_->tensors_max) +
                             " that this agent allows; use fewer names, or fewer process sets";
    out.push_back(DeclareReply{
        .local_rank = rank, .request = request, .status = Status::kOverBudget, .text = text});
    // Other nodes may have a place for it, and would wait for this one.
    if (!views_->standalone()) failures_->CannotGoOn(text, out);
    return;
  }
  AgentTensor& tensor = tensors_->Add(declaration, rank);
  tensor.pending.push_back({rank, request});
  out.push_back(AllocateTensor{tensor.index, spec, declaration.wishes});
}

void Declarations::OnAllocated(TensorIndex index, const std::string& text, Effects& out) {
  AgentTensor* const tensor = tensors_->Find(index);
  if (tensor == nullptr) return;
  // The tensor may have failed meanwhile. Owners that have no place of it have not heard of that.
  const bool has_failed = tensor->state == TensorState::kFailed;
  if (!has_failed && tensor->state != TensorState::kAllocating) return;
  if (!has_failed) tensor->state = TensorState::kDeclaring;
  if (!text.empty() && !has_failed) {
    failures_->FailTensor(*tensor, Status::kOverBudget, text, out);
    // Otherwise the other nodes would wait for this node's contribution for ever.
    if (!views_->standalone()) {
      failures_->ReportAndFail("node " + std::to_string(config_->self.node.value()) +
                                   " has no memory for tensor '" + tensor->spec.name + "': " + text,
                               out);
    }
    return;
  }
  if (!views_->is_past_fences()) return;  // The coming view will place the tensor.
  if (has_failed && !tensor->owners.empty()) return;
  if (const std::string problem = PlaceTensor(*views_, *tensor); !problem.empty()) {
    failures_->FailTensor(*tensor, Status::kInvalid, problem, out);
  }
  failures_->TellOwners(*tensor);
  OpenIfAgreed(*tensor, out);
}

void Declarations::Poison(AgentTensor& tensor, LocalRank rank, const TensorSpec& spec,
                          Effects& out) {
  failures_->FailTensor(tensor, Status::kMismatch,
                        "tensor '" + tensor.spec.name + "': rank " +
                            std::to_string(views_->GlobalRank(tensor.declared_by).value()) +
                            " declared " + Describe(tensor.spec) + ", rank " +
                            std::to_string(views_->GlobalRank(rank).value()) + " declares " +
                            Describe(spec),
                        out);
  failures_->TellOwners(tensor);
  recovery_->Settle(out);
}

void Declarations::Follow(const view::View& view, Effects& out) {
  // A declared tensor keeps its places; only the ranks' numbers for them change.
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
    if (tensor->state == TensorState::kFailed) continue;
    if (const std::string problem = ResolveRanks(*views_, *tensor); !problem.empty()) {
      failures_->FailTensor(*tensor, Status::kInvalid, problem, out);
    }
  }
  views_->Follow(view);
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
    if (tensor->resolved) Renumber(view, *tensor);
  }
}

wire::Declare Declarations::EntryOf(const AgentTensor& tensor) const {
  const TensorSpec& spec = tensor.spec;
  const uint32_t root_rank = spec.collective.has_root() ? views_->RootInView(spec.root_rank) : 0;
  return {.key = tensor.key,
          .name = spec.name,
          .collective = spec.collective,
          .group = tensor.group,
          .root_rank = tensor.is_dead ? wire::kNoRank : root_rank,
          .by_rank = views_->GlobalRank(tensor.declared_by).value()};
}

void Declarations::SendDue(const Owner& owner, Effects& out) {
  Send send{.connection = owner.connection,
            .type = wire::FrameType::kDeclare,
            .job = views_->present()->job,
            .epoch = views_->present()->epoch};
  std::vector<wire::Declare> entries;
  std::vector<wire::Failed> failed;
  for (const TensorIndex index : links_->TakeUndeclared(owner.index)) {
    const AgentTensor& tensor = tensors_->At(index);
    if (tensor.state == TensorState::kAllocating || !tensor.owners.contains(owner.index)) continue;
    entries.push_back(EntryOf(tensor));
    send.tensors.push_back(tensor.index);
    // This node contributes no more to the tensor, and the others may not know why.
    if (tensor.state == TensorState::kFailed) {
      failed.push_back(
          {.key = tensor.key, .code = CodeOf(tensor.failed_status), .text = tensor.failed_text});
      wire::CutText(failed.back().text);
    }
  }
  if (entries.empty()) return;
  send.entries = std::move(entries);
  out.push_back(std::move(send));
  if (failed.empty()) return;
  out.push_back(Send{.connection = owner.connection,
                     .type = wire::FrameType::kFailed,
                     .job = views_->present()->job,
                     .epoch = views_->present()->epoch,
                     .entries = std::move(failed)});
}

void Declarations::SendAll(const Owner& owner, Effects& out) {
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
    links_->AddUndeclared(owner.index, tensor->index);
  }
  SendDue(owner, out);
}

void Declarations::OnDeclared(AggregatorIndex from, const wire::Declared& entry, Effects& out) {
  AgentTensor* const found = tensors_->Find(entry.key);
  if (found == nullptr || !found->owners.contains(from)) {
    ++counters_->frames_ignored;
    return;
  }
  AgentTensor& tensor = *found;
  if (tensor.state == TensorState::kFailed) return;
  if (entry.status != wire::DeclaredStatus::kOk) {
    failures_->FailTensor(tensor, StatusOf(entry.status), entry.text, out);
    recovery_->Settle(out);
    return;
  }
  tensor.owners[from] = {.agreed = true, .slot = entry.slot};
  // Until a rank here has been told of the tensor, the primary of each view says which round comes
  // first. The others may have had a round aborted meanwhile.
  if (from == tensor.primary && !tensor.announced()) {
    tensor.held = {.round = entry.held, .sum_epoch = Epoch{0}, .ranks_summed = 0};
  }
  OpenIfAgreed(tensor, out);
}

void Declarations::OnFailed(const wire::Failed& entry, Effects& out) {
  AgentTensor* const tensor = tensors_->Find(entry.key);
  if (tensor == nullptr) {
    ++counters_->frames_ignored;
    return;
  }
  failures_->FailTensor(*tensor, StatusOf(entry.code), entry.text, out);
  recovery_->Settle(out);
}

void Declarations::OpenIfAgreed(AgentTensor& tensor, Effects& out) {
  if (tensor.state != TensorState::kDeclaring && tensor.state != TensorState::kOpen) return;
  if (!tensor.agreed()) return;
  tensor.state = TensorState::kOpen;
  for (const PendingDeclare& pending : tensor.pending) {
    tensor.told[pending.local_rank.value()] = true;
    out.push_back(DeclareReply{.local_rank = pending.local_rank,
                               .request = pending.request,
                               .status = Status::kOk,
                               .tensor = tensor.index,
                               .held = tensor.held.round});
  }
  tensor.pending.clear();
  rounds_->Queue(tensor, out);
}

}  // namespace talweg::pipeline
