// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/rank_tensor.h"

namespace talweg::shm {

const char* NameOf(const RankTensor& tensor) {
  const char* name = tensor.name.load(std::memory_order_acquire);
  return name == nullptr ? "?" : name;
}

RankStatus FailOnDevice(const RankTensor& tensor, ErrorText& error) {
  return error.Fail(RankStatus::kInvalidArgument,
                    "tensor '%s' was pushed from a GPU, where its result is: there is none in host "
                    "memory; wait without `out`",
                    NameOf(tensor));
}

RankStatus FailNotPushed(const RankTensor& tensor, uint64_t round, ErrorText& error) {
  return error.Fail(RankStatus::kInvalidArgument,
                    "tensor '%s': round %llu has not been pushed; the last one is %llu",
                    NameOf(tensor), static_cast<unsigned long long>(round),
                    static_cast<unsigned long long>(tensor.pushed));
}

RankStatus FailEventsLost(const RankTensor& tensor, ErrorText& error) {
  return error.Fail(RankStatus::kEventsLost,
                    "tensor '%s': the agent has lost its GPU, and with it the tensor's events, and "
                    "has opened it again: place the tensor (talweg_gpu_place), open the events, "
                    "record `pushed` and push again",
                    NameOf(tensor));
}

}  // namespace talweg::shm
