// SPDX-License-Identifier: Apache-2.0
//
// What ranks and the agent say to each other about steps and views (docs/elastic.md).
#include <algorithm>
#include <limits>

#include "libs/shm/daemon/rank_server_impl.h"

namespace talweg::shm {

void RankServerImpl::OnBoundary(Connection& connection, uint32_t request, const Boundary& question,
                                RankEventSink& sink) {
  if (job_failure_) return;  // The rank has been told.
  // What it has pushed belongs to the step that it has ended.
  DrainRing(connection, std::numeric_limits<int>::max(), sink);
  if (!connection.over()) sink.OnRankBoundary(connection.id, RequestId(request), question);
}

uint64_t RankServerImpl::PublishStop(RankConnectionId id, uint64_t stop_at) {
  Connection* connection = FindOpen(id);
  return connection == nullptr || !connection->control ? 0
                                                       : connection->control->PublishStop(stop_at);
}

void RankServerImpl::PublishEpoch(Epoch epoch) {
  epoch_ = epoch;
  for (Connection* connection : active_) {
    if (connection->control) connection->control->PublishEpoch(epoch.value());
  }
}

void RankServerImpl::ReplyMembership(RankConnectionId id, RequestId request,
                                     const RankMembership& answer) {
  Connection* connection = FindOpen(id);
  if (connection != nullptr) Send(*connection, {.request = request.value(), .body = answer});
}

void RankServerImpl::Renumber(RankConnectionId id, Rank rank, uint32_t size,
                              const RankNumbers& numbers) {
  Connection* connection = FindOpen(id);
  if (connection == nullptr) return;
  connection->number = numbers.own.value_or(rank.value());
  connection->job_size = size;
  connection->number_count = std::max(numbers.count, size);
}

}  // namespace talweg::shm
