// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CLIENT_H_
#define TALWEG_LIBS_SHM_CLIENT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/shm/client/admission.h"
#include "libs/shm/client/agent_bell.h"
#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/answers.h"
#include "libs/shm/client/asking.h"
#include "libs/shm/client/attaching.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/client_options.h"
#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/completions.h"
#include "libs/shm/client/declaring.h"
#include "libs/shm/client/devices.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/fork_guard.h"
#include "libs/shm/client/inbox.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/pushes.h"
#include "libs/shm/client/questions.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/client/rounds.h"
#include "libs/shm/client/session.h"
#include "libs/shm/client/steps.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/tensor_table.h"
#include "libs/shm/client/transfers.h"
#include "libs/shm/client/waiting.h"
#include "libs/shm/client/watchers.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// One rank's view of docs/shared_memory.md. Needs libc only: no exceptions, no operator new, no
// state outside the object.
//
// Any thread may call any function at any time (Free: only the last thread). Functions that wait
// take a timeout as in talweg.h, and end at once when the job fails, the agent is gone, or the
// client is shut down. After a fork every function returns kForked in the child.
//
// Client is a facade. Each call checks for a forked child, finds its tensor, and goes to the part
// that does the work. The parts' headers say what each promises. A part knows only those above it
// in the list of members.
class Client {
 public:
  static RankStatus Connect(const ClientOptions& options, Client** out, ErrorText& error);
  static void Free(Client* client);

  RankStatus Shutdown(int64_t timeout_ns, ErrorText& error);
  const ClientIdentity& identity() const { return identity_; }
  RankStatus Health(ErrorText& error);

  // Declares many tensors at once. The error is that of the first declaration that failed; others
  // may have succeeded. `tensors` has room for as many as `declares`.
  RankStatus DeclareTensors(std::span<const Declare> declares, int64_t timeout_ns,
                            uint32_t* tensors, ErrorText& error);
  // These return 0 or nullptr if this client has no such tensor.
  uint64_t TensorBytes(uint32_t tensor) const;
  // How many parts of the tensor this rank gives, and gets.
  uint32_t PartsGiven(uint32_t tensor) const;
  uint32_t PartsGot(uint32_t tensor) const;
  // How many parts the rank's contribution has room for.
  uint32_t PartsHeld(uint32_t tensor) const;
  // Where the next push takes its bytes from.
  void* Contribution(uint32_t tensor) const;
  // Whether the ranks sum the tensor in place: its result is where its contribution was, without a
  // copy.
  bool SumsInPlace(uint32_t tensor) const;
  // Maps the tensor's buffer at `address` as well, over a shared mapping of the caller's. null: the
  // buffer is at no such place any more, and the last place is left as it is.
  RankStatus Attach(uint32_t tensor, void* address, ErrorText& error);
  // If the tensor is attached, gives that place its own memory back, with the buffer's bytes.
  // Otherwise the memory that Contribution gave keeps its bytes and belongs to the caller until
  // Free; the buffer lies elsewhere from now on.
  RankStatus Detach(uint32_t tensor, ErrorText& error);

  // `data`: the parts that the rank gives, one after another; null: they lie in the contribution
  // buffer. `declared_priority`: use the tensor's own priority.
  RankStatus Push(uint32_t tensor, const void* data, const PushedParts& parts,
                  bool declared_priority, int32_t priority, int64_t timeout_ns, uint64_t* round,
                  ErrorText& error);

  // Memory of GPUs: docs/gpu.md says who may do what when.
  RankStatus ExportBuffer(const Export& exported, int64_t timeout_ns, uint32_t* buffer,
                          uint64_t* bytes, ErrorText& error);
  RankStatus UnexportBuffer(uint32_t buffer, int64_t timeout_ns, ErrorText& error);
  // Returns the tensor's events; the caller opens them.
  RankStatus PlaceTensor(uint32_t tensor, uint32_t buffer, RoundSignature signature,
                         int64_t timeout_ns, GpuHandleBytes* pushed, GpuHandleBytes* taken,
                         ErrorText& error);
  // As Push, for bytes in a GPU buffer at `offset`. The tensor's event was recorded before.
  RankStatus PushOnDevice(uint32_t tensor, uint32_t buffer, uint64_t offset, bool declared_priority,
                          int32_t priority, int64_t timeout_ns, uint64_t* round, ErrorText& error);

  RankStatus Poll(uint32_t tensor, uint64_t round, ErrorText& error);
  RankStatus Wait(uint32_t tensor, uint64_t round, const Taking& taking, int64_t timeout_ns,
                  ErrorText& error);
  RankStatus Result(uint32_t tensor, uint64_t round, const void** data, uint64_t* bytes,
                    ErrorText& error);

