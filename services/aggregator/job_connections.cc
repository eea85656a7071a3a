// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/job_connections.h"

#include <utility>

#include "libs/telemetry/log.h"

namespace talweg::aggregator {

void JobConnections::Add(ServedJob* job, JobConnection::Config config) {
  const ConnectionId id = config.id;
  entries_.try_emplace(id, job, std::move(config), share_);
}

JobConnections::Entry* JobConnections::Find(ConnectionId id) {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

const JobConnections::Entry* JobConnections::Find(ConnectionId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

void JobConnections::Close(ConnectionId id, const std::string& reason) {
  telemetry::Log(telemetry::LogLevel::kInfo, "closing connection ", id, ": ", reason);
  share_.transport->Close(id);
  Remove(id);
}

ServedJob* JobConnections::Remove(ConnectionId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  ServedJob* const job = found->second.job;
  found->second.connection.End();
  entries_.erase(found);
  return job;
}

std::vector<ConnectionId> JobConnections::TakeUnflushed() { return std::exchange(unflushed_, {}); }

void JobConnections::FlushKept() {
  for (auto& [id, entry] : entries_) {
    JobConnection& connection = entry.connection;
    if (!connection.has_news()) connection.FlushKept(entry.job->core.view().epoch);
  }
}

std::vector<ConnectionId> JobConnections::ids() const {
  std::vector<ConnectionId> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  return ids;
}

size_t JobConnections::CountOf(const DataPeer& peer) const {
  size_t count = 0;
  for (const auto& [id, entry] : entries_) count += entry.connection.peer().IsSame(peer) ? 1 : 0;
  return count;
}

}  // namespace talweg::aggregator
