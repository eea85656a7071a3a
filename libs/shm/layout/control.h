// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_CONTROL_H_
#define TALWEG_LIBS_SHM_LAYOUT_CONTROL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// The control segment: one memfd between one rank and its agent (docs/shared_memory.md).
//
//   0x0000  ControlHeader    written once by the agent; `magic` last, with release
//   0x0100  AgentLine        agent -> rank: whether the job has failed, the agent sleeps, and runs
//   0x0140  RankLine         rank -> agent: ring tail, who sleeps
//   0x0180  ConsumedLine     agent -> rank: ring head
//   0x0200  FailureText      written before AgentLine.state becomes kFailed
//   0x1000  RingEntry[ring_capacity]
//   ......  TensorState[tensors_max]     at ControlHeader.states_offset, page aligned
//   ......  TextSlot[text_slots]         at ControlHeader.texts_offset, page aligned
//
// Little-endian, fixed width. From this segment the agent reads only RankLine and the ring. It
// copies each value before it checks it, and trusts none: the rank can write anywhere in the
// segment.
namespace talweg::shm {

inline constexpr uint32_t kControlMagic = 0x4d435754;  // "TWCM"
inline constexpr uint16_t kLayoutMajor = 1;
inline constexpr uint16_t kLayoutMinor = 5;

inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kFailureTextBytes = 1024;
inline constexpr uint32_t kRingCapacityMax = 1u << 20;
inline constexpr uint32_t kTensorsMax = 1u << 20;
inline constexpr uint32_t kTextSlots = 64;

enum class JobState : uint32_t { kRunning = 0, kFailed = 1 };

struct ControlHeader {
  std::atomic<uint32_t> magic;
  uint16_t major;
  uint16_t minor;
  uint64_t total_bytes;
  uint32_t ring_capacity;  // A power of two.
  uint32_t tensors_max;
  uint64_t incarnation;  // The agent's incarnation.
  uint32_t rank;
  uint32_t size;
  uint32_t local_rank;
  uint32_t local_size;
  uint32_t node_rank;
  uint32_t node_count;
  uint64_t ring_offset;
  uint64_t states_offset;
  uint64_t texts_offset;
  uint32_t text_slots;
  // How long AgentLine::beats may stand still before the agent counts as gone; 0: it does not count
  // beats.
  uint32_t silence_ms;
  uint32_t reserved[42];
};

struct alignas(64) AgentLine {
  std::atomic<uint32_t> state;           // JobState.
  std::atomic<uint32_t> failure_status;  // RankStatus; before `state`.
  // Odd: the agent sleeps, or is about to. A rank that sees an odd value after its push sends one
  // Doorbell for this value (but see `sleeps_until_awaited`).
  std::atomic<uint32_t> sleep_sequence;
  // How often this rank's GPU events were lost. A tensor's events are good if it was placed after
  // the last loss.
  std::atomic<uint32_t> events_lost;
  // The thread that serves the ranks increases it every 2 s.
  std::atomic<uint32_t> beats;
  // The value of `sleep_sequence` if nobody waited when it was published. During that sleep, pushes
  // of tensors that the ranks sum send no Doorbell; a thread that begins to wait, or polls, sends
  // it. (Since minor version 1; 0 before.)
  std::atomic<uint32_t> sleeps_until_awaited;
  // A rank that has ended `stop_at` - 1 steps begins no further step before it has asked; 0: each
  // may go on. The rank adds to RankLine::steps_ended, then looks here. The agent writes this, then
  // looks there. (`stop_at` and `epoch` since minor version 4; 0 before.)
  std::atomic<uint64_t> stop_at;
  std::atomic<uint64_t> epoch;  // The newest view's epoch.
  uint32_t reserved[6];
};

struct alignas(64) RankLine {
  std::atomic<uint64_t> submitted;     // Entries ever written to the ring.
  std::atomic<uint32_t> waiters;       // Threads that sleep, or are about to, for a completion.
  std::atomic<uint32_t> push_waiters;  // The same, for room in the ring.
  std::atomic<uint32_t> wakes_seen;    // Wake messages ever read; the agent sends one at a time.
  // If only one thread counts in `waiters`: the tensor that it waits for, plus 1. 0: any tensor.
  std::atomic<uint32_t> awaited;
  // How many bytes of the open round's result that thread is to be woken for; 0: only for all of
  // them. (Since minor version 2; 0 before.)
  std::atomic<uint64_t> awaited_bytes;
  std::atomic<uint64_t> steps_ended;  // Ever. (Since minor version 4; 0 before.)
  uint32_t reserved[6];
};

struct alignas(64) ConsumedLine {
  std::atomic<uint64_t> consumed;  // Entries ever taken from the ring.
  uint64_t reserved[7];
};

struct FailureText {
  char text[kFailureTextBytes];  // NUL-terminated.
};

// RingEntry::flags: the contribution lies in a GPU buffer, at offset `device_offset`. The buffer's
// number is the upper half of the flags. The tensor's event `pushed` was recorded after the
// contribution was written. The result goes to the same place.
inline constexpr uint64_t kPushOnDevice = 1;
// With kPushOnDevice: pushes the open round once more, because the event of the first push was
// lost.
inline constexpr uint64_t kPushAgain = 2;
inline constexpr uint32_t kPushBufferShift = 32;
// From host memory: the contribution's table has the lengths of the parts that the rank gives
// (libs/shm/layout/parts.h), and `device_offset` is the round's signature. Without this flag all
// parts are full, and the signature is 0. (Since minor version 5 of the messages.)
inline constexpr uint64_t kPushInParts = 4;

// One push. Plain words: the agent reads them after it has read `submitted` with acquire.
struct RingEntry {
  uint32_t tensor;
  int32_t priority;
  uint64_t round;
  uint64_t flags;
  uint64_t device_offset;
};

struct alignas(64) TensorState {
  std::atomic<uint64_t> completed_round;  // Written last, with release.
  std::atomic<uint32_t> status;           // RankStatus of completed_round.
  // For a tensor that the ranks sum, if its round has no result. 1: all ranks have pushed the
  // round, and the next one may have a result. (Since minor version 3; 0 before.)
  std::atomic<uint32_t> goes_on;
  std::atomic<uint64_t> ranks_summed;
  std::atomic<uint64_t> sum_epoch;
  std::atomic<uint64_t> text_ticket;  // The ticket of the TextSlot with the reason; 0: none.
  // For a tensor with patience, by round & 1: the last such round that has a result, as a
  // GoodRound. The rank may come to it when the next one is complete. By then what is above is of
  // the next one. (Since minor version 5.)
  std::atomic<uint64_t> good_rounds[2];
  uint64_t reserved1;
};

// A word of TensorState::good_rounds.
struct GoodRound {
  uint64_t round = 0;         // 40 bits. 0: there is none.
  uint64_t ranks_summed = 0;  // 23 bits.
  bool left_out = false;      // The result does not have what this rank contributes.

