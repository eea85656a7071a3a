// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_DECLARE_REPLIES_H_
#define TALWEG_SERVICES_AGENT_DECLARE_REPLIES_H_

#include <absl/status/status.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libs/pipeline/effects.h"
#include "libs/shm/daemon/rank_server.h"
#include "services/agent/memory_order.h"
#include "services/agent/tensor_memory.h"

namespace talweg::agent {

shm::RankStatus ToRankStatus(pipeline::Status status);
// The core and the ranks use the same numbers.
inline shm::TensorIndex ToShm(pipeline::TensorIndex tensor) {
  return shm::TensorIndex{tensor.value()};
}

// Tells ranks of tensors in host memory, once their contributions have memory. For the core a rank
// is told when the core says so. If that is later, the rank then hears of the rounds that have
// ended since. Owned by the data thread.
class DeclareReplies {
 public:
  // There is no memory for a contribution. The other ranks would wait for it for ever.
  using OnFailure = std::function<void(const std::string& text)>;

  // All outlive this.
  DeclareReplies(shm::RankServer* server, TensorMemory* memory, MemoryOrders* orders,
                 OnFailure on_failure)
      : server_(server), memory_(memory), orders_(orders), on_failure_(std::move(on_failure)) {}

  // `reply.status` is kOk.
  void Reply(shm::RankConnectionId connection, const pipeline::DeclareReply& reply);
  void Publish(const pipeline::CompleteRound& completed);
  void OnRankGone(LocalRank rank);
  // The job has failed, or all ranks have gone.
  void Forget() { late_.clear(); }

 private:
  // A rank's declarations of a tensor that wait for memory.
  struct Late {
    shm::RankConnectionId connection;
    std::vector<pipeline::DeclareReply> replies;
    std::vector<pipeline::CompleteRound> completed;  // Since the first reply.
  };
  using TensorOfRank = std::pair<pipeline::TensorIndex, LocalRank>;

  void OnFilled(TensorOfRank which, const absl::Status& filled);
  void Tell(shm::RankConnectionId connection, const pipeline::DeclareReply& reply);
  void Tell(const pipeline::CompleteRound& completed);

  shm::RankServer* const server_;
  TensorMemory* const memory_;
  MemoryOrders* const orders_;
  const OnFailure on_failure_;
  std::map<TensorOfRank, Late> late_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_DECLARE_REPLIES_H_
