// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "libs/base/bytes.h"
#include "libs/shm/client/await.h"
#include "libs/shm/client/client.h"
#include "libs/shm/client/segment_error.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace talweg::shm {
namespace {

// Below this the kernel's call costs more than the page faults.
constexpr uint64_t kPopulateBytesMin = 256 * 1024;
// Declarations that are under way together: as many as keep the agent and the owners busy, and
// whose answers it can queue for a rank that does not read yet.
constexpr size_t kDeclaresAtOnce = 256;

// As madvise.
int Advise(const std::byte* begin, uint64_t bytes, int advice) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = address / kPageBytes * kPageBytes;
  return ::madvise(reinterpret_cast<void*>(first), address + bytes - first, advice);
}

// Has the kernel back what it can of `begin` with huge pages, whatever it does by itself for shared
// memory: they come in half the time, and the sums need no walks of page tables. Kernels before 6.1
// refuse; then, or without a free huge page, it stays as it was.
void BackWithHugePages(std::byte* begin, uint64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t end = (address + bytes) / Mapping::kHugePageBytes * Mapping::kHugePageBytes;
  for (uintptr_t at = RoundUp(address, Mapping::kHugePageBytes); at < end;
       at += Mapping::kHugePageBytes) {
    void* const page = reinterpret_cast<void*>(at);
    // One that is empty is refused.
    if (::madvise(page, kPageBytes, MADV_POPULATE_WRITE) != 0 ||
        ::madvise(page, Mapping::kHugePageBytes, MADV_COLLAPSE) != 0) {
      return;
    }
  }
}

}  // namespace

void Client::HandleDeclared(const Message& message, const Declared& declared) {
  const char* wrong = nullptr;
  {
    const MutexLock lock(state_mutex_);
    PendingAnswer* pending = pending_;
    while (pending != nullptr && pending->request != message.request) pending = pending->next;
    for (uint32_t i = 0; i < declared.segment_count && wrong == nullptr; ++i) {
      wrong = AdoptSegment(declared.segments[i]);
    }
    // Who has given up waiting for it asks again.
    if (pending != nullptr && wrong == nullptr) {
      if (declared.status == RankStatus::kOk) {
        wrong = pending->declare == nullptr ? "the question was another"
                                            : AdoptTensor(declared, *pending->declare);
      }
      pending->status = declared.status;
      pending->declared = declared;
      std::memcpy(pending->text, declared.text.data(), declared.text.size());
      pending->text[declared.text.size()] = '\0';
      if (wrong == nullptr) pending->done.store(true);
    }
  }
  if (wrong != nullptr) {
    health_.Lose(RankStatus::kProtocol,
                 "the answer of the agent at '%s' to a declaration makes no sense: %s", wrong);
  }
}

