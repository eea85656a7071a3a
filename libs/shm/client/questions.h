// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_QUESTIONS_H_
#define TALWEG_LIBS_SHM_CLIENT_QUESTIONS_H_

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/answers.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/waiting.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// Puts questions to the agent. Any thread may ask.
class Questions {
 public:
  Questions(AgentLink& link, Answers& answers, Waiting& waiting)
      : link_(link), answers_(answers), waiting_(waiting) {}

  // Sends the question; `pending` waits for its answer until it is withdrawn. Returns false if the
  // socket has taken nothing before the deadline.
  bool Post(const MessageBody& question, PendingAnswer& pending, const Deadline& deadline);
  void Withdraw(PendingAnswer& pending) { answers_.Withdraw(pending); }
  // Waits until a posted question is answered.
  Awaited AwaitAnswer(const PendingAnswer& pending, const Deadline& deadline, RankStatus* over);
  // Posts the question, waits for the answer, and withdraws it.
  Awaited Ask(const MessageBody& question, PendingAnswer& pending, const Deadline& deadline,
              RankStatus* over);

 private:
  AgentLink& link_;
  Answers& answers_;
  Waiting& waiting_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_QUESTIONS_H_
