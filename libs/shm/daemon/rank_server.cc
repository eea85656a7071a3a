// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rank_server.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "libs/shm/daemon/declaration.h"
#include "libs/shm/daemon/rank_server_impl.h"

namespace talweg::shm {
namespace {

// What epoll gives back: the listening socket, or a connection's id, the lowest bit telling its
// pidfd.
constexpr uint64_t kListenerKey = 0;
constexpr int kEventsMax = 64;
constexpr int kAcceptsMax = 16;       // In one turn.
constexpr int kReceivesMax = 4;       // That one rank may make in one turn.
constexpr int kLastReceivesMax = 64;  // From a rank that has ended: its goodbye may be among them.
// Connections that have not said hello yet; the oldest makes room.
constexpr size_t kSilentMax = 64;

}  // namespace

Connection* RankServerImpl::Find(RankConnectionId id) {
  const auto it = connections_.find(id);
  return it == connections_.end() ? nullptr : it->second.get();
}

Connection* RankServerImpl::FindOpen(RankConnectionId id) {
  Connection* connection = Find(id);
  return connection == nullptr || connection->over() ? nullptr : connection;
}

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
    Connection* connection = Find(RankConnectionId(key >> 1));
    if (connection == nullptr || connection->state == Connection::State::kGone) continue;
    const bool process_ended = (key & 1) != 0;
    handled += process_ended ? OnProcessEnded(*connection, sink) : OnSocketReady(*connection, sink);
  }
  if (sweep_) SweepReleased();
  return handled;
}

int RankServerImpl::AcceptAll() {
  int accepted = 0;
  for (; accepted < kAcceptsMax; ++accepted) {
    std::optional<RankListener::Peer> peer = listener_.Accept();
    if (!peer) break;
    auto owned = std::make_unique<Connection>();
    Connection& connection = *owned;
    connection.id = RankConnectionId(next_id_++);
    connection.pid = peer->pid;
    connection.uid = peer->uid;
    connection.socket.emplace(std::move(peer->socket));
    connections_.emplace(connection.id, std::move(owned));
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = connection.id.value() << 1}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.socket->fd(), &event) != 0) {
      RefuseWith(connection, RankStatus::kLimit,
                 std::string("the agent cannot watch another socket: ") + std::strerror(errno));
      continue;
    }
    // With more than the owner in the socket's mode, the kernel has let in whom the mode means.
    const bool allowed = peer->uid == ::geteuid() || (config_.socket_mode & 0022) != 0;
    if (!allowed) {
      RefuseWith(connection, RankStatus::kPermissionDenied,
                 "the agent of user " + std::to_string(::geteuid()) + " at '" +
                     config_.socket_path + "' does not serve user " + std::to_string(peer->uid) +
                     "; start that agent with --socket_mode=0660 and a --socket_group of both, or "
                     "an agent of your own");
      continue;
    }
    DropOldestSilent();
  }
  return accepted;
}

void RankServerImpl::DropOldestSilent() {
  size_t silent = 0;
  Connection* oldest = nullptr;
  for (auto& [id, connection] : connections_) {
    if (connection->state != Connection::State::kSilent) continue;
    if (oldest == nullptr) oldest = connection.get();
    ++silent;
  }
  if (silent > kSilentMax) {
    RefuseWith(*oldest, RankStatus::kLimit,
               "more than " + std::to_string(kSilentMax) +
                   " connections to the agent have not said hello; this was the oldest");
  }
}

int RankServerImpl::OnSocketReady(Connection& connection, RankEventSink& sink) {
  if (connection.socket->HasOutput()) AfterOutput(connection, connection.socket->Flush());
  int handled = 0;
  for (int i = 0; i < kReceivesMax && connection.state != Connection::State::kGone; ++i) {
    const RankSocket::Input input = connection.socket->Receive();
    if (connection.over()) {
      connection.socket->DiscardInput();  // Only its end is still of interest.
    } else {
      handled += HandleMessages(connection, sink);
    }
    if (input == RankSocket::Input::kNothing) break;
    if (input == RankSocket::Input::kEnded) {
      handled += OnEnded(connection, sink);
      break;
    }
  }
  return handled;
}

int RankServerImpl::OnProcessEnded(Connection& connection, RankEventSink& sink) {
  // A forked child may keep the socket open, so that no end comes from there. What the rank itself
  // sent before it ended counts.
  for (int i = 0; i < kLastReceivesMax && !connection.over(); ++i) {
    const RankSocket::Input input = connection.socket->Receive();
    HandleMessages(connection, sink);
    if (input != RankSocket::Input::kTaken) break;
  }
  return connection.state == Connection::State::kGone ? 1 : OnEnded(connection, sink);
}