const char* Client::AdoptTensor(const Declared& declared, const Declare& declare) {
  const bool ranks_sum = declared.summed_by != SummedBy::kAgent;
  const bool is_group = IsGroup(declare);
  const Collective collective = declare.collective();
  const uint32_t rank_count = is_group ? declare.ranks.size() : identity_.size;
  if (ranks_sum && identity_.local_size > kSummingRanksMax) {
    return "more ranks than can sum";
  }
  if (ranks_sum && (is_group || identity_.size != identity_.local_size)) {
    return "some of the job's ranks cannot sum for all";
  }
  if (declared.tensor >= tensors_max_) return "the tensor's index is past the limit";
  if (!BufferShape::Fits(collective, rank_count)) return "the tensor is too large";
  const BufferShape buffer = BufferShape::Of(collective, rank_count);
  if (declared.tensor_bytes != buffer.data_bytes) return "the tensor has another length";
  const bool has_tables = link_.minor() >= kCollectivesMinor;
  const uint64_t buffer_bytes = has_tables ? buffer.total_bytes() : buffer.data_bytes;
  if (Tensor* known = tensors_[declared.tensor].load(std::memory_order_relaxed)) {
    if (known->collective != collective) return "the tensor is another";
    // Declared on a GPU first, then in host memory: by then its thread has not pushed.
    if (known->contribution == nullptr && declared.contribution.segment != 0) {
      known->contribution = Locate(declared.contribution, SegmentKind::kContribution, buffer_bytes);
      if (known->contribution == nullptr) return "a contribution lies outside of its segment";
    }
    return nullptr;
  }
  // None: the tensor is pushed from a GPU.
  const bool has_contribution = declared.contribution.segment != 0;
  const bool in_place = declared.summed_by == SummedBy::kRanksInPlace;
  const RankSumShape shape =
      has_contribution && ranks_sum
          ? RankSumShape::Of(buffer, identity_.local_size, in_place, link_.minor())
          : RankSumShape{};
  std::byte* contribution = has_contribution
                                ? Locate(declared.contribution, SegmentKind::kContribution,
                                         ranks_sum ? shape.bytes() : buffer_bytes)
                                : nullptr;
  if (has_contribution && contribution == nullptr) {
    return "a contribution lies outside of its segment";
  }
  std::byte* results[2] = {};
  for (int parity = 0; parity < 2 && !ranks_sum; ++parity) {
    results[parity] = Locate(declared.result[parity], SegmentKind::kResult, buffer_bytes);
    if (results[parity] == nullptr) return "a result lies outside of its segment";
  }
  const std::byte* arrivals = nullptr;
  if (declared.arrivals.segment != 0) {
    arrivals =
        Locate(declared.arrivals, SegmentKind::kResult, ArrivalsBytes(declared.tensor_bytes));
    if (arrivals == nullptr) return "a tensor's arrivals lie outside of their segment";
  }
  void* memory = std::calloc(1, sizeof(Tensor));
  if (memory == nullptr) return "no memory for the tensor";
  Tensor* tensor = new (memory) Tensor;
  const auto place_of = [&](uint32_t rank) { return is_group ? declare.ranks.Find(rank) : rank; };
  tensor->collective = collective;
  tensor->rank_count = rank_count;
  tensor->rank = place_of(identity_.rank);
  tensor->root = collective.has_root() ? place_of(declare.root_rank) : 0;
  tensor->buffer = buffer;
  tensor->has_tables = has_tables && buffer.has_lengths();
  tensor->gives =
      Parts::Of(collective.gives, tensor->rank, rank_count, tensor->root, buffer.part_count);
  tensor->gets =
      Parts::Of(collective.gets, tensor->rank, rank_count, tensor->root, buffer.part_count);
  tensor->bytes = buffer.data_bytes;
  tensor->contribution = contribution;
  tensor->result[0] = results[0];
  tensor->result[1] = results[1];
  tensor->arrivals = arrivals;
  tensor->pushed = tensor->taken = declared.completed_round;
  tensor->ranks_sum = ranks_sum;
  tensor->part = declared.part;
  tensor->offset = declared.contribution.offset;
  tensor->shape = shape;
  if (in_place) in_place_parts_ |= uint64_t{1} << declared.part;
  statistics_.tensors.fetch_add(1, std::memory_order_relaxed);
  tensors_[declared.tensor].store(tensor, std::memory_order_release);
  return nullptr;
}

const char* Client::AdoptSegment(const SegmentInfo& info) {
  const Descriptor fd = link_.socket().TakeDescriptor();
  if (!fd.valid()) return "a segment's descriptor is missing";
  if (const char* wrong = SegmentError(fd.get(), info.bytes); wrong != nullptr) return wrong;
  const bool writes = info.kind == SegmentKind::kContribution;
  Mapping mapping = Mapping::Map(fd.get(), info.bytes,
                                 writes ? Mapping::Access::kReadWrite : Mapping::Access::kRead);
  if (!mapping.valid()) {
    return "a segment cannot be mapped: see this process's limits of memory (ulimit -v) and of "
           "mappings";
  }
  // A forked child must not write into this rank's contributions, nor keep them alive after it.
  if (writes) ::madvise(mapping.data(), mapping.bytes(), MADV_DONTFORK);
  if (!ReserveSegment()) return "no memory for a segment";
  KeepSegment({info.segment, info.kind, std::move(mapping)});
  return nullptr;
}

bool Client::ReserveSegment() {
  void* grown =
      std::realloc(static_cast<void*>(segments_), (segment_count_ + 1) * sizeof(*segments_));
  if (grown == nullptr) return false;
  segments_ = static_cast<MappedSegment*>(grown);
  return true;
}

void Client::KeepSegment(MappedSegment segment) {
  new (&segments_[segment_count_++]) MappedSegment(std::move(segment));
}

