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
// is freed. Looking is lock-free, for any thread.
class TensorTable {
 public:
  TensorTable(const AgentLink& link, const ClientIdentity& identity, RankMemory& memory,
              ClientStatistics& statistics)
      : link_(link), identity_(identity), memory_(memory), statistics_(statistics) {}
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;
  ~TensorTable();

  // With the Welcome, by its thread alone. False: no memory.
  bool Begin(uint32_t max);

  // Null when there is none.
  RankTensor* Find(uint32_t tensor) const;
  static RankStatus FailNoTensor(uint32_t tensor, ErrorText& error);
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t i = 0; tensors_ != nullptr && i < max_; ++i) {
      if (RankTensor* const tensor = Find(i); tensor != nullptr) visit(*tensor);
    }
  }

  // Whether it is of some of the job's ranks only.
  bool IsGroup(const Declare& declare) const {
    return !declare.ranks.empty() &&
           (declare.collective().side || declare.ranks.size() != identity_.size);
  }
  // Finds the buffers of what was declared. null, or what is wrong. With the client's state mutex
  // locked.
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
