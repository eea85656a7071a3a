// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rank_control.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "libs/base/check.h"

namespace talweg::shm {
namespace {

// Returns how much of `text` fits into `bytes_max` without cutting a UTF-8 sequence.
size_t CutBytes(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text.size();
  size_t bytes = bytes_max;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return bytes;
}

}  // namespace

Outcome<RankControl> RankControl::Create(ControlShape shape, const Identity& identity) {
  TALWEG_CHECK(shape.Valid());
  Outcome<Segment> segment = CreateSegment(SegmentUse::kControl, shape.total_bytes());
  if (!segment.ok()) return segment.failure();
  // This backs what every rank uses. The tensors' states are backed when tensors are declared.
  if (Outcome<bool> backed =
          BackWithMemory(SegmentUse::kControl, segment.value(), 0, shape.states_offset());
      !backed.ok()) {
    return backed.failure();
  }
  RankControl control(std::move(segment).value(), shape);
  ControlHeader& header = control.view_.header();
  header.major = kLayoutMajor;
  header.minor = kLayoutMinor;
  header.total_bytes = shape.total_bytes();
  header.ring_capacity = shape.ring_capacity;
  header.tensors_max = shape.tensors_max;
  header.incarnation = identity.incarnation;
  header.rank = identity.rank;
  header.size = identity.size;
  header.local_rank = identity.local_rank;
  header.local_size = identity.local_size;
  header.node_rank = identity.node_rank;
  header.node_count = identity.node_count;
  header.ring_offset = shape.ring_offset();
  header.states_offset = shape.states_offset();
  header.texts_offset = shape.texts_offset();
  header.text_slots = kTextSlots;
  header.silence_ms = identity.silence_ms;
  header.magic.store(kControlMagic, std::memory_order_release);
  return Outcome<RankControl>(std::move(control));
}

RankControl::Next RankControl::NextEntry(RingEntry* entry) const {
  const uint64_t submitted = view_.rank_line().submitted.load(std::memory_order_acquire);
  const uint64_t waiting = submitted - consumed_;
  if (waiting == 0) return Next::kEmpty;
  if (waiting > view_.shape().ring_capacity) return Next::kGarbage;
  // Reads each word once. A rank that writes at the same time only harms itself.
  auto* source = reinterpret_cast<uint64_t*>(&view_.ring_entry(consumed_));
  std::array<uint64_t, sizeof(RingEntry) / 8> words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = std::atomic_ref<uint64_t>(source[i]).load(std::memory_order_relaxed);
  }
  std::memcpy(entry, words.data(), sizeof(*entry));
  return Next::kEntry;
}

bool RankControl::RingEmpty() const {
  return view_.rank_line().submitted.load(std::memory_order_seq_cst) == consumed_;
}

void RankControl::PublishConsumed() {
  if (consumed_ == consumed_published_) return;
  consumed_published_ = consumed_;
  view_.consumed_line().consumed.store(consumed_, std::memory_order_seq_cst);
}

void RankControl::PublishState(uint32_t tensor, uint64_t round, RankStatus status,
                               std::string_view text, uint64_t ranks_summed, uint64_t sum_epoch,
                               bool goes_on) {
  TensorState& state = view_.tensor_state(tensor);
  uint64_t ticket = 0;
  if (!text.empty()) {
    ticket = ++texts_;
    TextSlot& slot = view_.text_slot(ticket);
    slot.ticket.store(0, std::memory_order_relaxed);
    const size_t bytes = CutBytes(text, kTextSlotBytes - 1);
    for (size_t i = 0; i < kTextSlotWords; ++i) {
      uint64_t word = 0;
      if (i * 8 < bytes)
        std::memcpy(&word, text.data() + i * 8, std::min<size_t>(8, bytes - i * 8));
      // With release: a reader that sees a new word also sees that the ticket has changed.
      slot.words[i].store(word, std::memory_order_release);
    }
    slot.ticket.store(ticket, std::memory_order_release);
  }
  state.status.store(static_cast<uint32_t>(status), std::memory_order_relaxed);
  state.goes_on.store(goes_on ? 1 : 0, std::memory_order_relaxed);
  state.ranks_summed.store(ranks_summed, std::memory_order_relaxed);
  state.sum_epoch.store(sum_epoch, std::memory_order_relaxed);
  state.text_ticket.store(ticket, std::memory_order_relaxed);
  state.completed_round.store(round, std::memory_order_seq_cst);
}