const char* Client::AdoptPeer(const Peer& peer) {
  const Descriptor fd = link_.socket().TakeDescriptor();
  if (!fd.valid()) return "the descriptor is missing";
  if (peers_ == nullptr || peer.local_rank >= identity_.local_size) return "there is no such rank";
  if (const char* wrong = SegmentError(fd.get(), peer.bytes); wrong != nullptr) return wrong;
  const MutexLock lock(state_mutex_);
  const bool writes = (in_place_parts_ >> peer.part & 1) != 0;
  Mapping mapping = Mapping::Map(fd.get(), peer.bytes,
                                 writes ? Mapping::Access::kReadWrite : Mapping::Access::kRead);
  if (!mapping.valid()) return "it cannot be mapped: see this process's limits of memory";
  ::madvise(mapping.data(), mapping.bytes(), MADV_DONTFORK);
  PeerPart& known = peers_[peer.local_rank * kPartsMax + peer.part];
  // What was there before, of a rank that has left, stays mapped: somebody may be reading it.
  if (!ReserveSegment()) return "no memory for a segment";
  known.bytes = peer.bytes;
  known.base.store(mapping.data(), std::memory_order_release);
  KeepSegment({0, SegmentKind::kResult, std::move(mapping)});
  return nullptr;
}

bool Client::Populate(Tensor& tensor) {
  if (tensor.populated.exchange(true)) return true;
  if (tensor.ranks_sum) {
    // Nobody else sets these pages aside.
    const uint64_t bytes = tensor.shape.bytes();
    BackWithHugePages(tensor.contribution, bytes);
    if (Advise(tensor.contribution, bytes, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) {
      tensor.populated.store(false);
      return false;
    }
    for (uint64_t at = 0; at < bytes; at += kPageBytes) {  // A kernel before 5.14.
      const_cast<volatile std::byte*>(tensor.contribution)[at] = std::byte{0};
    }
    return true;
  }
  if (tensor.bytes < kPopulateBytesMin) return true;
  // Kernels before 5.14 do not know it; pages come one by one then.
  if (tensor.contribution == nullptr) {  // On a GPU, and so are its results.
    tensor.populated.store(false);
    return true;
  }
  Advise(tensor.contribution, tensor.bytes, MADV_POPULATE_WRITE);
  Advise(tensor.result[0], tensor.bytes, MADV_POPULATE_READ);
  Advise(tensor.result[1], tensor.bytes, MADV_POPULATE_READ);
  return true;
}

std::byte* Client::Locate(const Location& location, SegmentKind kind, uint64_t bytes) const {
  for (uint32_t i = 0; i < segment_count_; ++i) {
    const MappedSegment& segment = segments_[i];
    if (segment.id != location.segment) continue;
    const uint64_t segment_bytes = segment.mapping.bytes();
    const bool inside = segment.kind == kind && bytes > 0 && bytes <= segment_bytes &&
                        location.offset <= segment_bytes - bytes && location.offset % 64 == 0;
    return inside ? segment.mapping.data() + location.offset : nullptr;
  }
  return nullptr;
}

// ---- Declaring
// ------------------------------------------------------------------------------------

bool Client::Post(const MessageBody& question, PendingAnswer& pending, const Deadline& deadline) {
  {
    const MutexLock lock(state_mutex_);
    pending.request = next_request_++;
    pending.next = pending_;
    pending_ = &pending;
  }
  const Message message{.request = pending.request, .body = question};
  // A broken socket ends the wait that follows, with what the agent said last.
  while (link_.socket().Send(message) == AgentSocket::Sent::kFull) {
    if (deadline.Passed(MonotonicNs())) return false;
    link_.socket().WaitWritable(deadline);
  }
  return true;
}

void Client::Withdraw(PendingAnswer& pending) {
  const MutexLock lock(state_mutex_);
  PendingAnswer** link = &pending_;
  while (*link != &pending) link = &(*link)->next;
  *link = pending.next;
}

Client::Awaited Client::Ask(const MessageBody& question, PendingAnswer& pending,
                            const Deadline& deadline, RankStatus* over) {
  Awaited awaited = Awaited::kTimeout;
  if (Post(question, pending, deadline)) {
    awaited = Await([&pending] { return pending.done.load(); }, deadline, {uncounted_}, over);
  }
  Withdraw(pending);
  return awaited;
}

RankStatus Client::PendingAnswer::Status(ErrorText& error) const {
  if (status == RankStatus::kOk) return status;
  const bool known = static_cast<uint32_t>(status) < kRankStatusCount;
  return error.Fail(known ? status : RankStatus::kInternal, "%s", text);
}

RankStatus Client::CheckDeclare(const Declare& declare, ErrorText& error) const {
  if (declare.name.empty() || declare.name.size() > kTensorNameBytesMax) {
    return error.Fail(RankStatus::kInvalidArgument, "a tensor's name has 1 to %zu bytes, not %zu",
                      kTensorNameBytesMax, declare.name.size());
  }
  if (DTypeSize(declare.dtype) == 0 || !IsValid(declare.op)) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%.*s': dtype %u or operation %u does not exist",
                      TALWEG_SHM_PRINTED(declare.name), static_cast<unsigned>(declare.dtype),
                      static_cast<unsigned>(declare.op));
  }
  const Collective collective = declare.collective();
  if (collective.row() == nullptr || collective.copies() != (collective.op == Op::kCopy)) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%.*s': there is no collective that gives %u and gets %u with "
                      "operation %u: see talweg_collective",
                      TALWEG_SHM_PRINTED(declare.name), static_cast<unsigned>(collective.gives),
                      static_cast<unsigned>(collective.gets), static_cast<unsigned>(collective.op));
  }
  if (const RankStatus group = CheckGroup(declare, error); group != RankStatus::kOk) return group;
  const bool is_old =
      collective.element_count > 0 && !IsGroup(declare) &&
      collective == Collective::Of(declare.dtype, declare.op, declare.element_count);
  if (is_old || link_.minor() >= kCollectivesMinor) return RankStatus::kOk;
  return error.Fail(RankStatus::kUnsupported,
                    "tensor '%.*s': the agent at '%s' speaks version %u.%u of the rank protocol, "
                    "which knows all_reduce and broadcast of one element or more by all ranks; "
                    "install the same release of both",
                    TALWEG_SHM_PRINTED(declare.name), link_.path(), kProtocolMajor, link_.minor());
}

