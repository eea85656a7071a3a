// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/declarations.h"

#include <string>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/shm/daemon/declaration.h"

namespace talweg::shm {

void Declarations::OnDeclare(Connection& connection, uint32_t request, const Declare& declare,
                             RankEventSink& sink) {
  if (connections_->job_failure()) return;  // The rank has been told.
  if (connection.asked.contains(RequestId(request))) {
    connections_->Garbage(
        connection,
        "a declaration with the number of one that is not answered yet, " + std::to_string(request),
        sink);
    return;
  }
  if (std::string error = DeclarationError(declare, connection.number, connection.job_size,
                                           connection.number_count);
      !error.empty()) {
    Refuse(connection.id, RequestId(request), RankStatus::kInvalidArgument, error);
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
  if (declaration.on_device && !config_->takes_devices) {
    Refuse(connection.id, RequestId(request), RankStatus::kUnsupported,
           "tensor '" + declaration.name +
               "' was declared on a GPU, of which this agent takes no memory; declare "
               "it in host memory");
    return;
  }
  const BufferShape shape = declaration.shape();
  const bool is_simple = shape.all_get_one && !is_group;
  if (declaration.on_device && collective.encodes()) {
    Refuse(connection.id, RequestId(request), RankStatus::kUnsupported,
           "tensor '" + declaration.name + "' was declared on a GPU as " + Describe(collective) +
               "; declare it in host memory, or without an encoding");
    return;
  }
  if (declaration.on_device && collective.leaves_out()) {
    Refuse(connection.id, RequestId(request), RankStatus::kUnsupported,
           "tensor '" + declaration.name + "' was declared on a GPU as " + Describe(collective) +
               "; declare it in host memory, or without patience");
    return;
  }
  if (declaration.on_device && !is_simple) {
    Refuse(connection.id, RequestId(request), RankStatus::kUnsupported,
           "tensor '" + declaration.name + "' was declared on a GPU as " + Describe(collective) +
               " of " + Counted(declaration.rank_count, "rank") +
               "; declare it in host memory, or an all_reduce or a broadcast of "
               "all ranks");
    return;
  }
  declaration.in_place =
      is_simple && !collective.leaves_out() && (declare.flags & kDeclareInPlace) != 0;
  declaration.one_place = declaration.in_place && connection.knows_one_place;
  const auto place_of = [&](uint32_t rank) { return is_group ? declare.ranks.Find(rank) : rank; };
  connection.asked[RequestId(request)] = {
      .shape = shape,
      .parts = Parts::Of(collective.gives, place_of(connection.number), declaration.rank_count,
                         place_of(declaration.root_rank), shape.part_count),
      .may_come_late = collective.leaves_out()};
  sink.OnRankDeclare(connection.id, RequestId(request), declaration);
}

void Declarations::Reply(RankConnectionId id, RequestId request, const DeclaredData& data) {
  Connection* connection = FindActive(id);
  if (connection == nullptr) return;
  const uint32_t index = data.tensor.value();
  TALWEG_CHECK(index < config_->tensors_max);
  const auto asked = connection->asked.find(request);
  if (asked == connection->asked.end()) return;  // An earlier rank at this place has asked.
  if (data.shared && data.shared->in_place && !connection->knows_in_place) {
    Refuse(id, request, RankStatus::kVersionMismatch,
           "the other ranks of this node sum this tensor in place, which " + connection->Name() +
               " does not know; install the same release of libtalweg for all ranks");
    return;
  }
  const BufferShape& shape = asked->second.shape;
  if (data.shared && shape.parts_given != shape.part_count && !connection->knows_own_parts) {
    Refuse(id, request, RankStatus::kVersionMismatch,
           "the other ranks of this node keep the parts of this tensor in another way "
           "than " +
               connection->Name() + " knows; install the same release of libtalweg for all ranks");
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
  memory_->FindContribution(*connection, tensor);
  SendDeclared(*connection, request, tensor);
}

void Declarations::SendDeclared(Connection& connection, RequestId request,
                                const TensorOfRank& tensor) {
  Declared declared{.tensor = tensor.data.tensor.value(),
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
    if (location.segment == 0 || connection.known_segments.contains(location.segment)) continue;
    SegmentKind kind = SegmentKind::kContribution;
    const Segment* segment = memory_->FindSegment(connection, location.segment, &kind);
    TALWEG_CHECK(segment != nullptr);
    declared.segments[declared.segment_count++] = {location.segment, kind, segment->bytes};
    connection.known_segments.insert(location.segment);
    borrowed.push_back(segment->fd.get());
  }
  connections_->Send(connection, {.request = request.value(), .body = declared},
                     std::move(borrowed));
}

void Declarations::Refuse(RankConnectionId id, RequestId request, RankStatus status,
                          std::string_view text) {
  Connection* connection = FindActive(id);
  if (connection == nullptr) return;
  connection->asked.erase(request);
  connections_->Send(
      *connection, {.request = request.value(), .body = Declared{.status = status, .text = text}});
}

Connection* Declarations::FindActive(RankConnectionId id) {
  Connection* connection = connections_->Find(id);
  return connection == nullptr || !connection->is_active() ? nullptr : connection;
}

}  // namespace talweg::shm