void RankControl::PublishGoodRound(uint32_t tensor, const GoodRound& good) {
  view_.tensor_state(tensor).good_rounds[good.round & 1].store(good.word(),
                                                               std::memory_order_relaxed);
}

void RankControl::PublishFailure(RankStatus status, std::string_view text) {
  if (std::exchange(failed_, true)) return;
  const size_t bytes = CutBytes(text, kFailureTextBytes - 1);
  char* out = view_.failure_text().text;
  std::memcpy(out, text.data(), bytes);
  out[bytes] = '\0';
  AgentLine& line = view_.agent_line();
  line.failure_status.store(static_cast<uint32_t>(status), std::memory_order_relaxed);
  line.state.store(static_cast<uint32_t>(JobState::kFailed), std::memory_order_seq_cst);
}

void RankControl::PublishSleepSequence(uint32_t sequence, bool until_awaited) {
  AgentLine& line = view_.agent_line();
  // Stored first: a rank that sees the sleep also sees which kind it is. 0 belongs to no sleep.
  line.sleeps_until_awaited.store(until_awaited ? sequence : 0, std::memory_order_seq_cst);
  line.sleep_sequence.store(sequence, std::memory_order_seq_cst);
}

bool RankControl::Awaits() const {
  const RankLine& line = view_.rank_line();
  return line.waiters.load(std::memory_order_seq_cst) > 0 ||
         line.push_waiters.load(std::memory_order_seq_cst) > 0;
}

void RankControl::PublishEventsLost() {
  view_.agent_line().events_lost.store(++events_lost_, std::memory_order_seq_cst);
}

uint64_t RankControl::PublishStop(uint64_t stop_at) {
  // Either the rank sees this when it has ended a step, or its ended step is seen here.
  view_.agent_line().stop_at.store(stop_at, std::memory_order_seq_cst);
  return StepsEnded();
}

uint64_t RankControl::StepsEnded() const {
  return view_.rank_line().steps_ended.load(std::memory_order_seq_cst);
}

void RankControl::PublishEpoch(uint64_t epoch) {
  view_.agent_line().epoch.store(epoch, std::memory_order_seq_cst);
}

void RankControl::PublishBeat() {
  view_.agent_line().beats.store(++beats_, std::memory_order_relaxed);
}

bool RankControl::WakeNeeded(Waiter waiter, std::optional<uint32_t> tensor) const {
  // Sequentially consistent, like the earlier publication and like the rank's "register, look
  // again". Either the rank sees the publication, or its registration is seen here. (Fences would
  // not do: TSan does not know them.)
  const RankLine& line = view_.rank_line();
  const std::atomic<uint32_t>& sleepers =
      waiter == Waiter::kForRound ? line.waiters : line.push_waiters;
  if (sleepers.load(std::memory_order_seq_cst) == 0) return false;
  // Read after the count: a counted thread that waits for this tensor has already said so.
  const uint32_t awaited = line.awaited.load(std::memory_order_seq_cst);
  if (tensor && awaited != 0 && awaited != *tensor + 1) return false;
  return line.wakes_seen.load(std::memory_order_seq_cst) == wakes_sent_;
}

bool RankControl::WakeNeededForBytes(uint32_t tensor, uint64_t bytes) const {
  const RankLine& line = view_.rank_line();
  if (line.waiters.load(std::memory_order_seq_cst) == 0 ||
      line.awaited.load(std::memory_order_seq_cst) != tensor + 1) {
    return false;
  }
  const uint64_t wanted = line.awaited_bytes.load(std::memory_order_seq_cst);
  return wanted != 0 && wanted <= bytes &&
         line.wakes_seen.load(std::memory_order_seq_cst) == wakes_sent_;
}

}  // namespace talweg::shm
