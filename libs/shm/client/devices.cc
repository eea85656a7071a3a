// SPDX-License-Identifier: Apache-2.0
// Tensors that lie on GPUs: what this rank tells its agent of them. Nothing here calls a driver.
#include <cstdio>
#include <cstring>

#include "libs/shm/client/client.h"

namespace talweg::shm {

RankStatus Client::AskOfDevice(const MessageBody& question, const char* what, int64_t timeout_ns,
                               PendingAnswer& pending, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, what, error);
  switch (questions_.Ask(question, pending, Deadline(timeout_ns), &over)) {
    case Awaited::kDone: break;
    case Awaited::kOver: return health_.FailOver(over, what, error);
    case Awaited::kTimeout:
      return error.Fail(RankStatus::kTimeout, "%s: the agent at '%s' did not answer within %.3f s",
                        what, link_.path(), static_cast<double>(timeout_ns) / 1e9);
  }
  return pending.Status(error);
}

RankStatus Client::ExportBuffer(const Export& exported, int64_t timeout_ns, uint32_t* buffer,
                                uint64_t* bytes, ErrorText& error) {
  PendingAnswer pending;
  const RankStatus status = AskOfDevice(exported, "memory of a GPU", timeout_ns, pending, error);
  if (status != RankStatus::kOk) return status;
  *buffer = pending.exported.buffer;
  *bytes = pending.exported.bytes;
  return RankStatus::kOk;
}

RankStatus Client::UnexportBuffer(uint32_t buffer, int64_t timeout_ns, ErrorText& error) {
  PendingAnswer pending;
  return AskOfDevice(Unexport{buffer}, "memory of a GPU", timeout_ns, pending, error);
}

RankStatus Client::PlaceTensor(uint32_t index, uint32_t buffer, int64_t timeout_ns,
                               GpuHandleBytes* pushed, GpuHandleBytes* taken, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
  const uint32_t asked_at =
      states_.EventsLost();  // What is lost from here on may be what is answered.
  PendingAnswer pending;
  const RankStatus status =
      AskOfDevice(Place{index, buffer}, NameOf(*tensor), timeout_ns, pending, error);
  if (status != RankStatus::kOk) return status;
  *pushed = pending.placed.pushed;
  *taken = pending.placed.taken;
  const MutexLock lock(state_mutex_);
  tensor->placed_at = asked_at;
  return RankStatus::kOk;
}

RankStatus Client::PushOnDevice(uint32_t index, uint32_t buffer, uint64_t offset,
                                bool declared_priority, int32_t priority, int64_t timeout_ns,
                                uint64_t* round, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
  if (tensor->ranks_sum) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%s' was declared in host memory, where the ranks sum it; declare it "
                      "on a GPU first",
                      NameOf(*tensor));
  }
  {
    const MutexLock lock(state_mutex_);
    if (tensor->placed_at != states_.EventsLost()) return FailEventsLost(*tensor, error);
  }
  uint64_t flags = kPushOnDevice | uint64_t{buffer} << kPushBufferShift;
  std::byte* contribution = nullptr;
  bool nobody_sums = false;
  if (PushesAgain(*tensor)) {
    flags |= kPushAgain;
  } else if (const RankStatus begun =
                 BeginPush(*tensor, nullptr, &contribution, &nobody_sums, error);
             begun != RankStatus::kOk) {
    return begun;
  }
  return FinishPush(
      *tensor,
      {.entry = {.tensor = index, .priority = priority, .flags = flags, .device_offset = offset},
       .bytes = tensor->gives.count * tensor->buffer.part_bytes},
      declared_priority, timeout_ns, round, error);
}

// Whether what is pushed now is the round that is open; it is being pushed then.
bool Client::PushesAgain(Tensor& tensor) {
  const MutexLock lock(state_mutex_);
  const bool again = !tensor.pushing && tensor.pushed > tensor.taken && tensor.on_device &&
                     tensor.pushed_at.load(std::memory_order_relaxed) != tensor.placed_at;
  if (again) tensor.pushing = true;
  return again;
}

}  // namespace talweg::shm