  // Descriptors that tell of rounds. The client has a first one, and can open others. In what
  // follows, a negative `fd` means the first one.
  RankStatus CompletionFd(int* fd, ErrorText& error);
  RankStatus AnotherCompletionFd(int* fd, ErrorText& error);
  RankStatus Watch(int fd, uint32_t tensor, uint64_t round, uint64_t tag, ErrorText& error);
  // Returns an error only if there is no round left to tell.
  RankStatus Completed(int fd, uint64_t* tags, size_t capacity, size_t* count, ErrorText& error);

  uint64_t RanksSummed(uint32_t tensor) const;
  // In how many of the tensor's rounds this rank was left out.
  uint64_t LeftOutCount(uint32_t tensor) const;

  // Steps and views: docs/elastic.md. One thread at a time ends steps.
  // kTimeout: the next call goes on waiting for the same end of a step.
  RankStatus EndStep(int64_t timeout_ns, ErrorText& error);
  uint64_t StepsEnded() const { return steps_.ended(); }
  // The epoch of the agent's newest view. 0: the agent is too old to say.
  uint64_t NewestEpoch() const { return steps_.NewestEpoch(); }
  // Says that this rank of a standby is ready to take part in steps.
  RankStatus Ready(int64_t timeout_ns, ErrorText& error);
  // Returns the view of `epoch` if it is among the agent's latest; 0: the newest view. `members`
  // has room for `members_max`; the answer's member_count says how many there are.
  RankStatus LookAtView(uint64_t epoch, RankMembership* view, MembershipMember* members,
                        uint32_t members_max, int64_t timeout_ns, ErrorText& error);
  // Changes identity().
  RankStatus FollowView(uint64_t epoch, int64_t timeout_ns, ErrorText& error);
  // Says whom an open round waits for, for people: Asking::Whom.
  RankStatus WaitsFor(uint32_t tensor, uint64_t round, char* text, size_t text_bytes,
                      int64_t timeout_ns, ErrorText& error);
  // The round that was pushed and not taken; 0 if there is none.
  uint64_t OpenRound(uint32_t tensor) const;

  const ClientStatistics& statistics() const { return statistics_; }

 private:
  Client() = default;
  ~Client() = default;

  // In a forked child, the first call closes the child's copy of the socket.
  RankStatus FailForked(ErrorText& error);
  // Calls `call` with the tensor; kForked, or kInvalidArgument if there is none.
  template <typename Call>
  RankStatus With(uint32_t tensor, ErrorText& error, const Call& call);

  ForkGuard fork_guard_;
  bool child_closed_ = false;  // The child has dealt with its copy of the socket.

  // Guards what changes with calls: a tensor's open round, segments, questions, who sleeps for
  // what.
  Mutex state_mutex_;
  ClientIdentity identity_;
  ClientStatistics statistics_;
  Streaming streaming_;  // Rounds are opened and ended under state_mutex_.

  // What the rank and its agent share, and what each has said there.
  AgentLink link_;
  ClientHealth health_{link_, state_mutex_};
  AgentBell bell_{link_};
  RankMemory memory_{link_, identity_, state_mutex_};
  TensorTable tensors_{link_, identity_, memory_, statistics_};
  RoundStates states_{link_};
  Admission admission_{link_, health_, identity_, streaming_, memory_, tensors_};
  Answers answers_{state_mutex_};

  // Who reads the socket, who is told, and how threads wait.
  Inbox inbox_{link_, health_, admission_, answers_, memory_, tensors_, state_mutex_};
  Watchers watchers_{link_, health_, memory_, tensors_, states_, state_mutex_};
  Waiting waiting_{link_, health_, bell_, inbox_, watchers_, statistics_, state_mutex_};
  Questions questions_{link_, answers_, waiting_};

  // What callers ask for.
  Declaring declaring_{link_, health_, identity_, tensors_, questions_};
  Devices devices_{link_, health_, states_, questions_, state_mutex_};
  Steps steps_{link_, health_, identity_, questions_};
  Asking asking_{link_, health_, questions_};
  Attaching attaching_{health_, memory_, tensors_, state_mutex_};
  Pushes pushes_{link_,      health_,  bell_,       states_,     steps_,
                 streaming_, waiting_, statistics_, state_mutex_};
  Rounds rounds_{link_,   health_,    bell_,    identity_,   memory_,
                 states_, streaming_, waiting_, statistics_, state_mutex_};
  Completions completions_{link_, health_, memory_, watchers_, waiting_, state_mutex_};
  Session session_{link_, health_, admission_, inbox_, watchers_, waiting_, rounds_};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CLIENT_H_
