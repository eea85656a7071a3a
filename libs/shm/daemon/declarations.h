// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_DECLARATIONS_H_
#define TALWEG_LIBS_SHM_DAEMON_DECLARATIONS_H_

#include <cstdint>
#include <string_view>

#include "libs/shm/daemon/connection.h"
#include "libs/shm/daemon/connections.h"
#include "libs/shm/daemon/node_memory.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// Tensor declarations of ranks, and their answers. One owner thread.
class Declarations {
 public:
  // All outlive this.
  Declarations(const RankServerConfig* config, Connections* connections, NodeMemory* memory)
      : config_(config), connections_(connections), memory_(memory) {}

  // An active rank declares.
  void OnDeclare(Connection& connection, uint32_t request, const Declare& declare,
                 RankEventSink& sink);
  // As RankServer::ReplyDeclared and RefuseDeclaration.
  void Reply(RankConnectionId id, RequestId request, const DeclaredData& data);
  void Refuse(RankConnectionId id, RequestId request, RankStatus status, std::string_view text);

 private:
  // Returns null if the rank is over, or has not been welcomed.
  Connection* FindActive(RankConnectionId id);
  // Tells the rank about its tensor, and hands over the segments that are new to it.
  void SendDeclared(Connection& connection, RequestId request, const TensorOfRank& tensor);

  const RankServerConfig* const config_;
  Connections* const connections_;
  NodeMemory* const memory_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_DECLARATIONS_H_
