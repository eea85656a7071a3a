// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ATTACHING_H_
#define TALWEG_LIBS_SHM_CLIENT_ATTACHING_H_

#include "libs/shm/client/client_health.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/client/tensor_table.h"

namespace talweg::shm {

// Moves the buffers of tensors that are summed in place: to an address of the caller's as well, or
// away from where they lie (docs/shared_memory.md, "In place"). Any thread, while the tensor has no
// open round. No address is ever unmapped.
class Attaching {
 public:
  Attaching(ClientHealth& health, RankMemory& memory, TensorTable& tensors, Mutex& state_mutex)
      : health_(health), memory_(memory), tensors_(tensors), state_mutex_(state_mutex) {}

  // Maps the tensor's buffer at `address` as well, over a shared mapping of the caller's. null: the
  // buffer is at no such place any more, and the last place is left as it is.
  RankStatus Attach(RankTensor& tensor, void* address, ErrorText& error);
  // If the tensor is attached, gives that place its own memory back, with the buffer's bytes.
  // Otherwise the memory of the contribution keeps its bytes and belongs to the caller until the
  // client is freed; the buffer lies elsewhere from now on.
  RankStatus Detach(RankTensor& tensor, ErrorText& error);

  // In a forked child: maps zeros where the parent's in-place tensors lie, for code that still
  // refers to one.
  void ReplaceInChild();

 private:
  // Refuses `purpose` unless the tensor is summed in place and has no open round. Call with the
  // state mutex locked.
  RankStatus CheckAtRest(const RankTensor& tensor, const char* purpose, ErrorText& error) const;
  RankStatus DetachPlace(RankTensor& tensor, ErrorText& error);
  RankStatus DetachBuffer(RankTensor& tensor, ErrorText& error);

  ClientHealth& health_;
  RankMemory& memory_;
  TensorTable& tensors_;
  Mutex& state_mutex_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ATTACHING_H_
