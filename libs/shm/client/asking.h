// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ASKING_H_
#define TALWEG_LIBS_SHM_CLIENT_ASKING_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/questions.h"

namespace talweg::shm {

// Asks the agent whom a round waits for. Any thread.
class Asking {
 public:
  Asking(AgentLink& link, ClientHealth& health, Questions& questions)
      : link_(link), health_(health), questions_(questions) {}

  // Writes the answer to `text`, which has room for `text_bytes` (at least 1); a longer answer is
  // cut. The answer is "" if nobody is known, or if the agent is too old to say.
  RankStatus Whom(uint32_t tensor, uint64_t round, char* text, size_t text_bytes,
                  int64_t timeout_ns, ErrorText& error);

 private:
  AgentLink& link_;
  ClientHealth& health_;
  Questions& questions_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ASKING_H_
