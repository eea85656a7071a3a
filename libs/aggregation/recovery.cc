// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/recovery.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "libs/aggregation/decision.h"

namespace talweg::aggregation {

void Recovery::OnView() {
  members_.assign(view_->member_count(), {});
  missing_ = members_.size();
  is_complete_ = false;
}

void Recovery::OnLost(MemberIndex member) {
  MemberReports& record = members_[member.value()];
  if (!record.has_reported) record.reports.clear();
}

void Recovery::OnReport(ConnectionId connection, MemberIndex member, const wire::Frame& frame,
                        Effects& out) {
  MemberReports& record = members_[member.value()];
  const bool repeated = record.has_reported && is_complete_;
  if (const auto* entries = std::get_if<std::vector<wire::Report>>(&frame.entries)) {
    for (const wire::Report& entry : *entries) {
      const auto tensor = tensors_->find(entry.key);
      // The member has not declared the tensor, or another aggregator decides it: our peers do not
      // send that.
      if (tensor == tensors_->end() || !tensor->second.DeclaredBy(member) ||
          !view_->Decides(entry.key)) {
        ++counters_->frames_unexpected;
        continue;
      }
      if (repeated) {
        OnReportAgain(connection, member, entry, out);
      } else {
        record.reports[entry.key] = WithoutExcess(entry, tensor->second.slice_count);
      }
    }
  }
  if (record.has_reported || (frame.header.flags & wire::kFlagMore) != 0) return;
  record.has_reported = true;
  if (--missing_ == 0) OnReportsComplete(out);
}

void Recovery::OnReportAgain(ConnectionId connection, MemberIndex member, const wire::Report& entry,
                             Effects& out) {
  AggregatorTensor& tensor = tensors_->at(entry.key);
  if (tensor.poison) return;  // The member was told when it declared the tensor again.
  ++counters_->decisions_again;
  if (tensor.decision) {
    SendEntry(connection, view_->epoch(), *tensor.decision, out);
    return;
  }
  // No member had the tensor when the decisions were made, so no round of it was open.
  wire::Decision decision = {
      .key = entry.key, .round = entry.held.Next(), .verdict = wire::Verdict::kRedo};
  SendEntry(connection, view_->epoch(), std::move(decision), out);
  declarations_->Answer(tensor, member, out);
}

void Recovery::OnReportsComplete(Effects& out) {
  is_complete_ = true;
  // Decides first, because declarations are answered with the round that a decision leads to.
  std::vector<std::pair<ConnectionId, wire::Decision>> decisions;
  for (auto& [key, tensor] : *tensors_) {
    if (tensor.poison || !view_->Decides(key)) continue;
    DecideTensor(tensor, out);
    if (!tensor.decision) continue;
    for (uint32_t i = 0; i < members_.size(); ++i) {
      const std::optional<ConnectionId>& connection = attendance_->ConnectionOf(MemberIndex{i});
      if (connection && members_[i].reports.count(key) != 0) {
        decisions.emplace_back(*connection, *tensor.decision);
      }
    }
  }
  declarations_->AnswerAll(out);
  for (auto& [connection, decision] : decisions) {
    SendEntry(connection, view_->epoch(), std::move(decision), out);
  }
  for (MemberReports& member : members_) member.reports.clear();
}

void Recovery::DecideTensor(AggregatorTensor& tensor, Effects& out) {
  const auto poison = [&](const std::string& text) {
    declarations_->Poison(tensor, wire::FailedCode::kAborted,
                          "tensor '" + tensor.agreed->name + "': " + text, out);
  };
  std::vector<MemberReport> reports;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    const auto report = members_[i].reports.find(tensor.key);
    if (report == members_[i].reports.end()) continue;
    const std::string problem = ReportProblem(report->second, tensor.slice_count);
    if (!problem.empty()) {
      ++counters_->contradictions;
      poison("the report of " + view_->MemberText(MemberIndex{i}) + " cannot be true: " + problem);
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
    ++counters_->contradictions;
    poison("the members' reports contradict each other: " + contradiction->text);
    return;
  }
  if (const auto* lost = std::get_if<LostRound>(&decided)) {
    ++counters_->rounds_lost;
    poison(lost->text + "; end the step, or go on under another name");
    return;
  }
  wire::Decision& decision = std::get<wire::Decision>(decided);
  decision.key = tensor.key;
  if (!decision.text.empty()) decision.text = "tensor '" + agreed.name + "': " + decision.text;
  wire::CutText(decision.text);
  ++counters_->decisions[static_cast<size_t>(decision.verdict)];
  tensor.held =
      decision.verdict == wire::Verdict::kRedo ? Round{decision.round.value() - 1} : decision.round;
  tensor.decision = std::move(decision);
}

}  // namespace talweg::aggregation
