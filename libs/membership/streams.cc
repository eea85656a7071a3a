// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/streams.h"

#include "libs/base/check.h"

namespace talweg::membership {

void Streams::Open(StreamId stream, const Owner& owner, std::optional<StreamId>& owned) {
  const bool is_new = owners_.emplace(stream, owner).second;
  TALWEG_CHECK(is_new);
  owned = stream;
}

void Streams::End(std::optional<StreamId>& owned, const Answer& why, Turn& turn) {
  if (!owned) return;
  owners_.erase(*owned);
  turn.Say(CloseStream{*owned, why});
  owned.reset();
}

std::optional<Streams::Owner> Streams::Break(StreamId stream) {
  const auto found = owners_.find(stream);
  if (found == owners_.end()) return std::nullopt;
  const Owner owner = found->second;
  owners_.erase(found);
  return owner;
}

}  // namespace talweg::membership
