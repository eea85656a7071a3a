// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_SESSION_H_
#define TALWEG_LIBS_SHM_CLIENT_SESSION_H_

#include <sys/types.h>

#include <cstdint>

#include "libs/shm/client/admission.h"
#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_options.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/inbox.h"
#include "libs/shm/client/rounds.h"
#include "libs/shm/client/waiting.h"
#include "libs/shm/client/watchers.h"

namespace talweg::shm {

// A rank's session with its agent, from hello to goodbye. One thread calls Begin first. Then any
// thread may call End.
class Session {
 public:
  Session(AgentLink& link, ClientHealth& health, Admission& admission, const Inbox& inbox,
          Watchers& watchers, Waiting& waiting, Rounds& rounds)
      : link_(link),
        health_(health),
        admission_(admission),
        inbox_(inbox),
        watchers_(watchers),
        waiting_(waiting),
        rounds_(rounds) {}

  // Connects and waits until the agent admits this rank, which is process `pid`.
  RankStatus Begin(const ClientOptions& options, pid_t pid, ErrorText& error);
  // Says goodbye and waits for the agent's answer. Other threads' waits end with kClosed. kTimeout:
  // the session is closed nevertheless. A second call does nothing.
  RankStatus End(int64_t timeout_ns, ErrorText& error);

 private:
  AgentLink& link_;
  ClientHealth& health_;
  Admission& admission_;
  const Inbox& inbox_;
  Watchers& watchers_;
  Waiting& waiting_;
  Rounds& rounds_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_SESSION_H_
