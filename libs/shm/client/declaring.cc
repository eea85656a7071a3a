// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/declaring.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "libs/base/collective.h"
#include "libs/shm/client/populate.h"

namespace talweg::shm {
namespace {

// How many declarations are under way at once: enough to keep the agent and the owners busy, and
// few enough that the agent can queue the answers for a rank that does not read yet.
constexpr size_t kDeclaresAtOnce = 256;

}  // namespace

RankStatus Declaring::Check(const Declare& declare, ErrorText& error) const {
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
  if (collective.side && link_.minor() < kStandbyMinor) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%.*s': the agent at '%s' speaks version %u.%u of the rank protocol, "
                      "and knows side tensors from 1.%u on; start a newer one",
                      TALWEG_SHM_PRINTED(declare.name), link_.path(), kProtocolMajor, link_.minor(),
                      kStandbyMinor);
  }
  if (!IsValid(collective.encoding)) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%.*s': there is no encoding %u: see talweg_encoding",
                      TALWEG_SHM_PRINTED(declare.name), static_cast<unsigned>(collective.encoding));
  }
  if (collective.encodes() && link_.minor() < kEncodingsMinor) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%.*s': the agent at '%s' speaks version %u.%u of the rank protocol, "
                      "and knows encodings from 1.%u on; start a newer one",
                      TALWEG_SHM_PRINTED(declare.name), link_.path(), kProtocolMajor, link_.minor(),
                      kEncodingsMinor);
  }
  if (collective.leaves_out() && link_.minor() < kPatienceMinor) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%.*s': the agent at '%s' speaks version %u.%u of the rank protocol, "
                      "and leaves late ranks out from 1.%u on; start a newer one",
                      TALWEG_SHM_PRINTED(declare.name), link_.path(), kProtocolMajor, link_.minor(),
                      kPatienceMinor);
  }
  const bool is_old =
      collective.element_count > 0 && !tensors_.IsGroup(declare) &&
      collective == Collective::Of(declare.dtype, declare.op, declare.element_count);
  if (is_old || link_.minor() >= kCollectivesMinor) return RankStatus::kOk;
  return error.Fail(RankStatus::kUnsupported,
                    "tensor '%.*s': the agent at '%s' speaks version %u.%u of the rank protocol, "
                    "which knows all_reduce and broadcast of one element or more by all ranks; "
                    "install the same release of both",
                    TALWEG_SHM_PRINTED(declare.name), link_.path(), kProtocolMajor, link_.minor());
}

RankStatus Declaring::CheckGroup(const Declare& declare, ErrorText& error) const {
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
  if (ranks.empty() || ranks.Find(identity_.number) < ranks.size()) return RankStatus::kOk;
  return error.Fail(RankStatus::kInvalidArgument,
                    "tensor '%.*s': this rank, %u, is not in its group; only the ranks of the "
                    "group may declare it",
                    TALWEG_SHM_PRINTED(declare.name), identity_.number);
}

RankStatus Declaring::DeclareAll(std::span<const Declare> declares, int64_t timeout_ns,
                                 uint32_t* tensors, ErrorText& error) {
  for (const Declare& declare : declares) {
    if (const RankStatus status = Check(declare, error); status != RankStatus::kOk) {
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

RankStatus Declaring::DeclareSome(std::span<const Declare> declares, PendingAnswer* answers,
                                  const Deadline& deadline, int64_t timeout_ns, uint32_t* tensors,
                                  ErrorText& error) {
  size_t posted = 0;
  bool in_time = true;
  while (in_time && posted < declares.size()) {
    PendingAnswer& pending = *new (&answers[posted]) PendingAnswer;
    pending.declare = &declares[posted];
    in_time = questions_.Post(declares[posted], pending, deadline);
    ++posted;
  }
  // Awaits the last one first: answers mostly come in order, so this thread sleeps only once.
  RankStatus over = RankStatus::kOk;
  Awaited awaited = in_time ? Awaited::kDone : Awaited::kTimeout;
  for (size_t i = posted; i-- > 0 && awaited == Awaited::kDone;) {
    awaited = questions_.AwaitAnswer(answers[i], deadline, &over);
  }
  for (size_t i = posted; i-- > 0;) questions_.Withdraw(answers[i]);

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

RankStatus Declaring::TakeDeclared(const Declare& declare, const PendingAnswer& pending,
                                   uint32_t* tensor, ErrorText& error) {
  if (const RankStatus status = pending.Status(error); status != RankStatus::kOk) return status;
  RankTensor* found = tensors_.Find(pending.declared.tensor);
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

}  // namespace talweg::shm
