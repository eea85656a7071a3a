// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "libs/base/check.h"
#include "libs/shm/daemon/rank_server_impl.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {
namespace {

Outcome<Arena::Buffer> AllocateFrom(Connection* connection, std::optional<Arena> Connection::*arena,
                                    uint64_t bytes) {
  if (connection == nullptr || !(connection->*arena)) {
    return Failure{RankStatus::kClosed, "the rank is gone"};
  }
  return (connection->*arena)->Allocate(bytes);
}

}  // namespace

// ---- What the agent says ------------------------------------------------------------------------

void RankServerImpl::Welcome(RankConnectionId id, const WelcomeData& data) {
  Connection* connection = FindOpen(id);
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
    RefuseWith(*connection, control.failure().status, control.failure().text);
    return;
  }
  connection->control.emplace(std::move(control).value());
  connection->number = data.numbers.own.value_or(data.rank.value());
  connection->job_size = data.size;
  connection->number_count = std::max(data.numbers.count, data.size);
  connection->state = Connection::State::kActive;
  active_.push_back(connection);
  connection->control->PublishSleepSequence(sleep_sequence_);
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
  Send(*connection, {.body = welcome}, {}, std::move(owned));
}

void RankServerImpl::Refuse(RankConnectionId id, RankStatus status, std::string_view text) {
  Connection* connection = FindOpen(id);
  if (connection == nullptr || connection->state != Connection::State::kAsking) return;
  RefuseWith(*connection, status, text);
}

void RankServerImpl::RefuseWith(Connection& connection, RankStatus status, std::string_view text) {
  ++counters_.ranks_refused;
  connection.released = true;
  Send(connection, {.body = shm::Welcome{.status = status, .text = text}});
  Drain(connection);
}

Outcome<ContributionBuffer> RankServerImpl::AllocateContribution(RankConnectionId id,
                                                                 uint64_t bytes) {
  Outcome<Arena::Buffer> buffer = AllocateFrom(FindOpen(id), &Connection::contributions, bytes);
  if (!buffer.ok()) return buffer.failure();
  return ContributionBuffer{buffer.value().location, buffer.value().bytes};
}

Outcome<ResultBuffer> RankServerImpl::AllocateOnePlace(RankConnectionId id, uint64_t bytes) {
  Outcome<Arena::Buffer> buffer = AllocateFrom(FindOpen(id), &Connection::one_places, bytes);
  if (!buffer.ok()) return buffer.failure();
  return ResultBuffer{buffer.value().location, buffer.value().bytes};
}

Outcome<Location> RankServerImpl::PlaceContribution(RankConnectionId id, const SharedPlace& place) {
  Connection* connection = FindOpen(id);
  if (connection == nullptr) return Failure{RankStatus::kClosed, "the rank is gone"};
  const bool is_new = connection->shared.FindPart(place.part) == nullptr;
  Outcome<Location> location = connection->shared.At(place, &next_segment_);
  if (is_new) {
    for (auto& [other, peer] : connections_) peer->peer_parts &= ~(uint64_t{1} << place.part);
  }
  return location;
}

Outcome<ResultBuffer> RankServerImpl::AllocateResult(uint64_t bytes) {
  Outcome<Arena::Buffer> buffer = results_.Allocate(bytes);
  if (!buffer.ok()) return buffer.failure();
  return ResultBuffer{buffer.value().location, buffer.value().bytes};
}

void RankServerImpl::DropTensorMemory() {
  // What still waits to be sent to a rank that has ended may carry descriptors of results.
  for (auto& [id, connection] : connections_) {
    TALWEG_CHECK(connection->over() || connection->tensors.empty());
    if (connection->over()) Close(*connection);
  }
  results_.Clear();
  plan_.Clear();
}

