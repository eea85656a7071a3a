// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rank_messages.h"

#include <string>
#include <string_view>
#include <variant>

#include "libs/shm/daemon/declaration.h"

namespace talweg::shm {
namespace {

constexpr int kReceivesMax = 4;       // How many receives one rank may have in one turn.
constexpr int kLastReceivesMax = 64;  // For an ended rank: one may be its goodbye.

constexpr std::string_view kNoDevices =
    "this agent takes no memory of GPUs: none is there, or it was started with --gpu=off; go "
    "through host memory";

}  // namespace

int RankMessages::OnSocketReady(Connection& connection, RankEventSink& sink) {
  parts_.connections->Flush(connection);
  int handled = 0;
  for (int i = 0; i < kReceivesMax && connection.state != Connection::State::kGone; ++i) {
    const RankSocket::Input input = connection.socket->Receive();
    if (connection.over()) {
      connection.socket->DiscardInput();  // Only the end of the socket still matters.
    } else {
      handled += HandleAll(connection, sink);
    }
    if (input == RankSocket::Input::kNothing) break;
    if (input == RankSocket::Input::kEnded) {
      handled += OnEnded(connection, sink);
      break;
    }
  }
  return handled;
}

int RankMessages::OnProcessEnded(Connection& connection, RankEventSink& sink) {
  // A forked child may keep the socket open, so that the socket has no end. What the rank itself
  // sent before it ended counts.
  for (int i = 0; i < kLastReceivesMax && !connection.over(); ++i) {
    const RankSocket::Input input = connection.socket->Receive();
    HandleAll(connection, sink);
    if (input != RankSocket::Input::kTaken) break;
  }
  return connection.state == Connection::State::kGone ? 1 : OnEnded(connection, sink);
}

int RankMessages::HandleAll(Connection& connection, RankEventSink& sink) {
  int handled = 0;
  Message message;
  std::string error;
  while (!connection.over()) {
    const RankSocket::Next next = connection.socket->NextMessage(&message, &error);
    if (next == RankSocket::Next::kNone) break;
    ++handled;
    if (next == RankSocket::Next::kGarbage) {
      parts_.connections->Garbage(connection, error, sink);
      break;
    }
    Handle(connection, message, sink);
  }
  return handled;
}

void RankMessages::Handle(Connection& connection, const Message& message, RankEventSink& sink) {
  const bool is_silent = connection.state == Connection::State::kSilent;
  const bool is_active = connection.is_active();
  const RequestId request(message.request);
  if (const auto* hello = std::get_if<Hello>(&message.body); hello != nullptr && is_silent) {
    OnHello(connection, *hello, sink);
  } else if (const auto* declare = std::get_if<Declare>(&message.body);
             declare != nullptr && is_active) {
    parts_.declarations->OnDeclare(connection, message.request, *declare, sink);
  } else if (const auto* boundary = std::get_if<Boundary>(&message.body);
             boundary != nullptr && is_active) {
    OnBoundary(connection, request, *boundary, sink);
  } else if (const auto* ask = std::get_if<Ask>(&message.body); ask != nullptr && is_active) {
    OnAsk(connection, request, *ask, sink);
  } else if (std::holds_alternative<Goodbye>(message.body) && !is_silent) {
    OnGoodbye(connection, sink);
  } else if (std::holds_alternative<Doorbell>(message.body) && is_active) {
    ++parts_.counters->doorbells_received;
  } else if (!is_active || !HandleOfDevices(connection, message, sink)) {
    const auto type = static_cast<MessageType>(message.body.index() + 1);
    parts_.connections->Garbage(
        connection, std::string("a ") + MessageTypeName(type) + " message out of place", sink);
  }
}

void RankMessages::OnHello(Connection& connection, const Hello& hello, RankEventSink& sink) {
  connection.client_name = Printable(hello.client_name);
  if (hello.major != kProtocolMajor) {
    parts_.connections->Refuse(
        connection, RankStatus::kVersionMismatch,
        "the client speaks version " + std::to_string(hello.major) + "." +
            std::to_string(hello.minor) + " of the rank protocol, the agent " +
            std::to_string(kProtocolMajor) + "." + std::to_string(kProtocolMinor) +
            "; install the same release of both");
    return;
  }
  if (const std::optional<Failure>& failure = parts_.connections->job_failure()) {
    parts_.connections->Refuse(connection, failure->status, failure->text);
    return;
  }
  connection.rings_to_await = hello.minor >= kRingsToAwaitMinor;
  connection.knows_in_place = hello.minor >= kInPlaceMinor;
  connection.knows_own_parts = hello.minor >= kOwnPartsMinor;
  connection.knows_one_place = hello.minor >= kOnePlaceMinor;
  if (!parts_.connections->TakeLocalRank(connection, hello.wanted_local_rank)) return;
  parts_.memory->MakeArenas(connection);
  ++parts_.counters->ranks_accepted;
  sink.OnRankHello(connection.id, {connection.local_rank, connection.pid, connection.uid,
                                   connection.client_name, (hello.flags & kHelloStandby) != 0});
}

// Handles a question about steps and views (docs/elastic.md).
void RankMessages::OnBoundary(Connection& connection, RequestId request, const Boundary& question,
                              RankEventSink& sink) {
  if (job_failed()) return;  // The rank has been told.
  // The rank's pushes belong to the step that it has ended.
  parts_.rings->Drain(connection, sink);
  if (!connection.over()) sink.OnRankBoundary(connection.id, request, question);
}

// The rank asks whom a round waits for.
void RankMessages::OnAsk(Connection& connection, RequestId request, const Ask& question,
                         RankEventSink& sink) {
  if (job_failed()) return;  // The rank has been told.
  if (!connection.HasDeclared(question.tensor)) {
    return parts_.connections->Garbage(connection,
                                       "a question about tensor " +
                                           std::to_string(question.tensor) +
                                           ", which it has not declared",
                                       sink);
  }
  parts_.rings->DrainAll(sink);
  if (connection.over()) return;
  sink.OnRankAsk(connection.id, request, TensorIndex(question.tensor), Round{question.round});
}

// A sink whose server takes devices implements these.
bool RankMessages::HandleOfDevices(Connection& connection, const Message& message,
                                   RankEventSink& sink) {
  const RequestId request(message.request);
  const bool takes_devices = parts_.config->takes_devices;
  const auto refuse = [&](const auto& answer) {
    parts_.connections->Send(connection, {.request = message.request, .body = answer});
  };
  if (const auto* exported = std::get_if<Export>(&message.body)) {
    if (takes_devices) {
      sink.OnRankExport(connection.id, request,
                        {exported->uuid, exported->buffer_id, exported->handle});
    } else {
      refuse(Exported{.status = RankStatus::kUnsupported, .text = kNoDevices});
    }
    return true;
  }
  if (const auto* unexport = std::get_if<Unexport>(&message.body)) {
    if (takes_devices) {
      sink.OnRankUnexport(connection.id, request, unexport->buffer);
    } else {
      refuse(Unexported{.status = RankStatus::kUnsupported, .text = kNoDevices});
    }
    return true;
  }
  const auto* place = std::get_if<Place>(&message.body);
  if (place == nullptr) return false;
  if (!connection.HasDeclared(place->tensor)) {
    parts_.connections->Garbage(
        connection,
        "a place for tensor " + std::to_string(place->tensor) + ", which it has not declared",
        sink);
  } else if (takes_devices) {
    sink.OnRankPlace(connection.id, request, TensorIndex(place->tensor), place->buffer,
                     place->signature);
  } else {
    refuse(Placed{.status = RankStatus::kUnsupported, .text = kNoDevices});
  }
  return true;
}

void RankMessages::OnGoodbye(Connection& connection, RankEventSink& sink) {
  if (connection.is_active()) {
    parts_.rings->Drain(connection, sink);
    if (connection.over()) return;
    connection.said_goodbye = true;
    if (!connection.control->RingEmpty()) return;  // PollRings continues.
  }
  parts_.connections->SayGoodbye(connection, sink);
}

int RankMessages::OnEnded(Connection& connection, RankEventSink& sink) {
  if (connection.over() || connection.state == Connection::State::kSilent) {
    connection.released = connection.released || connection.state == Connection::State::kSilent;
    parts_.connections->Close(connection);
    return 1;
  }
  if (connection.is_active()) {
    parts_.rings->Drain(connection, sink);
    if (connection.over()) {
      parts_.connections->Close(connection);
      return 1;
    }
    if (connection.said_goodbye) return 0;  // PollRings continues; this function is called again.
  }
  const RankGone gone{connection.local_rank, connection.pid, false,
                      connection.Name() +
                          " ended without saying goodbye (killed, crashed, or it exited without a "
                          "shutdown)"};
  ++parts_.counters->ranks_gone_unclean;
  parts_.connections->Close(connection);
  sink.OnRankGone(connection.id, gone);
  return 1;
}

}  // namespace talweg::shm
