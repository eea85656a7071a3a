// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_STEPS_H_
#define TALWEG_LIBS_SHM_CLIENT_STEPS_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/questions.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// The ends of steps, and the views that a rank hears of there (docs/elastic.md). One thread at a
// time ends steps; any thread may call the other functions.
class Steps {
 public:
  Steps(AgentLink& link, ClientHealth& health, ClientIdentity& identity, Questions& questions)
      : link_(link), health_(health), identity_(identity), questions_(questions) {}

  // kTimeout: the next call goes on waiting for the same end of a step.
  RankStatus End(int64_t timeout_ns, ErrorText& error);
  uint64_t ended() const { return ended_.load(std::memory_order_relaxed); }
  // Whether a thread waits in End: then only side tensors may be pushed.
  bool at_boundary() const { return at_boundary_.load(std::memory_order_relaxed); }

  // The epoch of the agent's newest view; 0: the agent is too old to say.
  uint64_t NewestEpoch() const;
  // Returns the view of `epoch` if it is among the agent's latest; 0: the newest view. `members`
  // has room for `members_max`; the answer's member_count says how many there are.
  RankStatus Look(uint64_t epoch, RankMembership* view, MembershipMember* members,
                  uint32_t members_max, int64_t timeout_ns, ErrorText& error);
  // Says that the rank can take part in steps; returns when the agent has heard.
  RankStatus Ready(int64_t timeout_ns, ErrorText& error);
  // Changes the rank's identity.
  RankStatus Follow(uint64_t epoch, int64_t timeout_ns, ErrorText& error);

 private:
  // `pending` gets the answer.
  RankStatus Ask(const Boundary& question, const char* what, int64_t timeout_ns,
                 PendingAnswer& pending, ErrorText& error);

  AgentLink& link_;
  ClientHealth& health_;
  ClientIdentity& identity_;
  Questions& questions_;
  std::atomic<uint64_t> ended_{0};
  std::atomic<bool> at_boundary_{false};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_STEPS_H_