int RankServerImpl::HandleMessages(Connection& connection, RankEventSink& sink) {
  int handled = 0;
  Message message;
  std::string error;
  while (!connection.over()) {
    const RankSocket::Next next = connection.socket->NextMessage(&message, &error);
    if (next == RankSocket::Next::kNone) break;
    ++handled;
    if (next == RankSocket::Next::kGarbage) {
      OnGarbage(connection, error, sink);
      break;
    }
    const Connection::State state = connection.state;
    if (const auto* hello = std::get_if<Hello>(&message.body);
        hello != nullptr && state == Connection::State::kSilent) {
      OnHello(connection, *hello, sink);
    } else if (const auto* declare = std::get_if<Declare>(&message.body);
               declare != nullptr && state == Connection::State::kActive) {
      OnDeclare(connection, message.request, *declare, sink);
    } else if (const auto* boundary = std::get_if<Boundary>(&message.body);
               boundary != nullptr && state == Connection::State::kActive) {
      OnBoundary(connection, message.request, *boundary, sink);
    } else if (const auto* ask = std::get_if<Ask>(&message.body);
               ask != nullptr && state == Connection::State::kActive) {
      OnAsk(connection, message.request, *ask, sink);
    } else if (std::holds_alternative<Goodbye>(message.body) &&
               state != Connection::State::kSilent) {
      OnGoodbye(connection, sink);
    } else if (std::holds_alternative<Doorbell>(message.body) &&
               state == Connection::State::kActive) {
      ++counters_.doorbells_received;
    } else if (state == Connection::State::kActive && OnDeviceMessage(connection, message, sink)) {
      continue;
    } else {
      const auto type = static_cast<MessageType>(message.body.index() + 1);
      OnGarbage(connection, std::string("a ") + MessageTypeName(type) + " message out of place",
                sink);
    }
  }
  return handled;
}

// ---- What ranks say -----------------------------------------------------------------------------

void RankServerImpl::OnHello(Connection& connection, const Hello& hello, RankEventSink& sink) {
  connection.client_name = Printable(hello.client_name);
  if (hello.major != kProtocolMajor) {
    RefuseWith(connection, RankStatus::kVersionMismatch,
               "the client speaks version " + std::to_string(hello.major) + "." +
                   std::to_string(hello.minor) + " of the rank protocol, the agent " +
                   std::to_string(kProtocolMajor) + "." + std::to_string(kProtocolMinor) +
                   "; install the same release of both");
    return;
  }
  if (job_failure_) {
    RefuseWith(connection, job_failure_->status, job_failure_->text);
    return;
  }
  connection.rings_to_await = hello.minor >= kRingsToAwaitMinor;
  connection.knows_in_place = hello.minor >= kInPlaceMinor;
  connection.knows_own_parts = hello.minor >= kOwnPartsMinor;
  connection.knows_one_place = hello.minor >= kOnePlaceMinor;
  uint32_t local_rank = hello.wanted_local_rank;
  const auto count = static_cast<uint32_t>(holders_.size());
  if (local_rank == kAnyLocalRank) {
    const auto free = std::find(holders_.begin(), holders_.end(), std::nullopt);
    if (free == holders_.end()) {
      RefuseWith(connection, RankStatus::kRankTaken,
                 "all " + std::to_string(count) +
                     " local ranks of this agent are taken; start no more ranks, or an agent with "
                     "more ranks per node");
      return;
    }
    local_rank = static_cast<uint32_t>(free - holders_.begin());
  } else if (local_rank >= count) {
    RefuseWith(connection, RankStatus::kInvalidArgument,
               "local rank " + std::to_string(local_rank) + " does not exist: this agent has " +
                   std::to_string(count) + " (0 to " + std::to_string(count - 1) +
                   "); start it with more ranks per node");
    return;
  } else if (holders_[local_rank]) {
    const Connection* holder = Find(*holders_[local_rank]);
    RefuseWith(connection, RankStatus::kRankTaken,
               "local rank " + std::to_string(local_rank) + " is taken by the process with pid " +
                   std::to_string(holder == nullptr ? 0 : holder->pid) + " ('" +
                   (holder == nullptr ? "" : holder->client_name) +
                   "'); end it, or choose another local rank (TALWEG_LOCAL_RANK)");
    return;
  }
  connection.local_rank = LocalRank(local_rank);
  connection.state = Connection::State::kAsking;
  holders_[local_rank] = connection.id;
  if (connection.pid > 0) {
    // glibc 2.36 has a wrapper; older ones have the number.
    connection.pidfd = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, connection.pid, 0)));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = connection.id.value() << 1 | 1}};
    if (connection.pidfd.valid()) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.pidfd.get(), &event);
    }
  }
  const std::string owner = "contributions of local rank " + std::to_string(local_rank);
  connection.budget = {.bytes_max = config_.contribution_bytes_max};
  connection.contributions.emplace(
      Arena::Config{SegmentUse::kContribution, config_.segment_bytes_min, owner},
      &connection.budget, &next_segment_);
  connection.one_places.emplace(
      Arena::Config{SegmentUse::kOnePlace, config_.segment_bytes_min, owner}, &connection.budget,
      &next_segment_);
  ++counters_.ranks_accepted;
  sink.OnRankHello(connection.id, {connection.local_rank, connection.pid, connection.uid,
                                   connection.client_name, (hello.flags & kHelloStandby) != 0});
}