RankStatus Client::CheckGroup(const Declare& declare, ErrorText& error) const {
  const RankList& ranks = declare.ranks;
  if (ranks.size() > kGroupRanksMax) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%.*s': its group has %u ranks; a group of some of the job's ranks "
                      "has at most %u",
                      TALWEG_SHM_PRINTED(declare.name), ranks.size(), kGroupRanksMax);
  }
  for (uint32_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i - 1] < ranks[i]) continue;
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%.*s': its group names rank %u after rank %u; give each rank once, "
                      "in ascending order",
                      TALWEG_SHM_PRINTED(declare.name), ranks[i], ranks[i - 1]);
  }
  if (ranks.empty() || ranks.Find(identity_.rank) < ranks.size()) return RankStatus::kOk;
  return error.Fail(RankStatus::kInvalidArgument,
                    "tensor '%.*s': this rank, %u, is not in its group; only the ranks of the "
                    "group may declare it",
                    TALWEG_SHM_PRINTED(declare.name), identity_.rank);
}

RankStatus Client::DeclareTensors(std::span<const Declare> declares, int64_t timeout_ns,
                                  uint32_t* tensors, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  for (const Declare& declare : declares) {
    if (const RankStatus status = CheckDeclare(declare, error); status != RankStatus::kOk) {
      return status;
    }
  }
  const size_t at_once = std::min(declares.size(), kDeclaresAtOnce);
  if (at_once == 0) return RankStatus::kOk;
  void* memory = std::calloc(at_once, sizeof(PendingAnswer));
  if (memory == nullptr) return error.Fail(RankStatus::kOutOfMemory, "no memory for declarations");
  auto* answers = static_cast<PendingAnswer*>(memory);
  const Deadline deadline(timeout_ns);
  RankStatus status = RankStatus::kOk;
  for (size_t first = 0; first < declares.size() && status == RankStatus::kOk; first += at_once) {
    const size_t count = std::min(at_once, declares.size() - first);
    status = DeclareSome(declares.subspan(first, count), answers, deadline, timeout_ns,
                         tensors + first, error);
  }
  std::free(memory);
  return status;
}

RankStatus Client::DeclareSome(std::span<const Declare> declares, PendingAnswer* answers,
                               const Deadline& deadline, int64_t timeout_ns, uint32_t* tensors,
                               ErrorText& error) {
  size_t posted = 0;
  bool in_time = true;
  while (in_time && posted < declares.size()) {
    PendingAnswer& pending = *new (&answers[posted]) PendingAnswer;
    pending.declare = &declares[posted];
    in_time = Post(declares[posted], pending, deadline);
    ++posted;
  }
  // The last first: answers mostly come in order, and then this thread sleeps once for all.
  RankStatus over = RankStatus::kOk;
  Awaited awaited = in_time ? Awaited::kDone : Awaited::kTimeout;
  for (size_t i = posted; i-- > 0 && awaited == Awaited::kDone;) {
    awaited =
        Await([&answers, i] { return answers[i].done.load(); }, deadline, {uncounted_}, &over);
  }
  for (size_t i = posted; i-- > 0;) Withdraw(answers[i]);

  for (size_t i = 0; i < posted; ++i) {
    RankStatus status = RankStatus::kOk;
    if (answers[i].done.load()) {
      status = TakeDeclared(declares[i], answers[i], &tensors[i], error);
    } else {
      char what[kTensorNameBytesMax + 32];
      std::snprintf(what, sizeof(what), "tensor '%.*s'", TALWEG_SHM_PRINTED(declares[i].name));
      if (awaited == Awaited::kOver) return health_.FailOver(over, what, error);
      status = error.Fail(
          RankStatus::kTimeout,
          "%s: the agent at '%s' has not agreed on it within %.3f s: see `talweg status`", what,
          link_.path(), static_cast<double>(timeout_ns) / 1e9);
    }
    if (status != RankStatus::kOk) return status;
  }
  return RankStatus::kOk;
}

