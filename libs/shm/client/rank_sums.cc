// SPDX-License-Identifier: Apache-2.0
// Tensors that the ranks sum (docs/shared_memory.md, "Ranks that sum"): what a rank reads of its
// neighbours' memory.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libs/reduce/reduce.h"
#include "libs/shm/client/client.h"
#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {
namespace {

// Neither loads nor stores pass it, nor such as go around the caches.
void FullFence() { __sync_synchronize(); }

// One round of one tensor, as one thread of one rank sums it.
class Summing {
 public:
  Summing(DType dtype, Op op, uint32_t ranks, const RankSumShape& shape, uint64_t round,
          const std::byte* const* arenas, std::byte* out, bool streaming)
      : spec_(reduce::OnlyHop(dtype, op, ranks)),
        ranks_(ranks),
        shape_(shape),
        round_(round),
        streaming_(streaming),
        arenas_(arenas),
        out_(out) {}

  void All() { Sum(0, shape_.tensor_bytes, out_); }

  // This rank's share, for all: each piece becomes visible when it is there. Where the result goes
  // into the next round's contribution the others copy it from there, until Withdraw.
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

  // Before the caller may write into its next contribution.
  void Withdraw() {
    if (line_in_next_ == nullptr) return;
    line_in_next_->progress.store(ShareLine::Pack(round_, ShareLine::Place::kWithdrawn, 0),
                                  std::memory_order_seq_cst);
    FullFence();
  }

  // What its rank has summed is copied, from the front; what it has not is summed here, from the
  // back: whoever has not come yet, or has gone on, is not waited for.
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
    const uint64_t begin = std::min(rank * shape_.share_bytes, shape_.tensor_bytes);
    const uint64_t end = std::min(begin + shape_.share_bytes, shape_.tensor_bytes);
    return (end - begin + kSharePieceBytes - 1) / kSharePieceBytes;
  }
  Range PieceOf(uint32_t rank, uint64_t piece) const {
    const uint64_t begin = rank * shape_.share_bytes + piece * kSharePieceBytes;
    const uint64_t end = std::min((rank + 1) * shape_.share_bytes, shape_.tensor_bytes);
    return {begin, std::min(kSharePieceBytes, end - begin)};
  }
  // False: it was withdrawn meanwhile, and what has been copied may be something else.
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
      inputs[i] = arenas_[i] + (round_ & 1) * shape_.stride + begin;
    }
    spec_.stores = stores;
    reduce::Reduce(spec_, {inputs, ranks_}, to, bytes / DTypeSize(spec_.dtype));
  }

  reduce::ReduceSpec spec_;
  const uint32_t ranks_;
  const RankSumShape shape_;
  const uint64_t round_;
  const bool streaming_;
  const std::byte* const* const arenas_;
  std::byte* const out_;
  ShareLine* line_in_next_ = nullptr;
};

}  // namespace

bool Client::FindArenas(const Tensor& tensor, std::byte** arenas) const {
  const uint64_t bytes = tensor.shape.bytes();
  for (uint32_t i = 0; i < identity_.local_size; ++i) {
    if (i == identity_.local_rank) {
      arenas[i] = tensor.contribution;
      continue;
    }
    const PeerPart& part = peers_[i * kPartsMax + tensor.part];
    std::byte* const base = part.base.load(std::memory_order_acquire);
    // One that is too short for this tensor is an agent's mistake, and never ready.
    if (base == nullptr || part.bytes < bytes || tensor.offset > part.bytes - bytes) return false;
    arenas[i] = base + tensor.offset;
  }
  return true;
}

PushedRounds Client::FindPushedRounds(const Tensor& tensor) const {
  std::byte* arenas[kSummingRanksMax];
  if (!tensor.tells_pushes() || !FindArenas(tensor, arenas)) return {};
  PushedRounds rounds = PushedRounds::Visible();
  for (uint32_t i = 0; i < identity_.local_size; ++i) {
    if (i == identity_.local_rank) continue;
    rounds.Add(*reinterpret_cast<const PushedLine*>(arenas[i] + tensor.shape.pushed_offset()));
  }
  return rounds;
}

