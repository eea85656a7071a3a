// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_MESSAGES_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_MESSAGES_H_

#include <cstdint>

#include "libs/shm/daemon/connection.h"
#include "libs/shm/daemon/connections.h"
#include "libs/shm/daemon/declarations.h"
#include "libs/shm/daemon/node_memory.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/daemon/rings.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// What ranks say on their sockets, and how their connections end. Takes what a rank has pushed
// before it handles a later message of that rank. One owner thread.
class RankMessages {
 public:
  // All outlive this.
  struct Parts {
    const RankServerConfig* config = nullptr;
    Connections* connections = nullptr;
    NodeMemory* memory = nullptr;
    Rings* rings = nullptr;
    Declarations* declarations = nullptr;
    RankServerCounters* counters = nullptr;
  };
  explicit RankMessages(const Parts& parts) : parts_(parts) {}

  // Each returns how many events it has handled.
  int OnSocketReady(Connection& connection, RankEventSink& sink);
  int OnProcessEnded(Connection& connection, RankEventSink& sink);

 private:
  int HandleAll(Connection& connection, RankEventSink& sink);
  void Handle(Connection& connection, const Message& message, RankEventSink& sink);
  // Handles messages about GPU memory. Returns whether `message` was one.
  bool HandleOfDevices(Connection& connection, const Message& message, RankEventSink& sink);
  void OnHello(Connection& connection, const Hello& hello, RankEventSink& sink);
  void OnBoundary(Connection& connection, RequestId request, const Boundary& question,
                  RankEventSink& sink);
  void OnAsk(Connection& connection, RequestId request, const Ask& question, RankEventSink& sink);
  void OnGoodbye(Connection& connection, RankEventSink& sink);
  // Returns 0 if the connection goes on until the rank's pushes are taken.
  int OnEnded(Connection& connection, RankEventSink& sink);
  bool job_failed() const { return parts_.connections->job_failure().has_value(); }

  const Parts parts_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_MESSAGES_H_