RankStatus Client::TakeDeclared(const Declare& declare, const PendingAnswer& pending,
                                uint32_t* tensor, ErrorText& error) {
  if (const RankStatus status = pending.Status(error); status != RankStatus::kOk) return status;
  Tensor* found = Find(pending.declared.tensor);
  if (found == nullptr) {
    return error.Fail(RankStatus::kProtocol, "tensor '%.*s': the agent at '%s' answered with none",
                      TALWEG_SHM_PRINTED(declare.name), link_.path());
  }
  found->priority.store(declare.priority, std::memory_order_relaxed);
  if (!Populate(*found)) {
    return error.Fail(
        RankStatus::kOutOfMemory,
        "tensor '%.*s': the kernel has no memory for %s of %llu bytes (%s); free memory, or raise "
        "the memory limit of this process's control group",
        TALWEG_SHM_PRINTED(declare.name),
        found->shape.in_place ? "a contribution" : "two contributions",
        static_cast<unsigned long long>(found->bytes), std::strerror(errno));
  }
  if ((declare.flags & kDeclareInPlace) != 0) {
    if (found->ranks_sum && !found->shape.in_place) {
      return error.Fail(RankStatus::kUnsupported,
                        "tensor '%.*s': another rank has declared it otherwise, or the agent at "
                        "'%s' is of a release that sums nothing in place; declare it in place at "
                        "all ranks and run one release, or use talweg_declare_all",
                        TALWEG_SHM_PRINTED(declare.name), link_.path());
    }
    found->in_place.store(true, std::memory_order_relaxed);
  }
  if (found->name.load() == nullptr) {
    char* name = ::strndup(declare.name.data(), declare.name.size());
    char* none = nullptr;
    if (name != nullptr && !found->name.compare_exchange_strong(none, name)) std::free(name);
  }
  *tensor = pending.declared.tensor;
  return RankStatus::kOk;
}

Tensor* Client::Find(uint32_t tensor) const {
  return tensor < tensors_max_ ? tensors_[tensor].load(std::memory_order_acquire) : nullptr;
}

RankStatus Client::FailNoTensor(uint32_t tensor, ErrorText& error) const {
  return error.Fail(RankStatus::kInvalidArgument,
                    "%u is no tensor of this client: use what talweg_declare gave", tensor);
}

uint64_t Client::TensorBytes(uint32_t tensor) const {
  const Tensor* found = Find(tensor);
  return found == nullptr ? 0 : found->bytes;
}

uint32_t Client::PartsGiven(uint32_t tensor) const {
  const Tensor* found = Find(tensor);
  return found == nullptr ? 0 : found->gives.count;
}

uint32_t Client::PartsGot(uint32_t tensor) const {
  const Tensor* found = Find(tensor);
  return found == nullptr ? 0 : found->gets.count;
}

void* Client::Contribution(uint32_t tensor) const {
  const Tensor* found = fork_guard_.Forked() ? nullptr : Find(tensor);
  if (found == nullptr) return nullptr;
  const MutexLock lock(state_mutex_);
  // Part p of several lies p strides from there, also where there is room for the rank's alone.
  return reinterpret_cast<void*>(
      reinterpret_cast<uintptr_t>(found->ContributionOf(found->pushed + 1)) -
      found->bytes_before());
}

uint32_t Client::PartsHeld(uint32_t tensor) const {
  const Tensor* found = Find(tensor);
  if (found == nullptr) return 0;
  return found->ranks_sum ? found->shape.parts_held : found->buffer.part_count;
}

bool Client::SumsInPlace(uint32_t tensor) const {
  const Tensor* found = Find(tensor);
  return found != nullptr && found->shape.in_place;
}

}  // namespace talweg::shm