void RankServerImpl::ReplyDeclared(RankConnectionId id, RequestId request,
                                   const DeclaredData& data) {
  Connection* connection = FindOpen(id);
  if (connection == nullptr || connection->state != Connection::State::kActive) return;
  const uint32_t index = data.tensor.value();
  TALWEG_CHECK(index < config_.tensors_max);
  const auto asked = connection->asked.find(request);
  if (asked == connection->asked.end()) return;  // A rank that had this place before has asked.
  if (data.shared && data.shared->in_place && !connection->knows_in_place) {
    RefuseDeclaration(id, request, RankStatus::kVersionMismatch,
                      "the other ranks of this node sum this tensor in place, which " +
                          connection->Name() +
                          " does not know; install the same release of libtalweg for all ranks");
    return;
  }
  const BufferShape& shape = asked->second.shape;
  if (data.shared && shape.parts_given != shape.part_count && !connection->knows_own_parts) {
    RefuseDeclaration(id, request, RankStatus::kVersionMismatch,
                      "the other ranks of this node keep the parts of this tensor in another way "
                      "than " +
                          connection->Name() +
                          " knows; install the same release of libtalweg for all ranks");
    return;
  }
  if (connection->tensors.size() <= index) connection->tensors.resize(index + 1);
  TensorOfRank& tensor = connection->tensors[index];
  if (!tensor.declared) {
    tensor.declared = true;
    tensor.data = data;
    tensor.given = asked->second;
    tensor.pushed = tensor.completed = data.completed_round.value();
    connection->control->PublishState(index, tensor.completed, RankStatus::kOk, "", 0, 0);
  } else if (tensor.data.contribution.segment == 0) {
    tensor.data.contribution = data.contribution;  // Declared on a GPU first, then in host memory.
  }
  connection->asked.erase(asked);
  FindContribution(*connection, tensor);

  Declared declared{.tensor = index,
                    .tensor_bytes = tensor.data.tensor_bytes,
                    .completed_round = tensor.data.completed_round.value(),
                    .contribution = tensor.data.contribution,
                    .result = {tensor.data.result[0], tensor.data.result[1]},
                    .summed_by = !tensor.data.shared            ? SummedBy::kAgent
                                 : tensor.data.shared->in_place ? SummedBy::kRanksInPlace
                                                                : SummedBy::kRanks,
                    .part = tensor.data.shared ? tensor.data.shared->part : 0,
                    .arrivals = tensor.data.arrivals};
  std::vector<int> borrowed;
  for (const Location& location : {tensor.data.contribution, tensor.data.result[0],
                                   tensor.data.result[1], tensor.data.arrivals}) {
    if (location.segment == 0 || connection->known_segments.contains(location.segment)) continue;
    SegmentKind kind = SegmentKind::kContribution;
    const Segment* segment = FindSegment(*connection, location.segment, &kind);
    TALWEG_CHECK(segment != nullptr);
    declared.segments[declared.segment_count++] = {location.segment, kind, segment->bytes};
    connection->known_segments.insert(location.segment);
    borrowed.push_back(segment->fd.get());
  }
  Send(*connection, {.request = request.value(), .body = declared}, std::move(borrowed));
}

const Segment* RankServerImpl::FindSegment(Connection& connection, uint32_t id, SegmentKind* kind) {
  *kind = SegmentKind::kContribution;
  if (const SharedArena::Part* part = connection.shared.FindSegment(id)) return &part->segment;
  if (const Arena::Part* part = connection.contributions->Find(id)) return &part->segment;
  if (const Arena::Part* part = connection.one_places->Find(id)) return &part->segment;
  *kind = SegmentKind::kResult;
  const Arena::Part* part = results_.Find(id);
  return part == nullptr ? nullptr : &part->segment;
}

void RankServerImpl::FindContribution(Connection& connection, TensorOfRank& tensor) {
  const Location& location = tensor.data.contribution;
  if (location.segment == 0 || tensor.contribution != nullptr) return;
  SegmentKind kind = SegmentKind::kContribution;
  const Segment* segment = FindSegment(connection, location.segment, &kind);
  TALWEG_CHECK(segment != nullptr && kind == SegmentKind::kContribution);
  const BufferShape& shape = tensor.given.shape;
  const uint64_t bytes =
      tensor.data.shared
          ? RankSumShape::Of(shape, config_.local_rank_count, tensor.data.shared->in_place).bytes()
          : shape.total_bytes();
  TALWEG_CHECK(bytes <= segment->bytes && location.offset <= segment->bytes - bytes);
  tensor.contribution = segment->mapping.data() + location.offset;
}

void RankServerImpl::RefuseDeclaration(RankConnectionId id, RequestId request, RankStatus status,
                                       std::string_view text) {
  Connection* connection = FindOpen(id);
  if (connection == nullptr || connection->state != Connection::State::kActive) return;
  connection->asked.erase(request);
  Send(*connection, {.request = request.value(), .body = Declared{.status = status, .text = text}});
}

void RankServerImpl::Beat() {
  for (Connection* connection : active_) connection->control->PublishBeat();
}

void RankServerImpl::PublishCompletion(const Completion& completion) {
  ++counters_.completions;
  const uint32_t index = completion.tensor.value();
  const bool goes_on = completion.status == RankStatus::kMismatch &&
                       EverybodyHasPushed(index, completion.round.value());
  for (Connection* connection : active_) {
    if (connection->state != Connection::State::kActive || index >= connection->tensors.size()) {
      continue;
    }
    TensorOfRank& tensor = connection->tensors[index];
    if (!tensor.declared || completion.round.value() <= tensor.completed) continue;
    tensor.completed = completion.round.value();
    if (tensor.data.shared && completion.status == RankStatus::kOk) {
      IntroducePeers(*connection, tensor.data.shared->part);
      if (connection->state != Connection::State::kActive) continue;
    }
    connection->control->PublishState(index, tensor.completed, completion.status, completion.text,
                                      completion.ranks_summed, completion.sum_epoch.value(),
                                      goes_on);
    Wake(*connection, RankControl::Waiter::kForRound, index);
  }
}

