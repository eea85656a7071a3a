// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/perform.h"

#include <variant>

namespace talweg::membership {

bool Perform(const std::vector<Effect>& effects, EffectSink& sink) {
  for (const Effect& effect : effects) {
    if (const auto* persist = std::get_if<Persist>(&effect)) {
      if (!sink.Store(persist->write)) return false;
    } else if (const auto* member = std::get_if<TellMember>(&effect)) {
      sink.Tell(*member);
    } else if (const auto* aggregator = std::get_if<TellAggregator>(&effect)) {
      sink.Tell(*aggregator);
    } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
      sink.Close(*close);
    } else {
      sink.Say(std::get<Note>(effect));
    }
  }
  return true;
}

}  // namespace talweg::membership
