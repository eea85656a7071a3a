// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/rank_sum.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "libs/reduce/reduce.h"
#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {
namespace {

// Neither loads nor stores pass it, not even those that go around the caches.
void FullFence() { __sync_synchronize(); }

// One round of one part of a tensor, as one thread of a rank sums it.
class Summing {
 public:
  // Sums the `bytes` at `offset` of the contributions. Only a single part has shares.
  Summing(const Collective& collective, uint32_t ranks, const RankSumShape& shape, uint64_t offset,
          uint64_t bytes, uint64_t round, const std::byte* const* arenas, std::byte* out,
          bool streaming)
      : spec_(reduce::OnlyHop(collective.dtype, collective.op, ranks)),
        ranks_(ranks),
        shape_(shape),
        share_bytes_(RankSumShape::ShareBytes(bytes, ranks)),
        offset_(offset),
        bytes_(bytes),
        round_(round),
        streaming_(streaming),
        arenas_(arenas),
        out_(out) {}

  bool IsShared() const { return share_bytes_ != 0; }
  void All() { Sum(0, bytes_, out_); }

  // Sums this rank's share for all: each piece becomes visible when it is done. If the result goes
  // into the next round's contribution buffer, the others copy it from there until Withdraw.
  void OwnShare(uint32_t own, std::byte* arena) {
    using Place = ShareLine::Place;
    const bool in_next = out_ == arenas_[own] + NextOffset();
    auto& line = *reinterpret_cast<ShareLine*>(arena + shape_.line_offset());
    std::byte* const sums = arena + shape_.sums_offset();
    const uint64_t pieces = PiecesOf(own);
    for (uint64_t piece = 0; piece < pieces; ++piece) {
      const Range range = PieceOf(own, piece);
      if (in_next || !shape_.keeps_sums) {
        Sum(range.begin, range.bytes, out_ + range.begin);
        if (!in_next) continue;
        line.progress.store(ShareLine::Pack(round_, Place::kNextContribution, piece + 1),
                            std::memory_order_release);
        continue;
      }
      std::byte* const to = sums + piece * kSharePieceBytes;
      SumCached(range.begin, range.bytes, to);
      line.progress.store(ShareLine::Pack(round_, Place::kKept, piece + 1),
                          std::memory_order_release);
      Copy(out_ + range.begin, to, range.bytes, streaming_);
    }
    line_in_next_ = in_next ? &line : nullptr;
  }

  // Call it before the caller may write into its next contribution.
  void Withdraw() {
    if (line_in_next_ == nullptr) return;
    line_in_next_->progress.store(ShareLine::Pack(round_, ShareLine::Place::kWithdrawn, 0),
                                  std::memory_order_seq_cst);
    FullFence();
  }

  // Copies, from the front, the pieces that the share's rank has summed; sums the others here, from
  // the back. A rank that has not begun, or has gone on, is not waited for.
  void ShareOf(uint32_t rank) {
    const ShareLine& line = LineOf(rank);
    uint64_t front = 0;
    for (uint64_t back = PiecesOf(rank); front < back;) {
      const uint64_t progress = line.progress.load(std::memory_order_acquire);
      const uint64_t there = std::min(back, ShareLine::Pieces(progress, round_));
      while (front < there && CopyPiece(rank, front, progress)) ++front;
      if (front == back) break;
      const Range range = PieceOf(rank, --back);
      Sum(range.begin, range.bytes, out_ + range.begin);
    }
  }

  bool Begun(uint32_t rank) const {
    return ShareLine::Begun(LineOf(rank).progress.load(std::memory_order_acquire), round_);
  }

 private:
  struct Range {
    uint64_t begin;
    uint64_t bytes;
  };

  const ShareLine& LineOf(uint32_t rank) const {
    return *reinterpret_cast<const ShareLine*>(arenas_[rank] + shape_.line_offset());
  }
  uint64_t NextOffset() const { return (~round_ & 1) * shape_.stride; }
  uint64_t PiecesOf(uint32_t rank) const {
    const uint64_t begin = std::min(rank * share_bytes_, bytes_);
    const uint64_t end = std::min(begin + share_bytes_, bytes_);
    return (end - begin + kSharePieceBytes - 1) / kSharePieceBytes;
  }
  Range PieceOf(uint32_t rank, uint64_t piece) const {
    const uint64_t begin = rank * share_bytes_ + piece * kSharePieceBytes;
    const uint64_t end = std::min((rank + 1) * share_bytes_, bytes_);
    return {begin, std::min(kSharePieceBytes, end - begin)};
  }
  // Returns false if the piece was withdrawn meanwhile: the copied bytes may be something else.
  bool CopyPiece(uint32_t rank, uint64_t piece, uint64_t progress) {
    const Range range = PieceOf(rank, piece);
    if (ShareLine::PlaceOf(progress) == ShareLine::Place::kKept) {
      Copy(out_ + range.begin, arenas_[rank] + shape_.sums_offset() + piece * kSharePieceBytes,
           range.bytes, streaming_);
      return true;
    }
    Copy(out_ + range.begin, arenas_[rank] + NextOffset() + range.begin, range.bytes, streaming_);
    FullFence();
    return ShareLine::Pieces(LineOf(rank).progress.load(std::memory_order_acquire), round_) > piece;
  }
  void Sum(uint64_t begin, uint64_t bytes, std::byte* to) {
    SumWith(streaming_ ? reduce::Stores::kStreaming : reduce::Stores::kCached, begin, bytes, to);
  }
  void SumCached(uint64_t begin, uint64_t bytes, std::byte* to) {
    SumWith(reduce::Stores::kCached, begin, bytes, to);
  }
  void SumWith(reduce::Stores stores, uint64_t begin, uint64_t bytes, std::byte* to) {
    const std::byte* inputs[kSummingRanksMax];
    for (uint32_t i = 0; i < ranks_; ++i) {
      inputs[i] = arenas_[i] + shape_.buffer_offset(round_) + offset_ + begin;
    }
    spec_.stores = stores;
    reduce::Reduce(spec_, {inputs, ranks_}, to, bytes / DTypeSize(spec_.dtype));
  }

