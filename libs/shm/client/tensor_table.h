// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_TENSOR_TABLE_H_
#define TALWEG_LIBS_SHM_CLIENT_TENSOR_TABLE_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// The tensors that this rank has declared, by the agent's numbers. A tensor stays until the client
// is freed. Any thread may look a tensor up; that is lock-free.
class TensorTable {
 public:
  TensorTable(const AgentLink& link, const ClientIdentity& identity, RankMemory& memory,
              ClientStatistics& statistics)
      : link_(link), identity_(identity), memory_(memory), statistics_(statistics) {}
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;
  ~TensorTable();

  // The thread that takes the Welcome calls it, alone. Returns false if there is no memory.
  bool Begin(uint32_t max);

  // Returns null if there is no such tensor.
  RankTensor* Find(uint32_t tensor) const;
  static RankStatus FailNoTensor(uint32_t tensor, ErrorText& error);
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t i = 0; tensors_ != nullptr && i < max_; ++i) {
      if (RankTensor* const tensor = Find(i); tensor != nullptr) visit(*tensor);
    }
  }

  // Whether the tensor is of only some of the job's ranks.
  bool IsGroup(const Declare& declare) const {
    return !declare.ranks.empty() &&
           (declare.collective().side || declare.ranks.size() != identity_.size);
  }
  // Finds the buffers of a declared tensor. Returns null, or what is wrong. Call with the client's
  // state mutex locked.
  const char* Adopt(const Declared& declared, const Declare& declare);

 private:
  const AgentLink& link_;
  const ClientIdentity& identity_;
  RankMemory& memory_;
  ClientStatistics& statistics_;
  std::atomic<RankTensor*>* tensors_ = nullptr;  // max_ of them.
  uint32_t max_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_TENSOR_TABLE_H_