  constexpr uint64_t word() const {
    return (round << 24) | (uint64_t{left_out} << 23) | (ranks_summed & 0x7fffff);
  }
  static constexpr GoodRound Of(uint64_t word) {
    return {
        .round = word >> 24, .ranks_summed = word & 0x7fffff, .left_out = ((word >> 23) & 1) != 0};
  }
};

// Why a round failed. Slot `ticket % text_slots` belongs to a ticket until a later one takes it. A
// reader copies the words and then checks the ticket again.
inline constexpr size_t kTextSlotWords = 127;
inline constexpr size_t kTextSlotBytes = kTextSlotWords * 8;  // With the NUL.
struct alignas(64) TextSlot {
  std::atomic<uint64_t> ticket;  // 0 while it is being written.
  std::atomic<uint64_t> words[kTextSlotWords];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == 4 && sizeof(std::atomic<uint64_t>) == 8);

static_assert(std::is_standard_layout_v<ControlHeader> && sizeof(ControlHeader) == 0x100);
static_assert(offsetof(ControlHeader, major) == 4 && offsetof(ControlHeader, minor) == 6);
static_assert(offsetof(ControlHeader, total_bytes) == 8);
static_assert(offsetof(ControlHeader, ring_capacity) == 16);
static_assert(offsetof(ControlHeader, tensors_max) == 20);
static_assert(offsetof(ControlHeader, incarnation) == 24);
static_assert(offsetof(ControlHeader, rank) == 32 && offsetof(ControlHeader, size) == 36);
static_assert(offsetof(ControlHeader, local_rank) == 40);
static_assert(offsetof(ControlHeader, local_size) == 44);
static_assert(offsetof(ControlHeader, node_rank) == 48);
static_assert(offsetof(ControlHeader, node_count) == 52);
static_assert(offsetof(ControlHeader, ring_offset) == 56);
static_assert(offsetof(ControlHeader, states_offset) == 64);
static_assert(offsetof(ControlHeader, texts_offset) == 72);
static_assert(offsetof(ControlHeader, text_slots) == 80);
static_assert(offsetof(ControlHeader, silence_ms) == 84);
static_assert(std::is_standard_layout_v<AgentLine> && sizeof(AgentLine) == 64);
static_assert(offsetof(AgentLine, failure_status) == 4 && offsetof(AgentLine, sleep_sequence) == 8);
static_assert(offsetof(AgentLine, events_lost) == 12 && offsetof(AgentLine, beats) == 16);
static_assert(offsetof(AgentLine, sleeps_until_awaited) == 20);
static_assert(offsetof(AgentLine, stop_at) == 24 && offsetof(AgentLine, epoch) == 32);
static_assert(std::is_standard_layout_v<RankLine> && sizeof(RankLine) == 64);
static_assert(offsetof(RankLine, waiters) == 8 && offsetof(RankLine, push_waiters) == 12);
static_assert(offsetof(RankLine, wakes_seen) == 16 && offsetof(RankLine, awaited) == 20);
static_assert(offsetof(RankLine, awaited_bytes) == 24);
static_assert(offsetof(RankLine, steps_ended) == 32);
static_assert(std::is_standard_layout_v<ConsumedLine> && sizeof(ConsumedLine) == 64);
static_assert(std::is_standard_layout_v<RingEntry> && sizeof(RingEntry) == 32);
static_assert(offsetof(RingEntry, priority) == 4 && offsetof(RingEntry, round) == 8);
static_assert(offsetof(RingEntry, flags) == 16);
static_assert(std::is_standard_layout_v<TensorState> && sizeof(TensorState) == 64);
static_assert(offsetof(TensorState, status) == 8 && offsetof(TensorState, goes_on) == 12);
static_assert(offsetof(TensorState, ranks_summed) == 16);
static_assert(offsetof(TensorState, sum_epoch) == 24 && offsetof(TensorState, text_ticket) == 32);
static_assert(offsetof(TensorState, good_rounds) == 40);
static_assert(std::is_standard_layout_v<TextSlot> && sizeof(TextSlot) == 1024);

inline constexpr uint64_t kAgentLineOffset = 0x100;
inline constexpr uint64_t kRankLineOffset = 0x140;
inline constexpr uint64_t kConsumedLineOffset = 0x180;
inline constexpr uint64_t kFailureTextOffset = 0x200;
inline constexpr uint64_t kRingOffset = 0x1000;

// Where the variable parts lie for the given limits.
struct ControlShape {
  uint32_t ring_capacity = 0;
  uint32_t tensors_max = 0;

