// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/recovery.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "libs/base/counted.h"
#include "libs/pipeline/tensor_placement.h"
#include "libs/view/placement.h"

namespace talweg::pipeline {
namespace {

bool SameCut(const std::vector<view::Slice>& a, const std::vector<view::Slice>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const view::Slice& x, const view::Slice& y) {
                      return x.offset_bytes == y.offset_bytes && x.length_bytes == y.length_bytes;
                    });
}

// Returns which slices of `to` lie wholly within slices of `from` that this node has.
std::vector<bool> Recut(const std::vector<view::Slice>& from, const std::vector<bool>& have,
                        const std::vector<view::Slice>& to) {
  if (SameCut(from, to)) return have;
  std::vector<bool> result(to.size(), false);
  size_t i = 0;
  for (size_t k = 0; k < to.size(); ++k) {
    const uint64_t begin = to[k].offset_bytes;
    const uint64_t end = begin + to[k].length_bytes;
    while (i < from.size() && from[i].offset_bytes + from[i].length_bytes <= begin) ++i;
    bool covered = i < from.size();
    for (size_t j = i; j < from.size() && from[j].offset_bytes < end; ++j) {
      covered = covered && have[j];
    }
    result[k] = covered;
  }
  return result;
}

// Returns the part of `partial` that remains when the tensor is cut anew.
Partial Recut(const Partial& partial, const std::vector<view::Slice>& from,
              const std::vector<view::Slice>& to) {
  if (partial.have_count == 0) return {};
  std::vector<bool> have = Recut(from, partial.have, to);
  const auto have_count = static_cast<uint32_t>(std::count(have.begin(), have.end(), true));
  if (have_count == 0) return {.have = std::move(have)};
  return {.sum_epoch = partial.sum_epoch,
          .ranks_summed = partial.ranks_summed,
          .have_count = have_count,
          .have = std::move(have),
          .lengths = partial.lengths};
}

wire::Report ReportOf(const AgentTensor& tensor) {
  wire::Report report;
  report.key = tensor.key;
  report.held = tensor.held.round;
  report.held_epoch = tensor.held.sum_epoch;
  report.contributed = tensor.contributed() ? tensor.open_round() : tensor.held.round;
  // In other collectives no member has the results that another member gets.
  const bool has_for_all = tensor.spec.collective.all_get_all();
  if (has_for_all && tensor.partial.have_count > 0) {
    report.partial_epoch = tensor.partial.sum_epoch;
    report.slices.resize((tensor.slices.size() + 63) / 64);
    for (size_t i = 0; i < tensor.slices.size(); ++i) {
      if (tensor.partial.have[i]) report.slices[i / 64] |= uint64_t{1} << (i % 64);
    }
  }
  return report;
}

}  // namespace

void Recovery::FreezeAll(Effects& out) {
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) Freeze(*tensor, out);
}

void Recovery::Freeze(AgentTensor& tensor, Effects& out) {
  if (tensor.state == TensorState::kAllocating) return;
  // A Finish ends with its epoch. If it was of the held round, its acknowledgements mean nothing in
  // another epoch. If it was of the open round, `partial` has the slices that came.
  tensor.ResumeOpenRound();
  tensor.named = NodesNamed{};  // An owner named them in another epoch. They may be gone.
  const std::vector<view::Slice> old_slices = std::move(tensor.slices);
  const Partial old_partial = std::exchange(tensor.partial, Partial{});
  tensor.disagreement.reset();
  if (const std::string problem = PlaceTensor(*views_, tensor); !problem.empty()) {
    failures_->FailTensor(tensor, Status::kInvalid, problem, out);
  }
  if (tensor.state == TensorState::kFailed) return;
  tensor.state = TensorState::kDeclaring;
  if (views_->standalone()) return;  // No other node has any of the open round: it is done again.
  tensor.partial = Recut(old_partial, old_slices, tensor.slices);
  // No rank here has been told which round comes first, so this member holds nothing of the tensor.
  // It goes on from the others' round, which `Declared` names.
  if (!tensor.announced()) return;
  tensor.AwaitDecision(ReportOf(tensor));
}

void Recovery::SendReport(const Owner& owner, Effects& out) const {
  std::vector<wire::Report> entries;
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
    if (tensor->awaits_decision() && tensor->primary == owner.index) {
      entries.push_back(*tensor->report());
    }
  }
  Send send{.connection = owner.connection,
            .type = wire::FrameType::kReport,
            .job = views_->present()->job,
            .epoch = views_->present()->epoch};
  if (!entries.empty()) send.entries = std::move(entries);
  out.push_back(std::move(send));
}

