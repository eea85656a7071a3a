// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/agent_tensor.h"

#include <algorithm>

#include "libs/base/check.h"

namespace talweg::pipeline {

bool AgentTensor::agreed() const {
  return std::all_of(owners.begin(), owners.end(),
                     [](const auto& owner) { return owner.second.agreed; });
}

bool AgentTensor::WaitsFor(AggregatorIndex owner) const {
  const auto agreement = owners.find(owner);
  if (agreement == owners.end() || state == TensorState::kFailed) return false;
  if (awaits_decision() && primary == owner) return true;
  if (!agreement->second.agreed && !pending.empty()) return true;
  if (WaitsForPushes()) return false;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].owner == owner && !slice_states.IsAnswered(i)) return true;
  }
  return false;
}

std::vector<LocalRank> AgentTensor::MissingRanks() const {
  std::vector<LocalRank> missing;
  for (uint32_t i = 0; i < pushed.size(); ++i) {
    if (in_group[i] && !pushed[i]) missing.push_back(LocalRank{i});
  }
  return missing;
}

std::vector<uint32_t> AgentTensor::MissingNodes() const {
  if (named.round != active_round()) return {};
  return named.nodes;
}

void AgentTensor::ResetSlices() {
  slice_states.Reset(slices.size());
  if (!spec.collective.is_pairwise()) return;
  for (size_t i = 0; i < slices.size(); ++i) {
    const uint32_t part = spec.collective.part_at(slices[i].offset_bytes);
    if (!participation.TakesPart(self, part)) slice_states.Set(i, SliceState::kExempt);
  }
}

RoundState AgentTensor::round_state() const {
  if (awaits_decision()) return RoundState::kReported;
  if (const wire::Decision* const decision = finish(); decision != nullptr) {
    return decision->round == held.round ? RoundState::kFinishingHeld : RoundState::kFinishingOpen;
  }
  return contributed() ? RoundState::kTravelling : RoundState::kFilling;
}

bool AgentTensor::announced() const {
  return std::find(told.begin(), told.end(), true) != told.end();
}

bool AgentTensor::MayLeaveOutMissing() const {
  if (needs_all) return false;
  for (size_t i = 0; i < pushed.size(); ++i) {
    if (Owes(LocalRank{static_cast<uint32_t>(i)})) return false;
    if (pushed[i] || !in_group[i]) continue;
    if (!told[i]) return false;
    if (!left_out_in_a_row.empty() && left_out_in_a_row[i] >= kLeftOutInARowMax) return false;
  }
  return true;
}

void AgentTensor::LeaveOutMissing() {
  left_out.assign(pushed.size(), false);
  for (const LocalRank rank : MissingRanks()) left_out[rank.value()] = true;
  hurry_ns = 0;
}

void AgentTensor::OpenNextRound() {
  if (left_out.empty()) {
    left_out_in_a_row.clear();
  } else {
    // Nobody owed a round before: the round would have waited.
    owes.assign(pushed.size(), false);
    left_out_in_a_row.resize(pushed.size());
    for (size_t i = 0; i < pushed.size(); ++i) {
      owes[i] = left_out[i] && !pushed[i];
      left_out_in_a_row[i] = left_out[i] ? left_out_in_a_row[i] + 1 : 0;
    }
  }
  left_out.clear();
  needs_all = !held.has_result();
  hurry_ns = 0;
  pushed.assign(pushed.size(), false);
  pushed_count = 0;
  given = {};
  disagreement.reset();
  ResumeOpenRound();
  partial = {};
  ResetSlices();
}

void AgentTensor::Finish(const wire::Decision& decision) {
  TALWEG_CHECK(round_state() == RoundState::kReported);
  recovery_ = decision;
}

void AgentTensor::LoseOwner(AggregatorIndex owner) {
  const auto it = owners.find(owner);
  if (it == owners.end()) return;
  it->second = {};
  if (state == TensorState::kOpen) state = TensorState::kDeclaring;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].owner == owner && !slice_states.IsAnswered(i)) {
      slice_states.Set(i, SliceState::kIdle);
    }
  }
}

void AgentTensor::CheckInvariants() const {
  const auto ranks = std::count(pushed.begin(), pushed.end(), true);
  TALWEG_CHECK(pushed_count == static_cast<uint32_t>(ranks));
  TALWEG_CHECK(pushed_count == 0 || (resolved && pushed_count <= in_group_count));
  TALWEG_CHECK(left_out.empty() || spec.collective.leaves_out());
  for (size_t i = 0; i < left_out.size(); ++i) TALWEG_CHECK(!left_out[i] || told[i]);
  TALWEG_CHECK(slice_states.size() == slices.size());
  slice_states.CheckInvariants();
  const auto have = std::count(partial.have.begin(), partial.have.end(), true);
  TALWEG_CHECK(partial.have_count == static_cast<uint32_t>(have));
  // The owner sends a result only after this node's contribution has filled its slot.
  TALWEG_CHECK(slice_states.done_count() == 0 || !WaitsForPushes());
  TALWEG_CHECK(state != TensorState::kAllocating || !announced());
  TALWEG_CHECK(state != TensorState::kOpen || agreed());
  TALWEG_CHECK(state != TensorState::kFailed || failed_status != Status::kOk);
  switch (round_state()) {
    case RoundState::kFilling:
    case RoundState::kTravelling:
    case RoundState::kFinishingHeld: break;
    case RoundState::kReported:
      TALWEG_CHECK(state == TensorState::kDeclaring || state == TensorState::kOpen);
      break;
    case RoundState::kFinishingOpen:
      TALWEG_CHECK(active_round() == open_round() && contributed());
      break;
  }
}

}  // namespace talweg::pipeline
