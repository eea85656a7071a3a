// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_PERFORM_H_
#define TALWEG_LIBS_MEMBERSHIP_PERFORM_H_

#include <vector>

#include "libs/membership/effects.h"

namespace talweg::membership {

// Carries out effects of the scheduler's core, one at a time.
class EffectSink {
 public:
  virtual ~EffectSink() = default;
  // Returns whether the store has taken it.
  virtual bool Store(const StoreWrite& write) = 0;
  virtual void Tell(const TellMember& told) = 0;
  virtual void Tell(const TellAggregator& told) = 0;
  virtual void Close(const CloseStream& closed) = 0;
  virtual void Say(const Note& note) = 0;
};

// Performs effects in their order. If the store does not take a change, all that follows is left
// out: a restart would not know what others had been told (rule 15). Returns whether the store has
// taken everything.
bool Perform(const std::vector<Effect>& effects, EffectSink& sink);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_PERFORM_H_
