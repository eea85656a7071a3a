// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "libs/aggregation/aggregator_core.h"
#include "libs/aggregation/decision.h"

// Reports and decisions.
namespace talweg::aggregation {

void AggregatorCore::OnReport(ConnectionId connection, MemberIndex member, const wire::Frame& frame,
                              Effects& out) {
  PresentMember& record = members_[member.value()];
  const bool repeated = record.reported && reports_complete_;
  if (const auto* entries = std::get_if<std::vector<wire::Report>>(&frame.entries)) {
    for (const wire::Report& entry : *entries) {
      const auto tensor = tensors_.find(entry.key);
      // A tensor that it has not declared, or that another decides: no peer of ours sends that.
      if (tensor == tensors_.end() || !tensor->second.DeclaredBy(member) ||
          view::PrimaryOwner(view_, entry.key) != *self_) {
        ++counters_.frames_unexpected;
        continue;
      }
      if (repeated) {
        OnRepeatedReport(connection, member, entry, out);
      } else {
        record.reports[entry.key] = entry;
      }
    }
  }
  if (record.reported || (frame.header.flags & wire::kFlagMore) != 0) return;
  record.reported = true;
  if (--reports_missing_ == 0) OnReportsComplete(out);
}

void AggregatorCore::OnRepeatedReport(ConnectionId connection, MemberIndex member,
                                      const wire::Report& entry, Effects& out) {
  AggregatorTensor& tensor = tensors_.at(entry.key);
  if (tensor.poison) return;  // It has been told when it declared the tensor again.
  ++counters_.decisions_again;
  if (tensor.decision) {
    SendEntry(connection, *tensor.decision, out);
    return;
  }
  // No member had it when the decisions were made, so nothing of it was open.
  wire::Decision decision = {
      .key = entry.key, .round = entry.held.Next(), .verdict = wire::Verdict::kRedo};
  SendEntry(connection, std::move(decision), out);
  AnswerIfReady(tensor, member, out);
}

void AggregatorCore::OnReportsComplete(Effects& out) {
  reports_complete_ = true;
  // Decisions first, as declarations are answered with the round that they lead to.
  std::vector<std::pair<ConnectionId, wire::Decision>> decisions;
  for (auto& [key, tensor] : tensors_) {
    if (tensor.poison || view::PrimaryOwner(view_, key) != *self_) continue;
    DecideTensor(tensor, out);
    if (!tensor.decision) continue;
    for (const PresentMember& member : members_) {
      if (member.connection && member.reports.count(key) != 0) {
        decisions.emplace_back(*member.connection, *tensor.decision);
      }
    }
  }
  ReleaseUndeclared(out);
  for (auto& [key, tensor] : tensors_) {
    for (uint32_t i = 0; i < members_.size(); ++i) AnswerIfReady(tensor, MemberIndex{i}, out);
  }
  for (auto& [connection, decision] : decisions) SendEntry(connection, std::move(decision), out);
  for (PresentMember& member : members_) member.reports.clear();
}

void AggregatorCore::DecideTensor(AggregatorTensor& tensor, Effects& out) {
  std::vector<MemberReport> reports;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    const auto report = members_[i].reports.find(tensor.key);
    if (report == members_[i].reports.end()) continue;
    const std::string problem = ReportProblem(report->second, tensor.slice_count);
    if (!problem.empty()) {
      ++counters_.contradictions;
      PoisonTensor(tensor, wire::FailedCode::kAborted,
                   "tensor '" + tensor.agreed->name + "': the report of " +
                       MemberText(MemberIndex{i}) + " cannot be true: " + problem,
                   out);
      return;
    }
    reports.push_back({MemberIndex{i}, report->second});
  }
  if (reports.empty()) return;
  const Agreement& agreed = *tensor.agreed;
  std::variant<wire::Decision, Contradiction, LostRound> decided =
      Decide({.reports = reports,
              .slice_count = tensor.slice_count,
              .is_dead = agreed.IsDead(),
              .all_get_all = agreed.collective.all_get_all()});
  if (const auto* contradiction = std::get_if<Contradiction>(&decided)) {
    ++counters_.contradictions;
    PoisonTensor(tensor, wire::FailedCode::kAborted,
                 "tensor '" + agreed.name +
                     "': the members' reports contradict each other: " + contradiction->text,
                 out);
    return;
  }
  if (const auto* lost = std::get_if<LostRound>(&decided)) {
    ++counters_.rounds_lost;
    PoisonTensor(tensor, wire::FailedCode::kAborted,
                 "tensor '" + agreed.name + "': " + lost->text + "; go on under another name", out);
    return;
  }
  wire::Decision& decision = std::get<wire::Decision>(decided);
  decision.key = tensor.key;
  if (!decision.text.empty()) decision.text = "tensor '" + agreed.name + "': " + decision.text;
  wire::CutText(decision.text);
  ++counters_.decisions[static_cast<size_t>(decision.verdict)];
  tensor.held =
      decision.verdict == wire::Verdict::kRedo ? Round{decision.round.value() - 1} : decision.round;
  tensor.decision = std::move(decision);
}

}  // namespace talweg::aggregation
