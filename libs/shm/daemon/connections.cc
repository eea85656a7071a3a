// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/connections.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace talweg::shm {
namespace {

// The most connections that have not said hello; then the oldest is dropped.
constexpr size_t kSilentMax = 64;

}  // namespace

Connection* Connections::Find(RankConnectionId id) {
  const auto it = connections_.find(id);
  return it == connections_.end() ? nullptr : it->second.get();
}

Connection* Connections::FindOpen(RankConnectionId id) {
  Connection* connection = Find(id);
  return connection == nullptr || connection->over() ? nullptr : connection;
}

void Connections::Add(RankListener::Peer peer) {
  auto owned = std::make_unique<Connection>();
  Connection& connection = *owned;
  connection.id = RankConnectionId(next_id_++);
  connection.pid = peer.pid;
  connection.uid = peer.uid;
  connection.socket.emplace(std::move(peer.socket));
  connections_.emplace(connection.id, std::move(owned));
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = SocketKey(connection.id)}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.socket->fd(), &event) != 0) {
    Refuse(connection, RankStatus::kLimit,
           std::string("the agent cannot watch another socket: ") + std::strerror(errno));
    return;
  }
  // If the mode admits more than the owner, the kernel lets in only those whom it admits.
  const bool allowed = peer.uid == ::geteuid() || (config_->socket_mode & 0022) != 0;
  if (!allowed) {
    Refuse(connection, RankStatus::kPermissionDenied,
           "the agent of user " + std::to_string(::geteuid()) + " at '" + config_->socket_path +
               "' does not serve user " + std::to_string(peer.uid) +
               "; start that agent with --socket_mode=0660 and a --socket_group of both, or "
               "an agent of your own");
    return;
  }
  DropOldestSilent();
}

void Connections::DropOldestSilent() {
  size_t silent = 0;
  Connection* oldest = nullptr;
  for (auto& [id, connection] : connections_) {
    if (connection->state != Connection::State::kSilent) continue;
    if (oldest == nullptr) oldest = connection.get();
    ++silent;
  }
  if (silent > kSilentMax) {
    Refuse(*oldest, RankStatus::kLimit,
           "more than " + std::to_string(kSilentMax) +
               " connections to the agent have not said hello; this was the oldest");
  }
}

bool Connections::TakeLocalRank(Connection& connection, uint32_t wanted) {
  uint32_t local_rank = wanted;
  const auto count = static_cast<uint32_t>(holders_.size());
  if (local_rank == kAnyLocalRank) {
    const auto free = std::find(holders_.begin(), holders_.end(), std::nullopt);
    if (free == holders_.end()) {
      Refuse(connection, RankStatus::kRankTaken,
             "all " + std::to_string(count) +
                 " local ranks of this agent are taken; start no more ranks, or an agent with "
                 "more ranks per node");
      return false;
    }
    local_rank = static_cast<uint32_t>(free - holders_.begin());
  } else if (local_rank >= count) {
    Refuse(connection, RankStatus::kInvalidArgument,
           "local rank " + std::to_string(local_rank) + " does not exist: this agent has " +
               std::to_string(count) + " (0 to " + std::to_string(count - 1) +
               "); start it with more ranks per node");
    return false;
  } else if (holders_[local_rank]) {
    const Connection* holder = Find(*holders_[local_rank]);
    Refuse(connection, RankStatus::kRankTaken,
           "local rank " + std::to_string(local_rank) + " is taken by the process with pid " +
               std::to_string(holder == nullptr ? 0 : holder->pid) + " ('" +
               (holder == nullptr ? "" : holder->client_name) +
               "'); end it, or choose another local rank (TALWEG_LOCAL_RANK)");
    return false;
  }
  connection.local_rank = LocalRank(local_rank);
  connection.state = Connection::State::kAsking;
  holders_[local_rank] = connection.id;
  if (connection.pid > 0) {
    // glibc 2.36 has a wrapper; older releases have only the number.
    connection.pidfd = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, connection.pid, 0)));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = ProcessKey(connection.id)}};
    if (connection.pidfd.valid()) {
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.pidfd.get(), &event);
    }
  }
  return true;
}

void Connections::Activate(Connection& connection, RankControl control) {
  connection.control.emplace(std::move(control));
  connection.state = Connection::State::kActive;
  active_.push_back(&connection);
}

void Connections::Send(Connection& connection, const Message& message, std::vector<int> borrowed,
                       std::vector<Descriptor> owned) {
  if (!connection.socket) return;
  AfterOutput(connection, connection.socket->Send(message, std::move(borrowed), std::move(owned)));
}

void Connections::Flush(Connection& connection) {
  if (connection.socket->HasOutput()) AfterOutput(connection, connection.socket->Flush());
}

