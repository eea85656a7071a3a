// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/in_place_sum.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>

#include "libs/reduce/reduce.h"
#include "libs/shm/client/agent_bell.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {
namespace {

// A tile of all contributions stays in a core's first-level cache between a sum and its copies.
constexpr uint64_t kTileBytes = 8 * kKiB;
// A piece takes some ten microseconds, and the rank that sums it may need just this CPU.
constexpr int64_t kYieldNs = 100'000;
// A running thread that has begun a piece ends it in this time, even if many processes share a CPU.
constexpr int64_t kGraceNs = 500'000'000;
constexpr int64_t kSleepNs = 50'000'000;

// Begins the next piece of the round that nobody has begun, and returns it; returns `pieces` if
// there is none.
uint64_t BeginPiece(InPlaceLine& line, uint64_t round, uint64_t pieces) {
  uint64_t word = line.begun.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t piece = InPlaceLine::Pieces(word, round);
    if (piece >= pieces) return pieces;
    if (line.begun.compare_exchange_weak(word, InPlaceLine::Pack(round, piece + 1),
                                         std::memory_order_relaxed)) {
      return piece;
    }
  }
}

uint32_t* DoneFutex(InPlaceLine& line) {
  static_assert(std::endian::native == std::endian::little);
  return reinterpret_cast<uint32_t*>(&line.done);
}

void FinishPiece(InPlaceLine& line, uint64_t round, uint64_t pieces) {
  uint64_t word = line.done.load(std::memory_order_relaxed);
  uint64_t done = 0;
  do {
    done = InPlaceLine::Pieces(word, round) + 1;
    // Sequentially consistent, like the sleeper's operations: one of the two sees the other.
  } while (!line.done.compare_exchange_weak(word, InPlaceLine::Pack(round, done),
                                            std::memory_order_seq_cst));
  if (done < pieces || line.sleepers.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, DoneFutex(line), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps for a bounded time unless the round is done.
void SleepUntilDone(InPlaceLine& line, uint64_t round, uint64_t pieces) {
  line.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint64_t word = line.done.load(std::memory_order_seq_cst);
  if (InPlaceLine::Pieces(word, round) < pieces) {
    const timespec left = ToTimespec(kSleepNs);
    ::syscall(SYS_futex, DoneFutex(line), FUTEX_WAIT, static_cast<uint32_t>(word), &left, nullptr,
              0);
  }
  line.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

// Writes the result over `count` contributions.
class Combining {
 public:
  Combining(DType dtype, Op op, uint32_t root, uint32_t count, std::byte* const* contributions)
      : spec_(op == Op::kCopy ? reduce::ReduceSpec{} : reduce::OnlyHop(dtype, op, count)),
        element_bytes_(DTypeSize(dtype)),
        result_(op == Op::kCopy ? root : 0),
        is_sum_(op != Op::kCopy),
        count_(count),
        contributions_(contributions) {
    spec_.stores = reduce::Stores::kCached;  // The inputs have just been read.
  }

  void operator()(uint64_t begin, uint64_t end) const {
    for (uint64_t at = begin; at < end; at += kTileBytes) {
      const uint64_t bytes = std::min(kTileBytes, end - at);
      std::byte* const result = contributions_[result_] + at;
      if (is_sum_) {
        const std::byte* inputs[kSummingRanksMax];
        for (uint32_t i = 0; i < count_; ++i) inputs[i] = contributions_[i] + at;
        reduce::Reduce(spec_, {inputs, count_}, result, bytes / element_bytes_);
      }
      for (uint32_t i = 0; i < count_; ++i) {
        if (i != result_) std::memcpy(contributions_[i] + at, result, bytes);
      }
    }
  }

 private:
  reduce::ReduceSpec spec_;
  const uint64_t element_bytes_;
  const uint32_t result_;
  const bool is_sum_;
  const uint32_t count_;
  std::byte* const* const contributions_;
};

}  // namespace

RankStatus InPlaceSum::Take(RoundCall& call, const CompleteRound& complete, uint64_t bytes,
                            ErrorText& error) {
  const RankTensor& tensor = call.tensor;
  const RankStatus status = Sum(tensor, complete, bytes, call.deadline, error);
  if (status != RankStatus::kOk || call.taking.out == nullptr) return status;
  std::byte* const contribution = tensor.ContributionOf(complete.round);
  if (call.taking.out == contribution) return status;
  Copy(call.taking.out, contribution, bytes, streaming_.Streams(bytes));
  statistics_.bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
  return RankStatus::kOk;
}

RankStatus InPlaceSum::Show(RoundCall& call, const CompleteRound& complete, uint64_t,
                            const void** data, ErrorText&) {
  *data = call.tensor.ContributionOf(complete.round);
  return RankStatus::kOk;
}

RankStatus InPlaceSum::Sum(const RankTensor& tensor, const CompleteRound& complete, uint64_t bytes,
                           const Deadline& deadline, ErrorText& error) {
  const uint32_t count = tensor.rank_count;
  if (count == 1) return RankStatus::kOk;  // A single contribution is its own sum.
  const uint64_t round = complete.round;
  auto& line = *reinterpret_cast<InPlaceLine*>(complete.arenas[0] + tensor.shape.line_offset());
  const uint64_t pieces = (bytes + kInPlacePieceBytes - 1) / kInPlacePieceBytes;
  const Combining combine(tensor.collective.dtype, tensor.collective.op, tensor.root, count,
                          complete.arenas);
  summing_.fetch_add(1, std::memory_order_seq_cst);
  while (!health_.is_closed(std::memory_order_seq_cst)) {
    const uint64_t piece = BeginPiece(line, round, pieces);
    if (piece == pieces) break;
    const uint64_t begin = piece * kInPlacePieceBytes;
    combine(begin, std::min(begin + kInPlacePieceBytes, bytes));
    FinishPiece(line, round, pieces);
  }
  summing_.fetch_sub(1, std::memory_order_seq_cst);
  return AwaitPieces(tensor, round, pieces, line, deadline, error);
}

void InPlaceSum::FinishPieces() {
  while (summing_.load(std::memory_order_seq_cst) != 0) ::sched_yield();
}

RankStatus InPlaceSum::AwaitPieces(const RankTensor& tensor, uint64_t round, uint64_t pieces,
                                   InPlaceLine& line, const Deadline& deadline, ErrorText& error) {
  const int64_t begin_ns = MonotonicNs();
  while (InPlaceLine::Pieces(line.done.load(std::memory_order_acquire), round) < pieces) {
    const int64_t now_ns = MonotonicNs();
    if (now_ns - begin_ns < kYieldNs) {
      ::sched_yield();
      continue;
    }
    waiting_.ReadSocket(kLookEveryNs);
    if (now_ns - begin_ns >= kGraceNs) {
      RankStatus over = RankStatus::kOk;
      if (health_.Over(&over)) return health_.FailOver(over, NameOf(tensor), error);
      if (deadline.Passed(now_ns)) {
        return error.Fail(RankStatus::kTimeout,
                          "tensor '%s': another rank of this node has begun to sum a part of round "
                          "%llu and does not go on; the round stays open, wait again",
                          NameOf(tensor), static_cast<unsigned long long>(round));
      }
    }
    SleepUntilDone(line, round, pieces);
  }
  return RankStatus::kOk;
}

}  // namespace talweg::shm
