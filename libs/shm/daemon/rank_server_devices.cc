// SPDX-License-Identifier: Apache-2.0
//
// What ranks and the agent say to each other about memory of GPUs.
#include <string_view>

#include "libs/base/check.h"
#include "libs/shm/daemon/rank_server_impl.h"

namespace talweg::shm {

// A sink whose server takes devices has its own of these.

bool RankServerImpl::OnDeviceMessage(Connection& connection, const Message& message,
                                     RankEventSink& sink) {
  const RequestId request(message.request);
  constexpr std::string_view kNoDevices =
      "this agent takes no memory of GPUs: none is there, or it was started with --gpu=off; go "
      "through host memory";
  if (const auto* exported = std::get_if<Export>(&message.body)) {
    if (config_.takes_devices) {
      sink.OnRankExport(connection.id, request,
                        {exported->uuid, exported->buffer_id, exported->handle});
    } else {
      ReplyExported(connection.id, request,
                    {.status = RankStatus::kUnsupported, .text = kNoDevices});
    }
    return true;
  }
  if (const auto* unexport = std::get_if<Unexport>(&message.body)) {
    if (config_.takes_devices) {
      sink.OnRankUnexport(connection.id, request, unexport->buffer);
    } else {
      ReplyUnexported(connection.id, request,
                      {.status = RankStatus::kUnsupported, .text = kNoDevices});
    }
    return true;
  }
  const auto* place = std::get_if<Place>(&message.body);
  if (place == nullptr) return false;
  if (place->tensor >= connection.tensors.size() || !connection.tensors[place->tensor].declared) {
    OnGarbage(connection,
              "a place for tensor " + std::to_string(place->tensor) + ", which it has not declared",
              sink);
  } else if (config_.takes_devices) {
    sink.OnRankPlace(connection.id, request, TensorIndex(place->tensor), place->buffer,
                     place->signature);
  } else {
    ReplyPlaced(connection.id, request, {.status = RankStatus::kUnsupported, .text = kNoDevices});
  }
  return true;
}

void RankServerImpl::ReplyExported(RankConnectionId id, RequestId request, const Exported& answer) {
  Connection* connection = FindOpen(id);
  if (connection != nullptr) Send(*connection, {.request = request.value(), .body = answer});
}

void RankServerImpl::ReplyUnexported(RankConnectionId id, RequestId request,
                                     const Unexported& answer) {
  Connection* connection = FindOpen(id);
  if (connection != nullptr) Send(*connection, {.request = request.value(), .body = answer});
}

void RankServerImpl::ReplyPlaced(RankConnectionId id, RequestId request, const Placed& answer) {
  Connection* connection = FindOpen(id);
  if (connection != nullptr) Send(*connection, {.request = request.value(), .body = answer});
}

void RankServerImpl::PublishEventsLost(RankConnectionId id) {
  Connection* connection = FindOpen(id);
  if (connection == nullptr || connection->state != Connection::State::kActive) return;
  connection->control->PublishEventsLost();
  Wake(*connection, RankControl::Waiter::kForRound);
}

}  // namespace talweg::shm
