// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ANSWERS_H_
#define TALWEG_LIBS_SHM_CLIENT_ANSWERS_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// A question that waits for its answer. The thread that asks owns it.
struct PendingAnswer {
  uint32_t request = 0;
  const Declare* declare = nullptr;  // The question, if it is a declaration.
  std::atomic<bool> done{false};
  RankStatus status = RankStatus::kOk;
  Declared declared;
  Exported exported;
  Placed placed;
  RankMembership membership;
  MembershipMember* members = nullptr;  // Where the answer's members go, if they fit.
  uint32_t members_max = 0;
  char text[kTextBytesMax + 1] = "";
  PendingAnswer* next = nullptr;

  // Returns the answer's status; `error` says why if it is a failure. kInternal: this client does
  // not know the status.
  RankStatus Status(ErrorText& error) const;
};

// The questions that this rank has put to its agent and that wait for their answers. Any thread may
// ask. The reader (waiting.h) takes the answers, and drops one that nobody waits for.
class Answers {
 public:
  explicit Answers(Mutex& state_mutex) : state_mutex_(state_mutex) {}

  // Gives the question its number. `pending` must stay valid until it is withdrawn.
  void Await(PendingAnswer& pending);
  void Withdraw(PendingAnswer& pending);

  // Call with the client's state mutex locked. Returns null if no question waits for `request`.
  PendingAnswer* Find(uint32_t request) const;

  // Called by the reader; these lock the state mutex. `message`: Exported, Unexported, or Placed.
  void TakeDeviceAnswer(const Message& message);
  void TakeTold(const Message& message, const Told& told);
  void TakeMembership(const Message& message, const RankMembership& membership);

 private:
  Mutex& state_mutex_;
  PendingAnswer* pending_ = nullptr;
  uint32_t next_request_ = 1;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ANSWERS_H_
