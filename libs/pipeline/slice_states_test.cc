// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/slice_states.h"

#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::pipeline {
namespace {

using enum SliceState;

constexpr size_t kSlice = 0;

// One slice that has taken this way.
SliceStates After(const std::vector<SliceState>& way, size_t slices = 2) {
  SliceStates states;
  states.Reset(slices);
  for (const SliceState state : way) states.Set(kSlice, state);
  return states;
}

TEST_CASE("SliceStates: every way of a slice ends with its result", "[pipeline]") {
  const std::vector<std::vector<SliceState>> ways = {
      {kQueued, kSent, kDone},                                  // As it lies.
      {kQueued, kReducing, kReduced, kSent, kDone},             // Reduced first.
      {kQueued, kReducing, kReduced, kSent, kDecoding, kDone},  // Encoded.
      {kQueued, kReducing, kDone},                              // Concerns no other node.
      {kQueued, kDone},                                         // Nor has it bytes.
  };
  for (const std::vector<SliceState>& way : ways) {
    const SliceStates states = After(way);
    CHECK(states[kSlice] == kDone);
    CHECK(states.done_count() == 1);
    CHECK(states.IsAnswered(kSlice));
    states.CheckInvariants();
  }
}

TEST_CASE("SliceStates: a slice whose owner is away begins again, unless its result is here",
          "[pipeline]") {
  for (const SliceState lost : {kIdle, kQueued, kReducing, kReduced, kSent}) {
    CHECK(MayFollow(lost, kIdle));
  }
  for (const SliceState answered : {kDecoding, kDone, kExempt}) {
    CHECK_FALSE(MayFollow(answered, kIdle));
  }
}

TEST_CASE("SliceStates: a slice that may begin again is one that is not answered", "[pipeline]") {
  const std::vector<std::pair<std::vector<SliceState>, bool>> ways = {
      {{}, false},
      {{kQueued}, false},
      {{kQueued, kReducing}, false},
      {{kQueued, kReducing, kReduced}, false},
      {{kQueued, kSent}, false},
      {{kQueued, kSent, kDecoding}, true},
      {{kQueued, kSent, kDone}, true},
      {{kExempt}, true},
  };
  for (const auto& [way, is_answered] : ways) {
    const SliceStates states = After(way);
    CHECK(states.IsAnswered(kSlice) == is_answered);
    CHECK(MayFollow(states[kSlice], kIdle) != is_answered);
  }
}

TEST_CASE("SliceStates: nothing follows the end, and no step is left out", "[pipeline]") {
  for (uint8_t next = 0; next < kSliceStateCount; ++next) {
    CHECK_FALSE(MayFollow(kDone, SliceState{next}));
    CHECK_FALSE(MayFollow(kExempt, SliceState{next}));
  }
  CHECK_FALSE(MayFollow(kIdle, kSent));
  CHECK_FALSE(MayFollow(kIdle, kDone));
  CHECK_FALSE(MayFollow(kQueued, kReduced));
  CHECK_FALSE(MayFollow(kReducing, kSent));
  CHECK_FALSE(MayFollow(kReduced, kDone));
  CHECK_FALSE(MayFollow(kDecoding, kSent));
}

TEST_CASE("SliceStates: a round is over when each slice is done or exempt", "[pipeline]") {
  SliceStates states = After({kExempt});
  CHECK_FALSE(states.AreOver());
  states.Set(1, kQueued);
  CHECK_FALSE(states.AreOver());
  states.Set(1, kDone);
  CHECK(states.AreOver());
  CHECK(states.done_count() == 1);
  states.Reset(3);  // The next round, with other slices.
  CHECK(states.size() == 3);
  CHECK(states.done_count() == 0);
  CHECK_FALSE(states.AreOver());
  states.CheckInvariants();
}

}  // namespace
}  // namespace talweg::pipeline