std::string Recovery::Problem(const AgentTensor& tensor, const wire::Decision& decision) const {
  const Round open = tensor.open_round();
  switch (decision.verdict) {
    case wire::Verdict::kRedo:
      return decision.round == open ? "" : "to do a round again that is not open here";
    case wire::Verdict::kAbort:
      if (decision.round == open) return "";
      return decision.round == tensor.held.round && !tensor.held.has_result()
                 ? ""
                 : "to abort a round that is not open here";
    case wire::Verdict::kFinish: break;
  }
  return FinishProblem(tensor, decision);
}

std::string Recovery::FinishProblem(const AgentTensor& tensor,
                                    const wire::Decision& decision) const {
  if (decision.sources.size() != tensor.slices.size()) {
    return "to finish a round with " + std::to_string(decision.sources.size()) + " sources for " +
           Counted(tensor.slices.size(), "slice");
  }
  if (decision.sum_epoch == Epoch{0}) return "to finish a round from sums of no epoch";
  if (decision.round == tensor.held.round) {
    return decision.sum_epoch == tensor.held.sum_epoch
               ? ""
               : "to finish a held round from sums of another epoch";
  }
  if (decision.round != tensor.open_round() || !tensor.contributed()) {
    return "to finish a round that this node has not contributed to";
  }
  for (size_t i = 0; i < decision.sources.size(); ++i) {
    if (decision.sources[i] >= views_->present()->members.size()) {
      return "to finish from an unknown member";
    }
    if (decision.sources[i] != views_->self().value()) continue;
    if (tensor.partial.have_count == 0 || !tensor.partial.have[i] ||
        tensor.partial.sum_epoch != decision.sum_epoch) {
      return "to finish from a slice that this node does not have";
    }
  }
  return "";
}

void Recovery::OnDecision(AggregatorIndex from, const wire::Decision& decision, Effects& out) {
  AgentTensor* const found = tensors_->Find(decision.key);
  if (found == nullptr || !found->awaits_decision() || found->primary != from) {
    ++counters_->frames_ignored;
    return;
  }
  AgentTensor& tensor = *found;
  if (const std::string problem = Problem(tensor, decision); !problem.empty()) {
    failures_->ReportAndFail("aggregator '" + links_->NameOf(from) + "' decided " + problem +
                                 ": tensor '" + tensor.spec.name + "', round " +
                                 std::to_string(decision.round.value()) + ", held round " +
                                 std::to_string(tensor.held.round.value()),
                             out);
    return;
  }
  if (AsksForGivenUp(tensor, decision)) {
    failures_->ReportAndFail(
        "tensor '" + tensor.spec.name + "': the view changed while round " +
            std::to_string(decision.round.value()) +
            " was open, and what this node has contributed to it may be overwritten; in "
            "a job that fails with any loss nothing is kept for that. Start the job "
            "again, or give all its daemons --loss_policy=continue",
        out);
    return;
  }
  CarryOut(tensor, decision, out);
  rounds_->Queue(tensor, out);
  Settle(out);
}

bool Recovery::AsksForGivenUp(const AgentTensor& tensor, const wire::Decision& decision) const {
  if (!config_->one_view) return false;
  switch (decision.verdict) {
    case wire::Verdict::kRedo: return tensor.contributed();
    case wire::Verdict::kFinish: return true;
    case wire::Verdict::kAbort: return false;
  }
  return true;
}

void Recovery::CarryOut(AgentTensor& tensor, const wire::Decision& decision, Effects& out) {
  switch (decision.verdict) {
    case wire::Verdict::kRedo:
      ++counters_->redos;
      tensor.ResumeOpenRound();
      tensor.ResetSlices();
      tensor.disagreement.reset();
      tensor.partial = Partial{};
      break;
    case wire::Verdict::kFinish:
      ++counters_->finishes;
      tensor.Finish(decision);
      tensor.ResetSlices();
      if (tensor.round_state() == RoundState::kFinishingHeld ||
          tensor.partial.sum_epoch != decision.sum_epoch) {
        tensor.partial = {};
      }
      break;
    case wire::Verdict::kAbort:
      if (decision.round == tensor.open_round()) {
        rounds_->Abort(tensor, Status::kAborted, decision.text, out);
      } else {
        // The round is over here already. Slices of the next round that concern only this node may
        // be done: they are done again.
        tensor.ResumeOpenRound();
        tensor.partial = {};
      }
      break;
  }
}

void Recovery::Settle(Effects& out) {
  if (views_->phase() == Phase::kReporting && !tensors_->AnyAwaitsDecision()) views_->Activate();
  quiesce_->TryAnswer(out);
}

}  // namespace talweg::pipeline
