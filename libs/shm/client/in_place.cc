// SPDX-License-Identifier: Apache-2.0
// Tensors that the ranks sum in place (docs/shared_memory.md, "In place"): each piece of a round is
// summed once, by whichever rank begins it, over the contributions of all.
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>

#include "libs/reduce/reduce.h"
#include "libs/shm/client/client.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace talweg::shm {
namespace {

// This much of all contributions stays in a core's first cache between a sum and its copies.
constexpr uint64_t kTileBytes = 8 * kKiB;
// A piece takes some ten microseconds, and its rank may only need this CPU.
constexpr int64_t kYieldNs = 100'000;
// Who has begun a piece and runs has done it by then, also where many processes share a CPU.
constexpr int64_t kGraceNs = 500'000'000;
constexpr int64_t kSleepNs = 50'000'000;

// The next piece of the round that nobody has begun, now begun; `pieces` if there is none.
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
    // Sequentially consistent, as what a sleeper does: one of the two sees the other.
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

// Writes over `count` contributions what they come to.
class Combining {
 public:
  Combining(DType dtype, Op op, uint32_t root, uint32_t count, std::byte* const* contributions)
      : spec_(op == Op::kCopy ? reduce::ReduceSpec{} : reduce::OnlyHop(dtype, op, count)),
        element_bytes_(DTypeSize(dtype)),
        result_(op == Op::kCopy ? root : 0),
        is_sum_(op != Op::kCopy),
        count_(count),
        contributions_(contributions) {
    spec_.stores = reduce::Stores::kCached;  // Just read.
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

// Describes a place that a tensor is attached to.
uint64_t PlaceBytes(uint64_t tensor_bytes) { return RoundUp(tensor_bytes, kPageBytes); }

// The same pages, elsewhere. Not valid() when the kernel refuses: with EINVAL what is not shared,
// with EFAULT what is not mapped.
Mapping MapOnceMore(void* data, uint64_t bytes) {
  void* const again = ::mremap(data, 0, bytes, MREMAP_MAYMOVE);
  return again == MAP_FAILED ? Mapping() : Mapping::Adopt(again, bytes);
}

// In place of what is mapped at `address`, which is never unmapped.
bool PutAt(void* address, Mapping& mapping) {
  if (::mremap(mapping.data(), mapping.bytes(), mapping.bytes(), MREMAP_MAYMOVE | MREMAP_FIXED,
               address) == MAP_FAILED) {
    return false;
  }
  mapping.Release();
  return true;
}

}  // namespace

RankStatus Client::SumInPlace(const Tensor& tensor, const CompleteRound& complete, uint64_t bytes,
                              const Deadline& deadline, ErrorText& error) {
  const uint32_t count = tensor.rank_count;
  if (count == 1) return RankStatus::kOk;  // It is its own sum.
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

void Client::FinishPieces() {
  while (summing_.load(std::memory_order_seq_cst) != 0) ::sched_yield();
}

RankStatus Client::AwaitPieces(const Tensor& tensor, uint64_t round, uint64_t pieces,
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

void Client::ReplaceInChild() {
  // Unless something else is there by now.
  const auto replace = [](void* place, uint64_t bytes) {
    ::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
           -1, 0);
  };
  tensors_.ForEach([&replace](const Tensor& tensor) {
    if (!tensor.shape.in_place) return;
    replace(tensor.contribution, tensor.shape.bytes());
    if (tensor.place != nullptr) replace(tensor.place, PlaceBytes(tensor.bytes));
  });
}

RankStatus Client::CheckAtRest(const Tensor& tensor, const char* purpose, ErrorText& error) const {
  if (!tensor.shape.in_place) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%s' is not summed in place: its buffer cannot be %s", NameOf(tensor),
                      purpose);
  }
  if (tensor.pushing || tensor.pushed > tensor.taken || tensor.readers > 0) {
    return error.Fail(
        RankStatus::kBusy,
        "tensor '%s': its round %llu is open; wait for it before its buffer is %s", NameOf(tensor),
        static_cast<unsigned long long>(tensor.pushed + (tensor.pushing ? 1 : 0)), purpose);
  }
  return RankStatus::kOk;
}

RankStatus Client::Attach(uint32_t index, void* address, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
  if (reinterpret_cast<uintptr_t>(address) % kPageBytes != 0) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s' cannot be attached to %p: give an address that begins a page",
                      NameOf(*tensor), address);
  }
  const MutexLock lock(state_mutex_);
  if (const RankStatus rest = CheckAtRest(*tensor, "attached", error); rest != RankStatus::kOk) {
    return rest;
  }
  if (address == nullptr) {
    tensor->place = nullptr;
    tensor->replaced.Reset();
    return RankStatus::kOk;
  }
  if (tensor->place != nullptr) {
    return error.Fail(RankStatus::kBusy,
                      "tensor '%s' is attached to %p; detach it before it is attached to %p",
                      NameOf(*tensor), tensor->place, address);
  }
  const uint64_t bytes = PlaceBytes(tensor->bytes);
  Mapping replaced = MapOnceMore(address, bytes);
  if (!replaced.valid() && (errno == EINVAL || errno == EFAULT)) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%s' cannot be attached to %p: no shared mapping is there; make it "
                      "with MAP_SHARED",
                      NameOf(*tensor), address);
  }
  Mapping shared = MapOnceMore(tensor->contribution, bytes);
  if (replaced.valid() && shared.valid()) {
    ::madvise(shared.data(), bytes, MADV_DONTFORK);
    ::madvise(shared.data(), bytes, MADV_POPULATE_WRITE);
    std::memcpy(tensor->contribution, address, tensor->bytes);
    if (PutAt(address, shared)) {
      // Nothing is lost where it cannot be filled again without fear of SIGBUS: it stays full.
      if (::madvise(replaced.data(), bytes, MADV_POPULATE_WRITE) == 0) {
        ::madvise(replaced.data(), bytes, MADV_REMOVE);
      }
      tensor->place = address;
      tensor->replaced = std::move(replaced);
      return RankStatus::kOk;
    }
  }
  return error.Fail(RankStatus::kOutOfMemory, "tensor '%s' cannot be attached to %p: %s",
                    NameOf(*tensor), address, std::strerror(errno));
}

