// SPDX-License-Identifier: Apache-2.0
//
// What ranks and the agent say to each other about whom a round waits for.
#include <limits>
#include <string>

#include "libs/shm/daemon/rank_server_impl.h"

namespace talweg::shm {

void RankServerImpl::OnAsk(Connection& connection, uint32_t request, const Ask& question,
                           RankEventSink& sink) {
  if (job_failure_) return;  // The rank has been told.
  if (question.tensor >= connection.tensors.size() ||
      !connection.tensors[question.tensor].declared) {
    return OnGarbage(connection,
                     "a question about tensor " + std::to_string(question.tensor) +
                         ", which it has not declared",
                     sink);
  }
  // By index: the sink may welcome ranks.
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->state == Connection::State::kActive) {
      DrainRing(*active_[i], std::numeric_limits<int>::max(), sink);
    }
  }
  if (connection.over()) return;
  sink.OnRankAsk(connection.id, RequestId(request), TensorIndex(question.tensor),
                 Round{question.round});
}

void RankServerImpl::ReplyTold(RankConnectionId id, RequestId request, const Told& answer) {
  Connection* connection = FindOpen(id);
  if (connection != nullptr) Send(*connection, {.request = request.value(), .body = answer});
}

}  // namespace talweg::shm
