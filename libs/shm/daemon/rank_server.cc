// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rank_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/shm/daemon/rank_server_impl.h"

namespace talweg::shm {
namespace {

// What epoll returns for the listening socket. No connection has this key: ids begin with 1.
constexpr uint64_t kListenerKey = 0;
constexpr int kEventsMax = 64;
constexpr int kAcceptsMax = 16;  // In one turn.

}  // namespace

int RankServerImpl::PollSockets(RankEventSink& sink) {
  std::array<epoll_event, kEventsMax> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, 0);
  int handled = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[static_cast<size_t>(i)].data.u64;
    if (key == kListenerKey) {
      handled += AcceptAll();
      continue;
    }
    Connection* connection = connections_.Find(Connections::IdOf(key));
    if (connection == nullptr || connection->state == Connection::State::kGone) continue;
    handled += Connections::IsProcess(key) ? messages_.OnProcessEnded(*connection, sink)
                                           : messages_.OnSocketReady(*connection, sink);
  }
  connections_.Sweep();
  return handled;
}

int RankServerImpl::AcceptAll() {
  int accepted = 0;
  for (; accepted < kAcceptsMax; ++accepted) {
    std::optional<RankListener::Peer> peer = listener_.Accept();
    if (!peer) break;
    connections_.Add(*std::move(peer));
  }
  return accepted;
}

void RankServerImpl::Send(RankConnectionId id, const Message& message) {
  Connection* connection = connections_.FindOpen(id);
  if (connection != nullptr) connections_.Send(*connection, message);
}

void RankServerImpl::Beat() {
  for (Connection* connection : connections_.active()) {
    if (connection->is_active()) connection->control->PublishBeat();
  }
}

void RankServerImpl::Welcome(RankConnectionId id, const WelcomeData& data) {
  Connection* connection = connections_.Find(id);
  if (connection == nullptr || connection->state != Connection::State::kAsking) return;
  const ControlShape shape{config_.ring_capacity, config_.tensors_max};
  Outcome<RankControl> control =
      RankControl::Create(shape, {.incarnation = config_.incarnation.value(),
                                  .rank = data.rank.value(),
                                  .size = data.size,
                                  .local_rank = connection->local_rank.value(),
                                  .local_size = data.local_size,
                                  .node_rank = data.node_rank.value(),
                                  .node_count = data.node_count,
                                  .silence_ms = config_.silence_ms});
  if (!control.ok()) {
    connections_.Refuse(*connection, control.failure().status, control.failure().text);
    return;
  }
  connection->number = data.numbers.own.value_or(data.rank.value());
  connection->job_size = data.size;
  connection->number_count = std::max(data.numbers.count, data.size);
  connections_.Activate(*connection, std::move(control).value());
  connection->control->PublishSleepSequence(rings_.sleep_sequence());
  connection->control->PublishEpoch(epoch_.value());
  const std::string_view job_name(data.job_name);
  const shm::Welcome welcome{.rank = data.rank.value(),
                             .size = data.size,
                             .local_rank = connection->local_rank.value(),
                             .local_size = data.local_size,
                             .node_rank = data.node_rank.value(),
                             .node_count = data.node_count,
                             .ring_capacity = shape.ring_capacity,
                             .tensors_max = shape.tensors_max,
                             .control_bytes = connection->control->bytes(),
                             .job_name = job_name.substr(0, kJobNameBytesMax),
                             .flags = data.standby ? kWelcomeStandby : 0,
                             .number = connection->number};
  std::vector<Descriptor> owned;
  owned.push_back(connection->control->TakeDescriptor());
  connections_.Send(*connection, {.body = welcome}, {}, std::move(owned));
}

void RankServerImpl::Refuse(RankConnectionId id, RankStatus status, std::string_view text) {
  Connection* connection = connections_.Find(id);
  if (connection == nullptr || connection->state != Connection::State::kAsking) return;
  connections_.Refuse(*connection, status, text);
}

void RankServerImpl::Disconnect(RankConnectionId id, RankStatus status, std::string_view text) {
  Connection* connection = connections_.FindOpen(id);
  if (connection != nullptr) connections_.Fail(*connection, status, text);
}

void RankServerImpl::Garbage(RankConnectionId id, const std::string& why, RankEventSink& sink) {
  Connection* connection = connections_.FindOpen(id);
  if (connection != nullptr) connections_.Garbage(*connection, why, sink);
}

void RankServerImpl::Renumber(RankConnectionId id, Rank rank, uint32_t size,
                              const RankNumbers& numbers) {
  Connection* connection = connections_.FindOpen(id);
  if (connection == nullptr) return;
  connection->number = numbers.own.value_or(rank.value());
  connection->job_size = size;
  connection->number_count = std::max(numbers.count, size);
}

Outcome<Location> RankServerImpl::PlaceContribution(RankConnectionId id, const SharedPlace& place) {
  Connection* connection = connections_.FindOpen(id);
  if (connection == nullptr) return Failure{RankStatus::kClosed, "the rank is gone"};
  bool is_new = false;
  Outcome<Location> location = memory_.Place(*connection, place, &is_new);
  if (is_new) {
    for (auto& [other, peer] : connections_.all()) {
      peer->peer_parts &= ~(uint64_t{1} << place.part);
    }
  }
  return location;
}

