// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/reductions.h"

#include <utility>

#include "libs/base/check.h"

namespace talweg::pipeline {

uint64_t Reductions::Begin(const Reduction& reduction) {
  const uint64_t ticket = next_ticket_++;
  in_hand_.emplace(ticket, reduction);
  bytes_ += reduction.length_bytes;
  return ticket;
}

std::optional<Reduction> Reductions::End(uint64_t ticket) {
  const auto it = in_hand_.find(ticket);
  if (it == in_hand_.end()) return std::nullopt;
  const Reduction reduction = it->second;
  bytes_ -= reduction.length_bytes;
  in_hand_.erase(it);
  return reduction;
}

uint64_t Reductions::BeginDecoding(const Decoding& decoding) {
  const uint64_t ticket = next_ticket_++;
  decodings_.emplace(ticket, decoding);
  return ticket;
}

std::optional<Decoding> Reductions::EndDecoding(uint64_t ticket) {
  const auto it = decodings_.find(ticket);
  if (it == decodings_.end()) return std::nullopt;
  const Decoding decoding = it->second;
  decodings_.erase(it);
  return decoding;
}

std::vector<Reduction> Reductions::TakeReady() { return std::exchange(ready_, {}); }

void Reductions::Forget(AggregatorIndex owner) {
  for (auto it = in_hand_.begin(); it != in_hand_.end();) {
    if (it->second.owner == owner) {
      bytes_ -= it->second.length_bytes;
      it = in_hand_.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(ready_, [owner](const Reduction& reduction) { return reduction.owner == owner; });
}

void Reductions::Clear() {
  in_hand_.clear();
  ready_.clear();
  bytes_ = 0;
}

void Reductions::CheckInvariants() const {
  uint64_t bytes = 0;
  for (const auto& [ticket, reduction] : in_hand_) bytes += reduction.length_bytes;
  TALWEG_CHECK(bytes == bytes_);
}

}  // namespace talweg::pipeline
