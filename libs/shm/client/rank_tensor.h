// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_RANK_TENSOR_H_
#define TALWEG_LIBS_SHM_CLIENT_RANK_TENSOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libs/base/collective.h"
#include "libs/shm/client/arriving_result.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/layout/parts.h"
#include "libs/shm/layout/rank_sums.h"
#include "libs/shm/mapping.h"

namespace talweg::shm {

// What a rank knows of one tensor that it has declared. It lives until the client is freed. A
// member is constant once the tensor is in the table (tensor_table.h), unless its comment says
// otherwise.
struct RankTensor {
  uint32_t index = 0;  // The tensor's number for the rank and the agent.
  Collective collective;
  // The size of the group; this rank's place in it, and the root's.
  uint32_t rank_count = 0;
  uint32_t rank = 0;
  uint32_t root = 0;
  BufferShape buffer;
  bool has_tables = false;  // Whether buffers end with a table of lengths.
  Parts gives;
  Parts gets;
  uint64_t bytes = 0;  // How many bytes of data a buffer has.
  std::byte* contribution = nullptr;
  const std::byte* result[2] = {};
  const std::byte* arrivals = nullptr;  // An ArrivalsLine; null: nothing is told.
  // If the ranks sum the tensor: it lies in part `part` of every rank's arena, at `offset`.
  bool ranks_sum = false;
  uint32_t part = 0;
  uint64_t offset = 0;
  RankSumShape shape;                 // stride 0: one buffer, and the agent sums.
  bool one_place = false;             // The result comes to where the contribution lies.
  std::atomic<bool> in_place{false};  // Declared in place; the agent may sum it all the same.
  std::atomic<bool> sharing{false};   // A thread is summing this rank's share.
  std::atomic<bool> populated{false};
  std::atomic<char*> name{nullptr};
  std::atomic<int32_t> priority{0};
  // From here to `failed`: guarded by the client's state mutex, unless a comment says otherwise.
  uint64_t pushed = 0;   // The last round in the ring.
  uint64_t taken = 0;    // The last round that a wait has returned.
  uint32_t readers = 0;  // How many threads copy a result out.
  // What the last wait that timed out has copied of the open round.
  ArrivingResult::Copied copied_early;
  bool pushing = false;
  bool pushed_short = false;  // The last round was pushed with a part that is not full.
  uint64_t disagreed = 0;     // The last round in which the ranks have said different things.
  uint64_t open_bytes = 0;    // How many bytes the open round takes (OpenBytes).
  // Where the rank's part for itself already lies in the open round; null: nowhere.
  const std::byte* own_part = nullptr;
  bool on_device = false;  // The open round's result goes to a GPU.
  // The contribution buffer holds what the last rounds have left out. The next push adds to it.
  bool carries = false;
  uint64_t left_out_count = 0;  // In how many rounds this rank was left out.
  // `placed_at`: AgentLine::events_lost when the tensor's events were asked for. `pushed_at`: the
  // same for the events of its last round; it may also be read without the lock.
  uint32_t placed_at = 0;
  std::atomic<uint32_t> pushed_at{0};
  bool failed = false;  // A round has ended without a result: no later round has one.
  // Where its buffer is attached, and what was mapped there before.
  void* place = nullptr;
  Mapping replaced;
  Mapping own_result;  // Where Result sums to; guarded by result_mutex_.
  uint64_t own_result_round = 0;

  // Whether gradients may live in the tensor's buffer, which is the same in all rounds and has its
  // own pages.
  bool is_a_home() const { return shape.in_place || one_place; }
  // The size of those pages.
  uint64_t home_bytes() const {
    return one_place ? RoundUp(buffer.total_bytes(), kPageBytes) : shape.bytes();
  }
  // The buffer has moved to `home`.
  void MoveTo(std::byte* home) {
    contribution = home;
    if (one_place) result[0] = result[1] = home;
  }
  std::byte* ContributionOf(uint64_t round) const {
    return contribution + shape.buffer_offset(round);
  }
  // Where the part that `giver` contributes begins in its buffer.
  uint64_t PartOffset(uint32_t part, uint32_t giver) const {
    return ranks_sum ? shape.part_offset(part, giver) : buffer.part_offset(part);
  }
  // How many bytes a buffer for contributions has room for.
  uint64_t held_bytes() const { return ranks_sum ? shape.stride : bytes; }
  // How many bytes the parts that other ranks give would take before this rank's first part.
  uint64_t bytes_before() const {
    return buffer.part_offset(gives.first) - PartOffset(gives.first, rank);
  }
  bool Gets(uint32_t part) const { return HasPart(collective.gets, part, rank, rank_count, root); }
  // The lengths of the parts that this rank contributes to `round`.
  uint32_t* LengthsOf(uint64_t round) const {
    return reinterpret_cast<uint32_t*>(
        contribution + (ranks_sum ? shape.table_offset(round) : buffer.table_offset()));
  }
  // Whether the other ranks may see the last round complete.
  bool tells_pushes() const { return shape.tells_pushes && !failed && !on_device; }
};

// For error texts; "?" until the tensor's declaration has been answered.
const char* NameOf(const RankTensor& tensor);

// Errors that several calls share.
RankStatus FailOnDevice(const RankTensor& tensor, ErrorText& error);
RankStatus FailNotPushed(const RankTensor& tensor, uint64_t round, ErrorText& error);
RankStatus FailEventsLost(const RankTensor& tensor, ErrorText& error);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_RANK_TENSOR_H_