RankStatus Client::FindInputs(const Tensor& tensor, SumInputs* inputs, ErrorText& error) const {
  inputs->dtype = tensor.dtype.load(std::memory_order_relaxed);
  inputs->op = tensor.op.load(std::memory_order_relaxed);
  inputs->root = tensor.root.load(std::memory_order_relaxed);
  if (!FindArenas(tensor, inputs->arenas)) {
    return error.Fail(RankStatus::kInternal,
                      "tensor '%s': the agent at '%s' says that its round is complete, and has not "
                      "handed over the memory of all %u ranks; please report it",
                      NameOf(tensor), socket_path_, identity_.local_size);
  }
  if (inputs->op == Op::kCopy ? inputs->root >= identity_.local_size
                                   : !reduce::IsReduction(inputs->dtype, inputs->op)) {
    return error.Fail(RankStatus::kInternal,
                      "tensor '%s': the agent at '%s' leaves it to the ranks to sum, and they "
                      "cannot; please report it",
                      NameOf(tensor), socket_path_);
  }
  return RankStatus::kOk;
}

RankStatus Client::SumContributions(Tensor& tensor, uint64_t round, std::byte* out,
                                    ErrorText& error) {
  const uint32_t count = identity_.local_size;
  const uint32_t own = identity_.local_rank;
  SumInputs inputs;
  const RankStatus found = FindInputs(tensor, &inputs, error);
  if (found != RankStatus::kOk) return found;
  const auto& [arenas, dtype, op, root] = inputs;
  const uint64_t buffer = (round & 1) * tensor.shape.stride;
  for (uint32_t i = 0; i < count; ++i) {
    if (!Overlap(arenas[i] + buffer, out, tensor.bytes)) continue;
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': the result of round %llu cannot be written over its "
                      "contribution, which other ranks are reading; give another buffer",
                      NameOf(tensor), static_cast<unsigned long long>(round));
  }
  if (op == Op::kCopy) {
    Copy(out, arenas[root] + buffer, tensor.bytes, Streams(tensor.bytes));
    return RankStatus::kOk;
  }
  Summing summing(dtype, op, count, tensor.shape, round, arenas, out, Streams(tensor.bytes));
  if (tensor.shape.share_bytes == 0) {
    summing.All();
    return RankStatus::kOk;
  }
  uint32_t first = 0;
  // Of several threads that wait for one round the first shares what it sums.
  const bool shares =
      !summing.Begun(own) && !tensor.sharing.exchange(true, std::memory_order_acquire);
  if (shares && !summing.Begun(own)) {
    summing.OwnShare(own, tensor.contribution);
    first = 1;
  }
  for (uint32_t i = first; i < count; ++i) {
    const uint32_t rank = (own + i) % count;
    // With more ranks than CPUs its rank may only need this one to begin.
    if (i > 0 && !summing.Begun(rank)) ::sched_yield();
    summing.ShareOf(rank);
  }
  summing.Withdraw();
  if (shares) tensor.sharing.store(false, std::memory_order_release);
  return RankStatus::kOk;
}

RankStatus Client::SumIntoOwnResult(Tensor& tensor, uint64_t round, const void** data,
                                    ErrorText& error) {
  const MutexLock lock(result_mutex_);
  if (!tensor.own_result.valid()) {
    tensor.own_result = Mapping::MapPrivate(tensor.bytes);
    if (!tensor.own_result.valid()) {
      return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory for its result: %s",
                        NameOf(tensor), std::strerror(errno));
    }
  }
  if (tensor.own_result_round != round) {
    const RankStatus status = SumContributions(tensor, round, tensor.own_result.data(), error);
    if (status != RankStatus::kOk) return status;
    tensor.own_result_round = round;
  }
  *data = tensor.own_result.data();
  return RankStatus::kOk;
}

}  // namespace talweg::shm
