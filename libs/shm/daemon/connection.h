// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_CONNECTION_H_
#define TALWEG_LIBS_SHM_DAEMON_CONNECTION_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/base/ids.h"
#include "libs/shm/daemon/arena.h"
#include "libs/shm/daemon/rank_control.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/daemon/rank_socket.h"
#include "libs/shm/daemon/shared_arena.h"
#include "libs/shm/layout/parts.h"

namespace talweg::shm {

// The parts of a tensor that a rank contributes, by its declaration.
struct GivenParts {
  BufferShape shape;
  Parts parts;
  bool may_come_late = false;  // The tensor has patience: rounds go on without late ranks.
};

struct TensorOfRank {
  bool declared = false;
  uint64_t pushed = 0;
  uint64_t completed = 0;
  DeclaredData data;
  GivenParts given;
  const std::byte* contribution = nullptr;  // Read only. null: not in host memory.
};

// What the server knows of one rank. Each part of the server writes the members below its name, and
// reads the rest.
struct Connection {
  enum class State {
    kSilent,  // Accepted; no hello yet.
    kAsking,  // Said hello; the agent has not answered.
    kActive,
    kDraining,  // Over; the remaining output is being sent.
    kGone,      // Over; memory is kept until Release.
  };

  // --- Connections
  RankConnectionId id;
  State state = State::kSilent;
  std::optional<RankSocket> socket;
  Descriptor pidfd;
  pid_t pid = 0;
  uid_t uid = 0;
  LocalRank local_rank;
  std::optional<RankControl> control;
  bool released = false;       // The agent no longer needs the rank's memory.
  bool writes_wanted = false;  // EPOLLOUT is on.

  // --- RankMessages, from the rank's hello on
  std::string client_name;
  bool rings_to_await = false;  // By the rank's version, like the three below.
  bool knows_in_place = false;
  bool knows_own_parts = false;
  bool knows_one_place = false;
  bool said_goodbye = false;  // The goodbye counts once the ring is empty.

  // --- RankServerImpl, from what the agent says
  uint32_t number = 0;  // The rank's number in declarations.
  uint32_t job_size = 0;
  uint32_t number_count = 0;  // With the numbers of standbys.
  uint64_t peer_parts = 0;    // Bit p: the rank has been given part p of all other ranks.

  // --- NodeMemory
  ArenaBudget budget;  // For the next two together.
  std::optional<Arena> contributions;
  std::optional<Arena> one_places;
  SharedArena shared;

  // --- Declarations; Rings and completions also count each tensor's rounds
  std::vector<TensorOfRank> tensors;      // By TensorIndex.
  std::map<RequestId, GivenParts> asked;  // Declarations without an answer yet.
  std::set<uint32_t> known_segments;

  // --- Rings
  // The ring's next entry is a push of this tensor that came before its open round was complete.
  std::optional<uint32_t> early;

  bool over() const { return state == State::kDraining || state == State::kGone; }
  bool is_active() const { return state == State::kActive; }
  // Whether the rank has been told of the tensor.
  bool HasDeclared(uint32_t tensor) const {
    return tensor < tensors.size() && tensors[tensor].declared;
  }
  std::string Name() const {
    return "local rank " + std::to_string(local_rank.value()) + " (pid " + std::to_string(pid) +
           (client_name.empty() ? "" : ", '" + client_name + "'") + ")";
  }
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_CONNECTION_H_