void RankServerImpl::OnDeclare(Connection& connection, uint32_t request, const Declare& declare,
                               RankEventSink& sink) {
  if (job_failure_) return;  // The rank has been told.
  if (connection.asked.contains(RequestId(request))) {
    OnGarbage(
        connection,
        "a declaration with the number of one that is not answered yet, " + std::to_string(request),
        sink);
    return;
  }
  if (std::string error = DeclarationError(declare, connection.number, connection.job_size,
                                           connection.number_count);
      !error.empty()) {
    RefuseDeclaration(connection.id, RequestId(request), RankStatus::kInvalidArgument, error);
    return;
  }
  const Collective collective = declare.collective();
  const bool is_group =
      !declare.ranks.empty() && (collective.side || declare.ranks.size() != connection.job_size);
  RankDeclaration declaration{.name = std::string(declare.name),
                              .collective = collective,
                              .root_rank = collective.has_root() ? declare.root_rank : 0,
                              .rank_count = is_group ? declare.ranks.size() : connection.job_size,
                              .priority = declare.priority,
                              .on_device = (declare.flags & kDeclareOnDevice) != 0};
  for (uint32_t i = 0; is_group && i < declare.ranks.size(); ++i) {
    declaration.ranks.push_back(declare.ranks[i]);
  }
  if (declaration.on_device && !config_.takes_devices) {
    RefuseDeclaration(connection.id, RequestId(request), RankStatus::kUnsupported,
                      "tensor '" + declaration.name +
                          "' was declared on a GPU, of which this agent takes no memory; declare "
                          "it in host memory");
    return;
  }
  const BufferShape shape = declaration.shape();
  const bool is_simple = shape.all_get_one && !is_group;
  if (declaration.on_device && !is_simple) {
    RefuseDeclaration(connection.id, RequestId(request), RankStatus::kUnsupported,
                      "tensor '" + declaration.name + "' was declared on a GPU as " +
                          Describe(collective) + " of " + std::to_string(declaration.rank_count) +
                          " ranks; declare it in host memory, or an all_reduce or a broadcast of "
                          "all ranks");
    return;
  }
  declaration.in_place = is_simple && (declare.flags & kDeclareInPlace) != 0;
  declaration.one_place = declaration.in_place && connection.knows_one_place;
  const auto place_of = [&](uint32_t rank) { return is_group ? declare.ranks.Find(rank) : rank; };
  connection.asked[RequestId(request)] = {
      shape, Parts::Of(collective.gives, place_of(connection.number), declaration.rank_count,
                       place_of(declaration.root_rank), shape.part_count)};
  sink.OnRankDeclare(connection.id, RequestId(request), declaration);
}

void RankServerImpl::Garbage(RankConnectionId id, const std::string& why, RankEventSink& sink) {
  Connection* connection = FindOpen(id);
  if (connection != nullptr) OnGarbage(*connection, why, sink);
}

void RankServerImpl::OnGoodbye(Connection& connection, RankEventSink& sink) {
  if (connection.state == Connection::State::kActive) {
    DrainRing(connection, std::numeric_limits<int>::max(), sink);
    if (connection.over()) return;
    connection.said_goodbye = true;
    if (!connection.control->RingEmpty()) return;  // PollRings goes on.
  }
  SayGoodbye(connection, sink);
}

void RankServerImpl::SayGoodbye(Connection& connection, RankEventSink& sink) {
  const RankGone gone{connection.local_rank, connection.pid, true,
                      connection.Name() + " said goodbye"};
  Send(connection, {.body = Goodbye{}});
  Drain(connection);
  sink.OnRankGone(connection.id, gone);
}

void RankServerImpl::OnGarbage(Connection& connection, const std::string& why,
                               RankEventSink& sink) {
  ++counters_.protocol_errors;
  const std::string text =
      "the agent has disconnected this rank, which sent what makes no sense: " + why;
  if (connection.state == Connection::State::kSilent) {
    RefuseWith(connection, RankStatus::kProtocol, text);
    return;
  }
  const RankGone gone{connection.local_rank, connection.pid, false,
                      connection.Name() + " was disconnected: it sent what makes no sense: " + why};
  ++counters_.ranks_gone_unclean;
  FailRank(connection, RankStatus::kProtocol, text);
  sink.OnRankGone(connection.id, gone);
}

int RankServerImpl::OnEnded(Connection& connection, RankEventSink& sink) {
  if (connection.over() || connection.state == Connection::State::kSilent) {
    connection.released = connection.released || connection.state == Connection::State::kSilent;
    Close(connection);
    return 1;
  }
  if (connection.state == Connection::State::kActive) {
    DrainRing(connection, std::numeric_limits<int>::max(), sink);
    if (connection.over()) {
      Close(connection);
      return 1;
    }
    if (connection.said_goodbye) return 0;  // PollRings goes on; this is seen again.
  }
  const RankGone gone{connection.local_rank, connection.pid, false,
                      connection.Name() +
                          " ended without saying goodbye (killed, crashed, or it exited without a "
                          "shutdown)"};
  ++counters_.ranks_gone_unclean;
  Close(connection);
  sink.OnRankGone(connection.id, gone);
  return 1;
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
