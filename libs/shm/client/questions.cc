// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/questions.h"

namespace talweg::shm {

bool Questions::Post(const MessageBody& question, PendingAnswer& pending,
                     const Deadline& deadline) {
  answers_.Await(pending);
  const Message message{.request = pending.request, .body = question};
  // If the socket is broken, the wait that follows ends, with the agent's last words.
  while (link_.socket().Send(message) == AgentSocket::Sent::kFull) {
    if (deadline.Passed(MonotonicNs())) return false;
    link_.socket().WaitWritable(deadline);
  }
  return true;
}

Awaited Questions::AwaitAnswer(const PendingAnswer& pending, const Deadline& deadline,
                               RankStatus* over) {
  return waiting_.Await([&pending] { return pending.done.load(); }, deadline,
                        {waiting_.uncounted()}, over);
}

Awaited Questions::Ask(const MessageBody& question, PendingAnswer& pending,
                       const Deadline& deadline, RankStatus* over) {
  Awaited awaited = Awaited::kTimeout;
  if (Post(question, pending, deadline)) {
    awaited = AwaitAnswer(pending, deadline, over);
  }
  Withdraw(pending);
  return awaited;
}

}  // namespace talweg::shm