RankStatus Client::Detach(uint32_t index, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
  const MutexLock lock(state_mutex_);
  const RankStatus rest = CheckAtRest(*tensor, "detached", error);
  // A round that is open at the goodbye is the other ranks', and the place is this one's.
  const bool may_go = rest == RankStatus::kBusy && health_.is_closed(std::memory_order_relaxed);
  if (rest != RankStatus::kOk && !(may_go && tensor->place != nullptr)) return rest;
  return tensor->place != nullptr ? DetachPlace(*tensor, error) : DetachBuffer(*tensor, error);
}

RankStatus Client::DetachPlace(Tensor& tensor, ErrorText& error) {
  const Mapping& own = tensor.replaced;
  if (::madvise(own.data(), own.bytes(), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    return error.Fail(RankStatus::kOutOfMemory,
                      "tensor '%s': no memory to give back what it was attached to: %s",
                      NameOf(tensor), std::strerror(errno));
  }
  std::memcpy(own.data(), tensor.contribution, tensor.bytes);
  if (!PutAt(tensor.place, tensor.replaced)) {
    return error.Fail(RankStatus::kOutOfMemory, "tensor '%s' cannot be detached from %p: %s",
                      NameOf(tensor), tensor.place, std::strerror(errno));
  }
  tensor.place = nullptr;
  return RankStatus::kOk;
}

RankStatus Client::DetachBuffer(Tensor& tensor, ErrorText& error) {
  // The same pages once more, elsewhere; then a copy of its own over the place they had.
  const uint64_t bytes = tensor.shape.bytes();
  const bool has_room = memory_.Reserve();
  Mapping shared = MapOnceMore(tensor.contribution, bytes);
  Mapping kept = Mapping::MapPrivate(bytes);
  if (has_room && shared.valid() && kept.valid()) {
    ::madvise(shared.data(), bytes, MADV_DONTFORK);
    std::memcpy(kept.data(), tensor.contribution, tensor.bytes);
    if (PutAt(tensor.contribution, kept)) {
      tensor.contribution = shared.data();
      memory_.Keep(0, SegmentKind::kContribution, std::move(shared));
      return RankStatus::kOk;
    }
  }
  return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory to keep its last result: %s",
                    NameOf(tensor), std::strerror(errno));
}

}  // namespace talweg::shm
