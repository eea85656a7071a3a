// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/slice_round.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"

namespace talweg::aggregation {

using wire::Form;
using wire::RoundKind;

SliceRound::Outcome SliceRound::OnContribution(MemberIndex from, const wire::Contribute& entry,
                                               int64_t now_ns) {
  TALWEG_CHECK(from.value() < parts_.size());
  Part& part = parts_[from.value()];
  const RoundKind kind = wire::KindOf(entry);
  const bool copies = wire::Copies(kind);
  const bool disagrees = entry.form == Form::kDisagreement;
  const bool empty = entry.form == Form::kEmpty || disagrees;
  if (entry.round == Round{0}) return Outcome::kWrongRound;
  if (entry.round == standing_.round) {
    // A member that has contributed to the next round had this result.
    if (part.here) return Outcome::kWrongRound;
    return copies == wire::Copies(standing_.kind) ? Outcome::kServeAgain : Outcome::kWrongMode;
  }
  const bool fits_open = copies == wire::Copies(kind_);
  if (open_round_ != Round{0} && entry.round != open_round_) return Outcome::kWrongRound;
  if (part.here) return fits_open ? Outcome::kDuplicate : Outcome::kWrongMode;
  TALWEG_CHECK(state_ == State::kFilling);

  if (here_count_ > 0 && !fits_open) return Outcome::kWrongMode;
  const bool is_last = here_count_ + 1 == taker_count_;
  if (!copies) {
    if (empty && !disagrees) return Outcome::kWrongMode;
  } else if (empty ? is_last && !source_ && !disagrees && !AnyDisagrees() : source_.has_value()) {
    return Outcome::kWrongMode;  // A copy has one source: neither none nor two.
  }

  if (here_count_ == 0) {
    open_round_ = entry.round;
    kind_ = copies ? RoundKind::kCopy : RoundKind::kSum;
    since_ns_ = now_ns;
    newest_ns_ = now_ns;
  }
  behind_ns_ = now_ns - std::exchange(newest_ns_, now_ns);
  if (copies && !empty) {
    source_ = from;
    kind_ = kind;
    sum_epoch_ = entry.sum_epoch;
  }
  part = {.here = true,
          .has_bytes = !empty,
          .wants_result = entry.wants_result,
          .rank_count = empty ? 0 : entry.rank_count,
          .length_bytes = empty ? 0 : entry.length_bytes,
          .travel_bytes = empty ? 0 : entry.travel_bytes,
          .signature = entry.signature,
          .priority = entry.priority};
  if (disagrees) {
    part.disagreement.assign(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
    if (part.disagreement.empty()) part.disagreement = "its ranks disagree";
  }
  ++here_count_;
  if (!is_last) return Outcome::kTaken;
  state_ = State::kComplete;
  return Outcome::kCompleted;
}

void SliceRound::Forget(MemberIndex member) {
  TALWEG_CHECK(member.value() < parts_.size());
  Part& part = parts_[member.value()];
  if (state_ != State::kFilling || !part.here) return;
  if (source_ == member) {
    source_.reset();
    kind_ = RoundKind::kCopy;
  }
  part = {};
  --here_count_;
  // Without contributions the epoch has not named its round, unless an earlier one has been summed.
  if (here_count_ == 0 && standing_.round == Round{0}) open_round_ = Round{0};
}

void SliceRound::StartSum() {
  TALWEG_CHECK(state_ == State::kComplete);
  state_ = State::kSumming;
}

uint32_t SliceRound::length_bytes() const {
  for (const Part& part : parts_) {
    if (part.here && part.has_bytes) return part.length_bytes;
  }
  return 0;
}

bool SliceRound::AnyDisagrees() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.here && !part.disagreement.empty(); });
}

void SliceRound::OnSummed(Epoch epoch, uint32_t travel_bytes) {
  TALWEG_CHECK(state_ == State::kSumming);
  Standing standing = {.round = open_round_,
                       .sum_epoch = kind_ == RoundKind::kFinish ? sum_epoch_ : epoch,
                       .length_bytes = length_bytes(),
                       .travel_bytes = travel_bytes,
                       .kind = kind_};
  for (const Part& part : parts_) {
    if (!part.here) continue;
    standing.rank_count += part.rank_count;
  }
  Stand(std::move(standing));
}

void SliceRound::Disagree(Epoch epoch, std::string text) {
  TALWEG_CHECK(state_ != State::kFilling && !text.empty());
  Stand({.round = open_round_, .sum_epoch = epoch, .kind = kind_, .disagreement = std::move(text)});
}

void SliceRound::Stand(Standing standing) {
  standing_ = std::move(standing);
  wanted_.assign(parts_.size(), {});
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].here) wanted_[i] = {parts_[i].wants_result, parts_[i].priority};
    parts_[i] = {};
  }
  state_ = State::kFilling;
  open_round_ = open_round_.Next();
  source_.reset();
  here_count_ = 0;
}

}  // namespace talweg::aggregation
