// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/pushes.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/counted.h"
#include "libs/base/dtype.h"
#include "libs/base/signature_text.h"
#include "libs/pipeline/tensor_spec_rules.h"
#include "libs/wire/round_kind.h"

namespace talweg::pipeline {

bool Pushes::AnswerOver(const AgentTensor& tensor, const Push& push, Effects& out) const {
  if (tensor.failed_status != Status::kOk) {
    out.push_back(CompleteRound{.tensor = tensor.index,
                                .round = push.round,
                                .status = tensor.failed_status,
                                .text = tensor.failed_text});
    return true;
  }
  const bool is_aborted = tensor.aborted_from > Round{0} && push.round >= tensor.aborted_from &&
                          push.round <= tensor.held.round;
  if (!is_aborted) return false;
  out.push_back(CompleteRound{.tensor = tensor.index,
                              .round = push.round,
                              .status = Status::kAborted,
                              .text = "round " + std::to_string(push.round.value()) +
                                      " of tensor '" + tensor.spec.name + "' was aborted"});
  return true;
}

std::string Pushes::Problem(const Push& push) const {
  const AgentTensor* const found = tensors_->Find(push.tensor);
  if (found == nullptr || !found->announced()) {
    return "pushed tensor " + std::to_string(push.tensor.value()) +
           ", which it has not been told of; declare it first";
  }
  const AgentTensor& tensor = *found;
  const std::optional<uint64_t> step = quiesce_->StepEndedBy(push.rank);
  if (step && !tensor.spec.collective.side) {
    return "pushed tensor '" + tensor.spec.name + "' while it waits at the end of step " +
           std::to_string(*step);
  }
  if (!tensor.in_group[push.rank.value()]) {
    return "pushed tensor '" + tensor.spec.name +
           "', which it takes no part in: " + Describe(tensor.spec);
  }
  const bool is_late = tensor.IsOwed(push.round, push.rank);
  if (push.round != tensor.open_round() && !is_late) {
    return "pushed round " + std::to_string(push.round.value()) + " of tensor '" +
           tensor.spec.name + "'; the next is " + std::to_string(tensor.open_round().value());
  }
  if (tensor.pushed[push.rank.value()] && !is_late) {
    return "pushed tensor '" + tensor.spec.name + "' again before round " +
           std::to_string(push.round.value()) + " was taken";
  }
  const Collective& collective = tensor.spec.collective;
  if (!push.lengths.empty() && push.lengths.size() != tensor.spec.part_count()) {
    return "pushed tensor '" + tensor.spec.name + "' with " +
           Counted(push.lengths.size(), "length") + " for " +
           Counted(tensor.spec.part_count(), "part");
  }
  for (const uint32_t length : push.lengths) {
    if (length <= collective.part_bytes() && length % DTypeSize(collective.dtype) == 0) continue;
    return "pushed tensor '" + tensor.spec.name + "' with a part of " + Counted(length, "byte") +
           "; a part has at most " + std::to_string(collective.part_bytes()) + ", in elements of " +
           std::to_string(DTypeSize(collective.dtype));
  }
  return "";
}

void Pushes::TakeGiven(AgentTensor& tensor, const Push& push) {
  OpenContribution& given = tensor.given;
  const Collective& collective = tensor.spec.collective;
  const view::Participation& participation = tensor.participation;
  const bool is_combined = wire::KindOf(collective) == wire::RoundKind::kSum;
  const bool is_first = tensor.pushed_count == 0;
  if (is_first) {
    given = {.signature = push.signature, .by = push.rank};
    given.lengths.assign(tensor.spec.part_count(), 0);
  }
  std::optional<std::pair<uint64_t, uint64_t>> lengths_differ;
  for (const view::Participation::LocalPart& rank : participation.RanksOf(tensor.self)) {
    if (rank.local_rank != push.rank) continue;
    for (uint32_t part = 0; part < given.lengths.size(); ++part) {
      if (!participation.Gives(rank, part)) continue;
      const uint64_t length = push.lengths.empty() ? collective.part_bytes() : push.lengths[part];
      if (!is_first && is_combined && given.lengths[part] != length) {
        lengths_differ = {given.lengths[part], length};
      }
      given.lengths[part] = length;
    }
  }
  if (is_first || !given.disagreement.empty()) return;
  if (Fit(given.signature, push.signature) && !lengths_differ) {
    if (given.signature == kFitsAll) {
      given.signature = push.signature;
      given.by = push.rank;
    }
    return;
  }
  const bool names_lengths = lengths_differ && Fit(given.signature, push.signature);
  const auto length = [&](bool first) -> std::optional<uint64_t> {
    if (!names_lengths) return std::nullopt;
    return first ? lengths_differ->first : lengths_differ->second;
  };
  given.disagreement =
      ranks_->Text(given.by) + " gives " + DescribeGiven(given.signature, length(true)) + ", " +
      ranks_->Text(push.rank) + " gives " + DescribeGiven(push.signature, length(false));
}

void Pushes::OnPush(const Push& push, int64_t now_ns, Effects& out) {
  if (!ranks_->Has(push.rank) || views_->has_failed()) return;
  AgentTensor* const known = tensors_->Find(push.tensor);
  if (known != nullptr && AnswerOver(*known, push, out)) {
    if (known->Owes(push.rank)) known->owes[push.rank.value()] = false;
    return;
  }
  if (const std::string problem = Problem(push); !problem.empty()) {
    out.push_back(FailRank{push.rank, ranks_->Text(push.rank) + " " + problem});
    return;
  }
  AgentTensor& tensor = tensors_->At(push.tensor);
  if (TakeLate(tensor, push, now_ns, out)) return;
  TakeGiven(tensor, push);
  tensor.priority =
      tensor.pushed_count == 0 ? push.priority : std::max(tensor.priority, push.priority);
  AddPush(tensor, push.rank, now_ns);
  if (tensor.contributed()) return Contribute(tensor, out);
  if (rounds_->GiveUpDead(tensor, out)) return;
  timer_->Ask(tensor.next_notice_ns);
  HurryIfAlone(tensor, now_ns);
  CheckLeftRanks(tensor, out);
}

void Pushes::AddPush(AgentTensor& tensor, LocalRank rank, int64_t now_ns) {
  if (tensor.pushed_count == 0) {
    tensor.first_push_ns = now_ns;
    tensor.next_notice_ns = now_ns + config_->waiting_first_ns;
  }
  tensors_->AddPush(tensor, rank);
}

void Pushes::HurryIfAlone(AgentTensor& tensor, int64_t now_ns) {
  const bool is_alone = tensor.travel == Travel::kNone || tensor.participation.member_count() == 1;
  if (!is_alone || 2 * tensor.pushed_count < tensor.in_group_count) return;
  OnHurry(tensor, tensor.open_round(), now_ns);
}

void Pushes::Contribute(AgentTensor& tensor, Effects& out) {
  hurried_.erase(tensor.index);
  tensor.order = next_order_++;
  rounds_->Queue(tensor, out);
}

bool Pushes::TakeLate(AgentTensor& tensor, const Push& push, int64_t now_ns, Effects& out) {
  if (tensor.IsOwed(push.round, push.rank)) {
    tensor.owes[push.rank.value()] = false;
    if (push.round == tensor.held.round) out.push_back(Rounds::CompletionOf(tensor));
    return true;
  }
  if (push.round != tensor.open_round() || !tensor.LeavesOut(push.rank)) return false;
  AddPush(tensor, push.rank, now_ns);
  return true;
}

void Pushes::OnHurry(AgentTensor& tensor, Round round, int64_t since_ns) {
  if (!tensor.spec.collective.leaves_out() || !tensor.resolved || tensor.in_group_count == 0)
    return;
  if (round < tensor.open_round() || tensor.failed_status != Status::kOk) return;
  if (round > tensor.open_round() || !tensor.MayLeaveOutMissing()) {
    Hurry& early = hurried_early_[tensor.index];
    if (early.round < round) early = {round, since_ns};
    return;
  }
  if (tensor.contributed() || tensor.hurry_ns != 0) return;
  tensor.hurry_ns = since_ns + int64_t{tensor.spec.collective.patience_ms} * 1'000'000;
  hurried_.insert(tensor.index);
  timer_->Ask(tensor.hurry_ns);
}

void Pushes::ForgetHurries() {
  hurried_early_.clear();
  for (const TensorIndex index : hurried_) tensors_->At(index).hurry_ns = 0;
  hurried_.clear();
}

void Pushes::Flush() {
  const std::map<TensorIndex, Hurry> early = std::exchange(hurried_early_, {});
  for (const auto& [index, hurry] : early) {
    OnHurry(tensors_->At(index), hurry.round, hurry.since_ns);
  }
}

void Pushes::LeaveOutMissing(AgentTensor& tensor, Effects& out) {
  if (tensor.pushed_count == 0) {
    // The owner compares lengths, and every round has all elements.
    tensor.given = {.signature = kFitsAll};
    tensor.given.lengths.assign(tensor.spec.part_count(), tensor.spec.collective.part_bytes());
  }
  tensors_->LeaveOutMissing(tensor);
  Contribute(tensor, out);
}

void Pushes::OnRankLeft(Effects& out) {
  const std::vector<TensorIndex> waiting(tensors_->half_pushed().begin(),
                                         tensors_->half_pushed().end());
  for (const TensorIndex index : waiting) CheckLeftRanks(tensors_->At(index), out);
}

void Pushes::CheckLeftRanks(AgentTensor& tensor, Effects& out) {
  if (tensor.pushed_count == 0) return;
  uint32_t pusher = 0;
  while (!tensor.pushed[pusher]) ++pusher;
  FailForLeftRank(tensor, ranks_->Text(LocalRank{pusher}) + " pushed", out);
}

void Pushes::OnAwaited(AgentTensor& tensor, Round round, Effects& out) {
  const bool is_open = tensor.resolved && round == tensor.open_round() && !tensor.contributed();
  if (!is_open || tensor.failed_status != Status::kOk || tensor.spec.collective.side) return;
  FailForLeftRank(tensor, "other nodes contributed to", out);
}

void Pushes::FailForLeftRank(AgentTensor& tensor, const std::string& what_others_did,
                             Effects& out) {
  if (views_->has_failed()) return;
  for (uint32_t i = 0; i < ranks_->count(); ++i) {
    if (!ranks_->HasLeft(LocalRank{i}) || tensor.pushed[i] || !tensor.in_group[i]) continue;
    failures_->FailForLeft(
        tensor,
        ranks_->Text(LocalRank{i}) + " has left the job, but " + what_others_did + " round " +
            std::to_string(tensor.open_round().value()) + " of tensor '" + tensor.spec.name +
            "', which needs " + (views_->IsEveryRank(tensor.spec.ranks) ? "every rank" : "it"),
        out);
    return;
  }
}

void Pushes::OnTick(int64_t now_ns, Effects& out) {
  const std::vector<TensorIndex> hurried(hurried_.begin(), hurried_.end());
  for (const TensorIndex index : hurried) {
    AgentTensor& tensor = tensors_->At(index);
    if (tensor.hurry_ns == 0 || tensor.failed_status != Status::kOk) {
      hurried_.erase(index);  // The round is over.
    } else if (tensor.hurry_ns > now_ns) {
      timer_->Ask(tensor.hurry_ns);
    } else if (tensor.MayLeaveOutMissing()) {
      LeaveOutMissing(tensor, out);
    }
  }
  for (const TensorIndex index : tensors_->half_pushed()) {
    AgentTensor& tensor = tensors_->At(index);
    if (tensor.next_notice_ns <= now_ns) {
      LogWaiting notice{.what = LogWaiting::For::kLocalRanks,
                        .tensor = index,
                        .round = tensor.open_round(),
                        .waited_ns = static_cast<uint64_t>(now_ns - tensor.first_push_ns)};
      for (uint32_t i = 0; i < tensor.pushed.size(); ++i) {
        if (!tensor.pushed[i] && tensor.in_group[i]) notice.missing.push_back(i);
      }
      out.push_back(std::move(notice));
      HurryIfAlone(tensor, now_ns);  // The node may be alone only since the last push.
      tensor.next_notice_ns = config_->NextNoticeNs(tensor.first_push_ns, now_ns);
    }
    timer_->Ask(tensor.next_notice_ns);
  }
}

}  // namespace talweg::pipeline
