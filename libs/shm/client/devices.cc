// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/devices.h"

namespace talweg::shm {

RankStatus Devices::Ask(const MessageBody& question, const char* what, int64_t timeout_ns,
                        PendingAnswer& pending, ErrorText& error) {
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

RankStatus Devices::Export(const shm::Export& exported, int64_t timeout_ns, uint32_t* buffer,
                           uint64_t* bytes, ErrorText& error) {
  PendingAnswer pending;
  const RankStatus status = Ask(exported, "memory of a GPU", timeout_ns, pending, error);
  if (status != RankStatus::kOk) return status;
  *buffer = pending.exported.buffer;
  *bytes = pending.exported.bytes;
  return RankStatus::kOk;
}

RankStatus Devices::Unexport(uint32_t buffer, int64_t timeout_ns, ErrorText& error) {
  PendingAnswer pending;
  return Ask(shm::Unexport{buffer}, "memory of a GPU", timeout_ns, pending, error);
}

RankStatus Devices::Place(RankTensor& tensor, uint32_t buffer, RoundSignature signature,
                          int64_t timeout_ns, GpuHandleBytes* pushed, GpuHandleBytes* taken,
                          ErrorText& error) {
  const uint32_t asked_at =
      states_.EventsLost();  // A loss from here on may affect the events in the answer.
  PendingAnswer pending;
  const RankStatus status =
      Ask(shm::Place{tensor.index, buffer, signature}, NameOf(tensor), timeout_ns, pending, error);
  if (status != RankStatus::kOk) return status;
  *pushed = pending.placed.pushed;
  *taken = pending.placed.taken;
  const MutexLock lock(state_mutex_);
  tensor.placed_at = asked_at;
  return RankStatus::kOk;
}

}  // namespace talweg::shm