  constexpr uint64_t ring_offset() const { return kRingOffset; }
  constexpr uint64_t states_offset() const {
    return PageUp(ring_offset() + uint64_t{ring_capacity} * sizeof(RingEntry));
  }
  constexpr uint64_t texts_offset() const {
    return PageUp(states_offset() + uint64_t{tensors_max} * sizeof(TensorState));
  }
  constexpr uint64_t total_bytes() const {
    return PageUp(texts_offset() + uint64_t{kTextSlots} * sizeof(TextSlot));
  }
  constexpr bool Valid() const {
    return ring_capacity > 0 && (ring_capacity & (ring_capacity - 1)) == 0 &&
           ring_capacity <= kRingCapacityMax && tensors_max > 0 && tensors_max <= kTensorsMax;
  }

 private:
  static constexpr uint64_t PageUp(uint64_t value) {
    return (value + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
};

// The parts of a mapped control segment. Borrows the mapping. `shape` is the holder's own copy,
// never read from the segment.
class ControlView {
 public:
  ControlView() = default;
  ControlView(void* base, ControlShape shape)
      : base_(static_cast<unsigned char*>(base)), shape_(shape) {}

  const ControlShape& shape() const { return shape_; }
  ControlHeader& header() const { return At<ControlHeader>(0); }
  AgentLine& agent_line() const { return At<AgentLine>(kAgentLineOffset); }
  RankLine& rank_line() const { return At<RankLine>(kRankLineOffset); }
  ConsumedLine& consumed_line() const { return At<ConsumedLine>(kConsumedLineOffset); }
  FailureText& failure_text() const { return At<FailureText>(kFailureTextOffset); }
  RingEntry& ring_entry(uint64_t sequence) const {
    return (&At<RingEntry>(shape_.ring_offset()))[sequence & (shape_.ring_capacity - 1)];
  }
  // index < tensors_max.
  TensorState& tensor_state(uint32_t index) const {
    return (&At<TensorState>(shape_.states_offset()))[index];
  }
  TextSlot& text_slot(uint64_t ticket) const {
    return (&At<TextSlot>(shape_.texts_offset()))[ticket % kTextSlots];
  }

 private:
  template <typename T>
  T& At(uint64_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }

  unsigned char* base_ = nullptr;
  ControlShape shape_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_CONTROL_H_