void RankServerImpl::PublishArrival(TensorIndex tensor, uint64_t bytes) {
  const uint32_t index = tensor.value();
  for (Connection* connection : active_) {
    if (connection->state != Connection::State::kActive ||
        !connection->control->WakeNeededForBytes(index, bytes)) {
      continue;
    }
    SendWake(*connection);
  }
}

void RankServerImpl::IntroducePeers(Connection& connection, uint32_t part) {
  const uint64_t bit = uint64_t{1} << part;
  if ((connection.peer_parts & bit) != 0) return;
  connection.peer_parts |= bit;
  // Also those that have left: the round holds what they pushed.
  for (auto& [id, peer] : connections_) {
    const SharedArena::Part* theirs = peer->shared.FindPart(part);
    if (peer.get() == &connection || peer->released || theirs == nullptr ||
        !connection.known_segments.insert(theirs->id).second) {
      continue;
    }
    // All have pushed a round of this part, so each has mapped its own.
    if (!theirs->in_place) SealAgainstWriters(theirs->segment);
    Descriptor copy(::fcntl(theirs->segment.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      ::shutdown(connection.socket->fd(), SHUT_RDWR);  // Its end is handled where all ends are.
      return;
    }
    std::vector<Descriptor> owned;
    owned.push_back(std::move(copy));
    Send(connection, {.body = Peer{peer->local_rank.value(), part, theirs->segment.bytes}}, {},
         std::move(owned));
  }
}

void RankServerImpl::FailAll(RankStatus status, std::string_view text) {
  if (job_failure_) return;
  job_failure_ = Failure{status, std::string(text)};
  for (auto& [id, connection] : connections_) {
    if (connection->state == Connection::State::kAsking) {
      RefuseWith(*connection, status, text);
    } else if (connection->state == Connection::State::kActive) {
      connection->control->PublishFailure(status, text);
      // Not disconnected: the rank may still say goodbye, and its death is still told.
      Send(*connection, {.body = Lost{status, text}});
    }
  }
}

void RankServerImpl::Disconnect(RankConnectionId id, RankStatus status, std::string_view text) {
  Connection* connection = FindOpen(id);
  if (connection != nullptr) FailRank(*connection, status, text);
}

void RankServerImpl::Release(RankConnectionId id) {
  Connection* connection = Find(id);
  if (connection == nullptr || !connection->over()) return;
  connection->released = true;
  sweep_ = true;
}

void RankServerImpl::FailRank(Connection& connection, RankStatus status, std::string_view text) {
  if (connection.state == Connection::State::kAsking) {
    Send(connection, {.body = shm::Welcome{.status = status, .text = text}});
  } else {
    connection.control->PublishFailure(status, text);
    Send(connection, {.body = Lost{status, text}});
  }
  Drain(connection);
}

// ---- Output and endings
// ---------------------------------------------------------------------------

void RankServerImpl::Send(Connection& connection, const Message& message, std::vector<int> borrowed,
                          std::vector<Descriptor> owned) {
  if (!connection.socket) return;
  AfterOutput(connection, connection.socket->Send(message, std::move(borrowed), std::move(owned)));
}

void RankServerImpl::AfterOutput(Connection& connection, RankSocket::Output output) {
  if (!connection.socket) return;
  if (output == RankSocket::Output::kBroken) {
    // Ends the socket in both directions: the end is then read, and handled, where all others are.
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
                    .data = {.u64 = connection.id.value() << 1}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket->fd(), &event);
}

void RankServerImpl::Wake(Connection& connection, RankControl::Waiter waiter,
                          std::optional<uint32_t> tensor) {
  if (connection.control->WakeNeeded(waiter, tensor)) SendWake(connection);
}

void RankServerImpl::SendWake(Connection& connection) {
  if (!connection.socket->SendWake()) return;
  connection.control->OnWakeSent();
  ++counters_.wakes_sent;
  AfterOutput(connection, RankSocket::Output::kQueued);
}

void RankServerImpl::Drain(Connection& connection) {
  if (connection.over()) return;
  if (connection.state != Connection::State::kSilent && connection.contributions &&
      holders_[connection.local_rank.value()] == connection.id) {
    holders_[connection.local_rank.value()].reset();
  }
  connection.state = Connection::State::kDraining;
  sweep_ = true;
  if (!connection.socket || !connection.socket->HasOutput()) Close(connection);
}

void RankServerImpl::Close(Connection& connection) {
  if (connection.state == Connection::State::kGone) return;
  if (connection.contributions && holders_[connection.local_rank.value()] == connection.id) {
    holders_[connection.local_rank.value()].reset();
  }
  connection.state = Connection::State::kGone;
  // Closing a descriptor removes it from epoll: nobody else holds these.
  connection.socket.reset();
  connection.pidfd.Reset();
  connection.control.reset();
  sweep_ = true;
}

void RankServerImpl::SweepReleased() {
  sweep_ = false;
  std::erase_if(active_, [](const Connection* connection) { return connection->over(); });
  std::erase_if(connections_, [](const auto& entry) {
    return entry.second->state == Connection::State::kGone && entry.second->released;
  });
}

}  // namespace talweg::shm