void Connections::AfterOutput(Connection& connection, RankSocket::Output output) {
  if (!connection.socket) return;
  if (output == RankSocket::Output::kBroken) {
    // Shuts both directions down. The end is then read, and handled where all ends are.
    ::shutdown(connection.socket->fd(), SHUT_RDWR);
    if (connection.state == Connection::State::kDraining) Close(connection);
    return;
  }
  if (connection.state == Connection::State::kDraining && !connection.socket->HasOutput()) {
    Close(connection);
    return;
  }
  const bool wanted = connection.socket->HasOutput();
  if (wanted == connection.writes_wanted) return;
  connection.writes_wanted = wanted;
  const uint32_t writes = wanted ? uint32_t{EPOLLOUT} : 0;
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP | writes,
                    .data = {.u64 = SocketKey(connection.id)}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.socket->fd(), &event);
}

void Connections::Wake(Connection& connection, RankControl::Waiter waiter,
                       std::optional<uint32_t> tensor) {
  if (connection.control->WakeNeeded(waiter, tensor)) SendWake(connection);
}

void Connections::SendWake(Connection& connection) {
  if (!connection.socket->SendWake()) return;
  connection.control->OnWakeSent();
  ++counters_->wakes_sent;
  AfterOutput(connection, RankSocket::Output::kQueued);
}

void Connections::Refuse(Connection& connection, RankStatus status, std::string_view text) {
  ++counters_->ranks_refused;
  connection.released = true;
  Send(connection, {.body = Welcome{.status = status, .text = text}});
  Drain(connection);
}

void Connections::Fail(Connection& connection, RankStatus status, std::string_view text) {
  if (connection.state == Connection::State::kAsking) {
    Send(connection, {.body = Welcome{.status = status, .text = text}});
  } else {
    connection.control->PublishFailure(status, text);
    Send(connection, {.body = Lost{status, text}});
  }
  Drain(connection);
}

void Connections::Garbage(Connection& connection, const std::string& why, RankEventSink& sink) {
  ++counters_->protocol_errors;
  const std::string text =
      "the agent has disconnected this rank, which sent what makes no sense: " + why;
  if (connection.state == Connection::State::kSilent) {
    Refuse(connection, RankStatus::kProtocol, text);
    return;
  }
  const RankGone gone{connection.local_rank, connection.pid, false,
                      connection.Name() + " was disconnected: it sent what makes no sense: " + why};
  ++counters_->ranks_gone_unclean;
  Fail(connection, RankStatus::kProtocol, text);
  sink.OnRankGone(connection.id, gone);
}

void Connections::SayGoodbye(Connection& connection, RankEventSink& sink) {
  const RankGone gone{connection.local_rank, connection.pid, true,
                      connection.Name() + " said goodbye"};
  Send(connection, {.body = Goodbye{}});
  Drain(connection);
  sink.OnRankGone(connection.id, gone);
}

void Connections::Drain(Connection& connection) {
  if (connection.over()) return;
  FreeLocalRank(connection);
  connection.state = Connection::State::kDraining;
  sweep_ = true;
  if (!connection.socket || !connection.socket->HasOutput()) Close(connection);
}

void Connections::Close(Connection& connection) {
  if (connection.state == Connection::State::kGone) return;
  FreeLocalRank(connection);
  connection.state = Connection::State::kGone;
  // Closing a descriptor removes it from epoll, because nobody else holds it.
  connection.socket.reset();
  connection.pidfd.Reset();
  connection.control.reset();
  sweep_ = true;
}

void Connections::FreeLocalRank(Connection& connection) {
  // A connection that has not said hello holds no local rank.
  std::optional<RankConnectionId>& holder = holders_[connection.local_rank.value()];
  if (holder == connection.id) holder.reset();
}

void Connections::Release(RankConnectionId id) {
  Connection* connection = Find(id);
  if (connection == nullptr || !connection->over()) return;
  connection->released = true;
  sweep_ = true;
}

void Connections::Sweep() {
  if (!sweep_) return;
  sweep_ = false;
  std::erase_if(active_, [](const Connection* connection) { return connection->over(); });
  std::erase_if(connections_, [](const auto& entry) {
    return entry.second->state == Connection::State::kGone && entry.second->released;
  });
}

void Connections::FailAll(RankStatus status, std::string_view text) {
  if (job_failure_) return;
  job_failure_ = Failure{status, std::string(text)};
  for (auto& [id, connection] : connections_) {
    if (connection->state == Connection::State::kAsking) {
      Refuse(*connection, status, text);
    } else if (connection->state == Connection::State::kActive) {
      connection->control->PublishFailure(status, text);
      // The rank is not disconnected: it may still say goodbye, and its death is still reported.
      Send(*connection, {.body = Lost{status, text}});
    }
  }
}

}  // namespace talweg::shm
