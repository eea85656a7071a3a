// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/slice_states.h"

#include <algorithm>

#include "libs/base/check.h"

namespace talweg::pipeline {

void SliceStates::Reset(size_t count) {
  states_.assign(count, SliceState::kIdle);
  done_count_ = 0;
  exempt_count_ = 0;
}

void SliceStates::Set(size_t slice, SliceState state) {
  SliceState& present = states_[slice];
  TALWEG_CHECK(MayFollow(present, state));
  present = state;
  if (present == SliceState::kDone) ++done_count_;
  if (present == SliceState::kExempt) ++exempt_count_;
}

bool SliceStates::IsAnswered(size_t slice) const {
  switch (states_[slice]) {
    case SliceState::kDecoding:
    case SliceState::kDone:
    case SliceState::kExempt: return true;
    case SliceState::kIdle:
    case SliceState::kQueued:
    case SliceState::kReducing:
    case SliceState::kReduced:
    case SliceState::kSent: break;
  }
  return false;
}

bool SliceStates::AreOver() const { return done_count_ + exempt_count_ == states_.size(); }

void SliceStates::CheckInvariants() const {
  const auto done = std::count(begin(), end(), SliceState::kDone);
  TALWEG_CHECK(done_count_ == static_cast<uint32_t>(done));
  const auto exempt = std::count(begin(), end(), SliceState::kExempt);
  TALWEG_CHECK(exempt_count_ == static_cast<uint32_t>(exempt));
  TALWEG_CHECK(done_count_ == 0 || done_count_ + exempt_count_ < states_.size());
}

}  // namespace talweg::pipeline
