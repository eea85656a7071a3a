// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_AGENT_LINK_H_
#define TALWEG_LIBS_SHM_CLIENT_AGENT_LINK_H_

#include <cstdint>

#include "libs/shm/client/agent_socket.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/rank_status.h"
#include "libs/shm/mapping.h"

namespace talweg::shm {

// What a rank and its agent share: the socket, and the control segment that comes with the Welcome.
// One thread connects and takes the Welcome. After that the link is constant, except for the
// contents of its parts: AgentSocket and ControlView say which thread may use what. Needs libc
// only.
class AgentLink {
 public:
  // Waits up to `agent_wait` for an agent to listen at `path`. kNoAgent, kPermissionDenied, ...
  RankStatus Connect(const char* path, const Deadline& agent_wait, ErrorText& error);
  // Maps the control segment. kProtocol, kOutOfMemory, kVersionMismatch.
  RankStatus MapControl(const Welcome& welcome, ErrorText& error);

  AgentSocket& socket() { return socket_; }
  // The agent's name in error texts.
  const char* path() const { return path_; }
  // Whether the agent has admitted this rank; until then there is no control segment.
  bool is_admitted() const { return is_admitted_; }
  const ControlView& control() const { return control_; }
  // The minor version of the agent's messages.
  uint32_t minor() const { return minor_; }

 private:
  AgentSocket socket_;
  char path_[108] = "";
  Mapping mapping_;
  ControlView control_;
  uint16_t minor_ = 0;
  bool is_admitted_ = false;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_AGENT_LINK_H_
