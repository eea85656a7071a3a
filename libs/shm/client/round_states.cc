// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/round_states.h"

#include <cstring>

namespace talweg::shm {
namespace {

// Copies the text of a failed round, if the text is still there. Returns its length.
size_t CopyText(const ControlView& control, uint64_t ticket, char* out) {
  out[0] = '\0';
  if (ticket == 0) return 0;
  const TextSlot& slot = control.text_slot(ticket);
  if (slot.ticket.load(std::memory_order_acquire) != ticket) return 0;
  for (size_t i = 0; i < kTextSlotWords; ++i) {
    const uint64_t word = slot.words[i].load(std::memory_order_acquire);
    std::memcpy(out + i * 8, &word, 8);
  }
  out[kTextSlotBytes] = '\0';
  if (slot.ticket.load(std::memory_order_relaxed) != ticket) out[0] = '\0';
  return std::strlen(out);
}

}  // namespace

RankStatus RoundStates::Status(const RankTensor& tensor, uint64_t round, ErrorText& error) const {
  if (Succeeded(tensor, round)) return RankStatus::kOk;
  const TensorState& state = link_.control().tensor_state(tensor.index);
  const uint32_t value = state.status.load(std::memory_order_relaxed);
  const auto status = value > 0 && value < kRankStatusCount ? static_cast<RankStatus>(value)
                                                            : RankStatus::kInternal;
  char text[kTextSlotBytes + 1];
  const size_t bytes =
      CopyText(link_.control(), state.text_ticket.load(std::memory_order_relaxed), text);
  return error.Fail(status, "tensor '%s', round %llu: %s", NameOf(tensor),
                    static_cast<unsigned long long>(round),
                    bytes > 0 ? text : RankStatusName(status));
}

bool RoundStates::Succeeded(const RankTensor& tensor, uint64_t round) const {
  const TensorState& state = link_.control().tensor_state(tensor.index);
  // The ranks may have seen the round complete before the agent has taken all pushes.
  if (state.completed_round.load(std::memory_order_acquire) < round) return true;
  // The state may be of the next round if that one went on without this rank. (Not after a round
  // without a result: the next one waits for all.)
  if (tensor.collective.leaves_out()) return Good(tensor, round).has_value();
  return state.status.load(std::memory_order_relaxed) == 0;
}

std::optional<GoodRound> RoundStates::Good(const RankTensor& tensor, uint64_t round) const {
  if (!tensor.collective.leaves_out()) return std::nullopt;
  const auto good =
      GoodRound::Of(Of(tensor).good_rounds[round & 1].load(std::memory_order_relaxed));
  return good.round == round ? std::optional(good) : std::nullopt;
}

}  // namespace talweg::shm