  reduce::ReduceSpec spec_;
  const uint32_t ranks_;
  const RankSumShape shape_;
  const uint64_t share_bytes_;  // As all ranks cut it, since all give the same length.
  const uint64_t offset_;
  const uint64_t bytes_;
  const uint64_t round_;
  const bool streaming_;
  const std::byte* const* const arenas_;
  std::byte* const out_;
  ShareLine* line_in_next_ = nullptr;
};

}  // namespace

RankStatus RankSum::Take(RoundCall& call, const CompleteRound& complete, uint64_t bytes,
                         ErrorText& error) {
  const Taking& taking = call.taking;
  const Target target{static_cast<std::byte*>(taking.out), bytes, taking.places, taking.rooms};
  const RankStatus status = Sum(call.tensor, complete, target, error);
  if (status != RankStatus::kOk) return status;
  statistics_.bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
  return RankStatus::kOk;
}

RankStatus RankSum::Show(RoundCall& call, const CompleteRound& complete, uint64_t bytes,
                         const void** data, ErrorText& error) {
  return SumIntoOwnResult(call.tensor, complete, bytes, data, error);
}

RankStatus RankSum::Sum(RankTensor& tensor, const CompleteRound& complete, const Target& target,
                        ErrorText& error) {
  const uint64_t bytes = target.bytes;
  std::byte* const out = target.out;
  if (bytes == 0) return RankStatus::kOk;
  const uint64_t buffer = tensor.shape.buffer_offset(complete.round);
  const uint32_t count = target.places == nullptr ? 1 : tensor.gets.count;
  for (uint32_t i = 0; i < tensor.rank_count * count; ++i) {
    const void* const to = target.places == nullptr ? out : target.places[i % count];
    const uint64_t to_bytes = target.places == nullptr ? bytes : target.rooms[i % count];
    if (!Overlap(complete.arenas[i / count] + buffer, tensor.held_bytes(), to, to_bytes)) continue;
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': the result of round %llu cannot be written over its "
                      "contribution, which other ranks are reading; give another buffer",
                      NameOf(tensor), static_cast<unsigned long long>(complete.round));
  }
  if (tensor.collective.copies()) return parts_.Copy(tensor, complete, target, error);
  if (tensor.buffer.all_get_one) {
    SumShared(tensor, complete, out, bytes);
    return RankStatus::kOk;
  }
  uint64_t summed = 0;
  for (uint32_t i = 0; i < tensor.gets.count; ++i) {
    const uint32_t part = tensor.gets[i];
    uint64_t length = 0;
    if (!complete.lengths.Get(part, &length) || length > bytes - summed) {
      return parts_.FailLength(tensor, length, error);
    }
    Summing(tensor.collective, tensor.rank_count, tensor.shape, tensor.buffer.part_offset(part),
            length, complete.round, complete.arenas, out + summed, streaming_.Streams(length))
        .All();
    summed += length;
  }
  return RankStatus::kOk;
}

void RankSum::SumShared(RankTensor& tensor, const CompleteRound& complete, std::byte* out,
                        uint64_t bytes) {
  const uint32_t count = tensor.rank_count;
  const uint32_t own = tensor.rank;
  Summing summing(tensor.collective, count, tensor.shape, 0, bytes, complete.round, complete.arenas,
                  out, streaming_.Streams(bytes));
  if (!summing.IsShared()) return summing.All();
  uint32_t first = 0;
  // If several threads wait for one round, the first shares what it sums.
  const bool shares =
      !summing.Begun(own) && !tensor.sharing.exchange(true, std::memory_order_acquire);
  if (shares && !summing.Begun(own)) {
    summing.OwnShare(own, tensor.contribution);
    first = 1;
  }
  for (uint32_t i = first; i < count; ++i) {
    const uint32_t rank = (own + i) % count;
    // With more ranks than CPUs, that rank may need just this CPU to begin.
    if (i > 0 && !summing.Begun(rank)) ::sched_yield();
    summing.ShareOf(rank);
  }
  summing.Withdraw();
  if (shares) tensor.sharing.store(false, std::memory_order_release);
}

RankStatus RankSum::SumIntoOwnResult(RankTensor& tensor, const CompleteRound& complete,
                                     uint64_t bytes, const void** data, ErrorText& error) {
  const MutexLock lock(result_mutex_);
  if (!tensor.own_result.valid()) {
    tensor.own_result = Mapping::MapPrivate(std::max<uint64_t>(tensor.buffer.part_bytes, 1));
    if (!tensor.own_result.valid()) {
      return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory for its result: %s",
                        NameOf(tensor), std::strerror(errno));
    }
  }
  if (tensor.own_result_round != complete.round) {
    const RankStatus status = Sum(tensor, complete, {tensor.own_result.data(), bytes}, error);
    if (status != RankStatus::kOk) return status;
    tensor.own_result_round = complete.round;
  }
  *data = tensor.own_result.data();
  return RankStatus::kOk;
}

}  // namespace talweg::shm
