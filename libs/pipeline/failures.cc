// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/failures.h"

#include <memory>

namespace talweg::pipeline {

void Failures::FailTensor(AgentTensor& tensor, Status status, const std::string& text,
                          Effects& out) {
  if (tensor.state == TensorState::kFailed) return;
  tensor.state = TensorState::kFailed;
  GiveUp(tensor, status, text, out);
}

void Failures::GiveUp(AgentTensor& tensor, Status status, const std::string& text, Effects& out) {
  const bool anybody_waits = tensor.pushed_count > 0;
  const Round round = tensor.open_round();
  parts_.tensors->OpenNextRound(tensor);
  const bool is_known = tensor.failed_status != Status::kOk;
  tensor.failed_status = status;
  tensor.failed_text = text;
  if (is_known) return;
  RefusePending(tensor, status, text, out);
  out.push_back(pipeline::FailTensor{tensor.index, status, text});
  if (anybody_waits) {
    out.push_back(
        CompleteRound{.tensor = tensor.index, .round = round, .status = status, .text = text});
  }
}

void Failures::FailForLeft(AgentTensor& tensor, const std::string& text, Effects& out) {
  if (parts_.views->IsEveryRank(tensor.spec.ranks)) return ReportAndFail(text, out);
  FailTensor(tensor, Status::kAborted, text, out);
  TellOwners(tensor);
}

void Failures::TellOwners(const AgentTensor& tensor) {
  if (!parts_.views->is_past_fences()) return;  // The coming view tells its owners.
  for (const auto& [index, agreement] : tensor.owners) {
    parts_.links->AddUndeclared(index, tensor.index);
  }
}

void Failures::FailJob(const std::string& text, Effects& out) {
  if (parts_.views->has_failed()) return;
  parts_.views->Fail(text);
  parts_.timer->Clear();
  parts_.queue->Clear();
  parts_.reductions->Clear();
  parts_.reductions->ClearDecodings();
  parts_.quiesce->Forget();
  for (const std::unique_ptr<AgentTensor>& tensor : parts_.tensors->all()) {
    RefusePending(*tensor, Status::kJobFailed, text, out);
  }
  out.push_back(pipeline::FailJob{Status::kJobFailed, text});
  parts_.links->CloseAll(text, out);
}

void Failures::ReportAndFail(const std::string& text, Effects& out, std::optional<Rank> rank) {
  if (parts_.views->has_failed()) return;
  out.push_back(ReportLost{text, rank});
  FailJob(text, out);
}

void Failures::CannotGoOn(const std::string& text, Effects& out) {
  ReportAndFail(
      "node " + std::to_string(parts_.views->self_id().node.value()) + " cannot go on: " + text,
      out);
}

void Failures::RefusePending(AgentTensor& tensor, Status status, const std::string& text,
                             Effects& out) {
  for (const PendingDeclare& pending : tensor.pending) {
    out.push_back(DeclareReply{.local_rank = pending.local_rank,
                               .request = pending.request,
                               .status = status,
                               .text = text});
  }
  tensor.pending.clear();
}

}  // namespace talweg::pipeline
