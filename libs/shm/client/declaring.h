// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_DECLARING_H_
#define TALWEG_LIBS_SHM_CLIENT_DECLARING_H_

#include <cstdint>
#include <span>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/answers.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/questions.h"
#include "libs/shm/client/tensor_table.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// Declares tensors: checks the caller's request, asks the agent, and prepares the agreed tensors
// for pushes. Any thread; it waits for the agent.
class Declaring {
 public:
  Declaring(AgentLink& link, ClientHealth& health, const ClientIdentity& identity,
            const TensorTable& tensors, Questions& questions)
      : link_(link),
        health_(health),
        identity_(identity),
        tensors_(tensors),
        questions_(questions) {}

  // Declares many tensors at once. The error is that of the first declaration that failed; others
  // may have succeeded. `tensors` has room for as many as `declares`.
  RankStatus DeclareAll(std::span<const Declare> declares, int64_t timeout_ns, uint32_t* tensors,
                        ErrorText& error);

 private:
  RankStatus Check(const Declare& declare, ErrorText& error) const;
  RankStatus CheckGroup(const Declare& declare, ErrorText& error) const;
  // As DeclareAll, for no more than may be under way together. `answers` has room for as many.
  RankStatus DeclareSome(std::span<const Declare> declares, PendingAnswer* answers,
                         const Deadline& deadline, int64_t timeout_ns, uint32_t* tensors,
                         ErrorText& error);
  RankStatus TakeDeclared(const Declare& declare, const PendingAnswer& pending, uint32_t* tensor,
                          ErrorText& error);

  AgentLink& link_;
  ClientHealth& health_;
  const ClientIdentity& identity_;
  const TensorTable& tensors_;
  Questions& questions_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_DECLARING_H_
