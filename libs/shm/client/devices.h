// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_DEVICES_H_
#define TALWEG_LIBS_SHM_CLIENT_DEVICES_H_

#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/questions.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// GPU memory: what this rank tells its agent about it. docs/gpu.md says who may do what when.
// Nothing here calls a driver. Any thread may call any function; each waits for the agent.
class Devices {
 public:
  Devices(AgentLink& link, ClientHealth& health, const RoundStates& states, Questions& questions,
          Mutex& state_mutex)
      : link_(link),
        health_(health),
        states_(states),
        questions_(questions),
        state_mutex_(state_mutex) {}

  RankStatus Export(const shm::Export& exported, int64_t timeout_ns, uint32_t* buffer,
                    uint64_t* bytes, ErrorText& error);
  RankStatus Unexport(uint32_t buffer, int64_t timeout_ns, ErrorText& error);
  // Returns the tensor's events; the caller opens them.
  RankStatus Place(RankTensor& tensor, uint32_t buffer, RoundSignature signature,
                   int64_t timeout_ns, GpuHandleBytes* pushed, GpuHandleBytes* taken,
                   ErrorText& error);

 private:
  // Asks for `what`. Turns every outcome except kOk into an error.
  RankStatus Ask(const MessageBody& question, const char* what, int64_t timeout_ns,
                 PendingAnswer& pending, ErrorText& error);

  AgentLink& link_;
  ClientHealth& health_;
  const RoundStates& states_;
  Questions& questions_;
  Mutex& state_mutex_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_DEVICES_H_