void RankServerImpl::DropTensorMemory() {
  // Output that waits for an ended rank may carry descriptors of results.
  for (auto& [id, connection] : connections_.all()) {
    TALWEG_CHECK(connection->over() || connection->tensors.empty());
    if (connection->over()) connections_.Close(*connection);
  }
  memory_.Clear();
}

uint64_t RankServerImpl::PublishStop(RankConnectionId id, uint64_t stop_at) {
  Connection* connection = connections_.FindOpen(id);
  return connection == nullptr || !connection->control ? 0
                                                       : connection->control->PublishStop(stop_at);
}

uint64_t RankServerImpl::StepsEnded(RankConnectionId id) {
  const Connection* connection = connections_.FindOpen(id);
  return connection == nullptr || !connection->control ? 0 : connection->control->StepsEnded();
}

void RankServerImpl::PublishEpoch(Epoch epoch) {
  epoch_ = epoch;
  for (Connection* connection : connections_.active()) {
    if (connection->control) connection->control->PublishEpoch(epoch.value());
  }
}

void RankServerImpl::PublishEventsLost(RankConnectionId id) {
  Connection* connection = connections_.Find(id);
  if (connection == nullptr || !connection->is_active()) return;
  connection->control->PublishEventsLost();
  connections_.Wake(*connection, RankControl::Waiter::kForRound);
}

void RankServerImpl::PublishCompletion(const Completion& completion) {
  ++counters_.completions;
  const uint32_t index = completion.tensor.value();
  const bool goes_on = completion.status == RankStatus::kMismatch &&
                       rings_.EverybodyHasPushed(index, completion.round.value());
  for (Connection* connection : connections_.active()) {
    if (!connection->is_active() || !connection->HasDeclared(index)) continue;
    TensorOfRank& tensor = connection->tensors[index];
    if (completion.round.value() <= tensor.completed) continue;
    tensor.completed = completion.round.value();
    if (tensor.data.shared && completion.status == RankStatus::kOk) {
      IntroducePeers(*connection, tensor.data.shared->part);
      if (!connection->is_active()) continue;
    }
    if (tensor.given.may_come_late && completion.status == RankStatus::kOk) {
      connection->control->PublishGoodRound(
          index, {.round = tensor.completed,
                  .ranks_summed = completion.ranks_summed,
                  .left_out = completion.LeavesOut(connection->local_rank)});
    }
    connection->control->PublishState(index, tensor.completed, completion.status, completion.text,
                                      completion.ranks_summed, completion.sum_epoch.value(),
                                      goes_on);
    connections_.Wake(*connection, RankControl::Waiter::kForRound, index);
  }
}

void RankServerImpl::PublishArrival(TensorIndex tensor, uint64_t bytes) {
  const uint32_t index = tensor.value();
  for (Connection* connection : connections_.active()) {
    if (!connection->is_active() || !connection->control->WakeNeededForBytes(index, bytes)) {
      continue;
    }
    connections_.SendWake(*connection);
  }
}

void RankServerImpl::IntroducePeers(Connection& connection, uint32_t part) {
  const uint64_t bit = uint64_t{1} << part;
  if ((connection.peer_parts & bit) != 0) return;
  connection.peer_parts |= bit;
  // Includes ranks that have left: the round holds what they pushed.
  for (auto& [id, peer] : connections_.all()) {
    const SharedArena::Part* theirs = peer->shared.FindPart(part);
    if (peer.get() == &connection || peer->released || theirs == nullptr ||
        !connection.known_segments.insert(theirs->id).second) {
      continue;
    }
    // All ranks have pushed a round of this part, so each has mapped its own segment.
    if (!theirs->in_place) SealAgainstWriters(theirs->segment);
    Descriptor copy(::fcntl(theirs->segment.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      ::shutdown(connection.socket->fd(), SHUT_RDWR);  // Its end is handled later.
      return;
    }
    std::vector<Descriptor> owned;
    owned.push_back(std::move(copy));
    connections_.Send(connection,
                      {.body = Peer{peer->local_rank.value(), part, theirs->segment.bytes}}, {},
                      std::move(owned));
  }
}

Outcome<std::unique_ptr<RankServer>> RankServer::Create(RankServerConfig config) {
  const ControlShape shape{config.ring_capacity, config.tensors_max};
  if (!shape.Valid()) {
    return Failure{RankStatus::kInvalidArgument,
                   "ring_capacity " + std::to_string(config.ring_capacity) +
                       " must be a power of two up to " + std::to_string(kRingCapacityMax) +
                       ", tensors_max " + std::to_string(config.tensors_max) + " 1 to " +
                       std::to_string(kTensorsMax)};
  }
  if (config.local_rank_count == 0) {
    return Failure{RankStatus::kInvalidArgument,
                   "an agent needs at least one rank (local_rank_count)"};
  }
  Outcome<RankListener> listener =
      RankListener::Create({config.socket_path, config.socket_mode, config.socket_gid});
  if (!listener.ok()) return listener.failure();
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kListenerKey}};
  if (!epoll.valid() ||
      ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.value().fd(), &event) != 0) {
    return Failure{RankStatus::kLimit, std::string("epoll: ") + std::strerror(errno) +
                                           "; raise the limit of open files (ulimit -n)"};
  }
  return Outcome<std::unique_ptr<RankServer>>(std::make_unique<RankServerImpl>(
      std::move(config), std::move(listener).value(), std::move(epoll)));
}

}  // namespace talweg::shm
