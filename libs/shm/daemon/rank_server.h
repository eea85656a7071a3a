// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/rank_memory.h"
#include "libs/shm/daemon/shared_arena.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/parts.h"
#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// A tensor on this node: dense, from 0, chosen by the agent, the same for all its ranks.
using TensorIndex = StrongId<struct TensorIndexTag, uint32_t>;
// A rank's question, to be repeated in the answer.
using RequestId = StrongId<struct RequestIdTag, uint32_t>;

inline constexpr int64_t kBeatEveryNs = 2'000'000'000;

struct RankServerConfig {
  std::string socket_path;
  // Mode bits of the socket. As long as only the owner may write to it, ranks of other users are
  // refused, also root's; 0660 lets `socket_gid` in, 0666 everybody.
  mode_t socket_mode = 0600;
  std::optional<gid_t> socket_gid;
  uint32_t local_rank_count = 1;
  Incarnation incarnation;
  uint32_t ring_capacity = 4096;  // A power of two.
  uint32_t tensors_max = 65536;
  // Bounds of the memory that declarations take: contributions of one rank, results of the node.
  uint64_t contribution_bytes_max = 64 * kGiB;
  uint64_t result_bytes_max = 128 * kGiB;
  uint64_t segment_bytes_min = 64 * kMiB;
  // How long ranks wait for a Beat before they count the agent as gone; 0: as long as it takes.
  uint32_t silence_ms = 0;
  // Whether the sink takes memory of GPUs. If not the server says so to who offers some.
  bool takes_devices = false;
};

struct RankHello {
  LocalRank local_rank;  // Given: the wanted one, or the lowest free.
  pid_t pid = 0;         // By SO_PEERCRED; 0 when the rank is in a foreign pid namespace.
  uid_t uid = 0;
  std::string client_name;
  bool knows_standbys = false;  // And its node may enter a running job as one.
};

struct RankDeclaration {
  std::string name;
  Collective collective;
  uint32_t root_rank = 0;       // In the job, and in the group. 0 where the collective has none.
  std::vector<uint32_t> ranks;  // The group: in the job, ascending. Empty: all ranks of the job.
  uint32_t rank_count = 0;      // In the group.
  int32_t priority = 0;
  bool on_device = false;  // Pushed from a GPU: the rank wants no contribution buffer.
  bool in_place = false;   // If its ranks sum, and it is the first: then in place.
  bool one_place = false;  // Its result may come to where its contribution lies.

  // Validated before OnRankDeclare: it fits. May be 0.
  uint64_t bytes() const { return collective.bytes(rank_count); }
  // The shape of a contribution, and of a result. Both are allocated with their tables:
  // total_bytes().
  BufferShape shape() const { return BufferShape::Of(collective, rank_count); }
};

// One rank's contribution to one round, from host memory.
struct PushedRound {
  LocalRank local_rank;
  TensorIndex tensor;
  Round round;
  int32_t priority = 0;
  RoundSignature signature = 0;  // What the rank says the round is of.
  // The bytes of each part, by part; 0 for those that the rank does not give. Each is validated: a
  // multiple of the dtype's size, and not past a full part. Empty: what it gives is full. Valid
  // during the call.
  std::span<const uint32_t> lengths;
};

// Memory of a rank's on a GPU, in its driver's words.
struct RankExport {
  GpuUuidBytes uuid = {};
  uint64_t buffer_id = 0;
  GpuHandleBytes handle = {};
};

// Where on a GPU a push lies: by the rank's word, not yet compared with anything.
struct DevicePlace {
  uint32_t buffer = 0;
  uint64_t offset = 0;
  bool again = false;  // The round that is open, whose event was lost.
};

struct RankGone {
  LocalRank local_rank;
  pid_t pid = 0;
  bool clean = false;  // It said goodbye.
  std::string text;    // "local rank 1 (pid 4711, 'train.py') ended without saying goodbye"
};

// What declarations call a rank. Nothing: its rank in the job.
struct RankNumbers {
  std::optional<uint32_t> own;
  uint32_t count = 0;  // Those of standbys included; 0: there are none.
};

struct WelcomeData {
  Rank rank;
  uint32_t size = 0;
  uint32_t local_size = 0;
  NodeRank node_rank;
  uint32_t node_count = 0;
  std::string job_name;
  bool standby = false;
  // Where the node is one: what declarations call the rank, and how many numbers there are.
  RankNumbers numbers = {};
};

struct DeclaredData {
  TensorIndex tensor;
  uint64_t tensor_bytes = 0;  // RankDeclaration::bytes().
  Round completed_round;      // The rank's next push is of completed_round + 1. 0 for a new tensor.
  Location contribution;      // None (segment 0): the rank pushes from a GPU.
  std::array<Location, 2> result;  // By round & 1. None for a tensor that the ranks sum.
  Location arrivals;               // In an ArrivalLog's memory, from AllocateResult; or none.
  // Set: each rank sums the contributions itself; `contribution` is what PlaceContribution gave.
  std::optional<SharedPlace> shared;
};

// Counted since Create.
struct RankServerCounters {
  uint64_t ranks_accepted = 0;
  uint64_t ranks_refused = 0;  // At hello, or by SO_PEERCRED.
  uint64_t ranks_gone_unclean = 0;
  uint64_t protocol_errors = 0;  // Garbage on a socket or in a ring.
  uint64_t pushes = 0;
  uint64_t completions = 0;
  uint64_t wakes_sent = 0;
  uint64_t doorbells_received = 0;
};

// What ranks do. Called inside Poll..., on the owner thread. A sink may call any function of the
// server but must not destroy it.
class RankEventSink {
 public:
  virtual ~RankEventSink() = default;

  // Answer with Welcome or Refuse, now or later; the rank waits. Its local rank is reserved
  // meanwhile.
  virtual void OnRankHello(RankConnectionId connection, const RankHello& hello) = 0;
  // Answer with ReplyDeclared or RefuseDeclaration, now or later. Only after Welcome. Collective,
  // group (with the rank and the root in it), name and size are valid in themselves; the same
  // tensor may be declared again, by one rank too.
  virtual void OnRankDeclare(RankConnectionId connection, RequestId request,
                             const RankDeclaration& declaration) = 0;
  // Validated: the rank has been told of the tensor, `round` is its next one and its last is
  // complete. The bytes lie in the contribution buffer, and stay until the round is published.
  virtual void OnRankPush(RankConnectionId connection, const PushedRound& push) = 0;
  // The same for a push from a GPU: the contribution lies there, after the tensor's event. `place`
  // is the rank's word: answer what makes no sense with Garbage.
  virtual void OnRankPushOnDevice(RankConnectionId connection, LocalRank local_rank,
                                  TensorIndex tensor, Round round, int32_t priority,
                                  const DevicePlace& place);
  // Only with RankServerConfig::takes_devices. Answer with ReplyExported, ReplyUnexported,
  // ReplyPlaced, now or later.
  virtual void OnRankExport(RankConnectionId connection, RequestId request,
                            const RankExport& exported);
  virtual void OnRankUnexport(RankConnectionId connection, RequestId request, uint32_t buffer);
  // A tensor that the rank has been told of. `signature`: what its pushes from the GPU are of.
  virtual void OnRankPlace(RankConnectionId connection, RequestId request, TensorIndex tensor,
                           uint32_t buffer, RoundSignature signature);
  // Answer with ReplyMembership, now or (kWait) later. After what the rank has pushed before. A
  // sink that lets nobody in or out has no answer.
  virtual void OnRankBoundary(RankConnectionId /*connection*/, RequestId /*request*/,
                              const Boundary& /*question*/) {}
  // Answer with ReplyTold. After what all ranks have pushed before. Of a tensor that the rank has
  // been told of.
  virtual void OnRankAsk(RankConnectionId /*connection*/, RequestId /*request*/,
                         TensorIndex /*tensor*/, Round /*round*/) {}
  // Once, for every connection that OnRankHello was called for, unless the agent ended it itself.
  // Nothing about the connection follows. What it had pushed stays readable until Release.
  virtual void OnRankGone(RankConnectionId connection, const RankGone& gone) = 0;
};

// The agent's side of docs/shared_memory.md: the socket, the ranks, their segments and rings.
//
// One owner thread; nothing here blocks (creating large segments takes the time that the kernel
// needs for their pages). No threads of its own. Bytes from ranks never reach a CHECK: a rank that
// sends garbage is told why, disconnected, and reported by OnRankGone.
//
// In the duty cycle: PollRings at every turn (a few cache misses a rank), PollSockets when
// WaitDescriptor is readable, PrepareToSleep before sleeping on WaitDescriptor.
class RankServer : public RankMemory {
 public:
  // Creates the socket, removing one whose agent is dead. kInvalidArgument, kPermissionDenied, or
  // kLimit, with a text; kRankTaken when another agent listens there: it names the agent's pid.
  static Outcome<std::unique_ptr<RankServer>> Create(RankServerConfig config);

  // Removes the socket's file, closes every connection. Buffers that it gave out are gone.
  ~RankServer() override = default;

  virtual const RankServerConfig& config() const = 0;

  // Handles what the rings hold. Returns the number of pushes delivered.
  virtual int PollRings(RankEventSink& sink) = 0;
  // Handles what the sockets hold: hellos, declarations, goodbyes, deaths. Returns the number of
  // events.
  virtual int PollSockets(RankEventSink& sink) = 0;
  // Both.
  int Poll(RankEventSink& sink) { return PollSockets(sink) + PollRings(sink); }

  // One epoll descriptor for the listening socket and all ranks: readable when PollSockets has
  // work. A push makes it readable too while the server is prepared to sleep.
  virtual int WaitDescriptor() const = 0;
  // Until when the caller may sleep: any push, or, of tensors that the ranks sum, those for which a
  // thread waits or polls (nobody needs the others).
  enum class Until : uint8_t { kPushed, kAwaited };
  // Asks ranks to ring the doorbell. false: that has happened already; do not sleep, poll again.
  // The next PollRings ends it.
  virtual bool PrepareToSleep(Until until) = 0;
  // Tells ranks that this thread runs: call it every kBeatEveryNs.
  virtual void Beat() = 0;

  // Answers OnRankHello.
  virtual void Welcome(RankConnectionId connection, const WelcomeData& data) = 0;
  // Answers OnRankHello; ends the connection. No OnRankGone follows.
  virtual void Refuse(RankConnectionId connection, RankStatus status, std::string_view text) = 0;

  // Answers OnRankDeclare; hands over descriptors of segments that are new to the rank. `tensor`
  // must be below config().tensors_max. A repeated declaration gets what the first one got. A rank
  // whose client knows no sums in place is refused a tensor of which there are.
  virtual void ReplyDeclared(RankConnectionId connection, RequestId request,
                             const DeclaredData& data) = 0;
  virtual void RefuseDeclaration(RankConnectionId connection, RequestId request, RankStatus status,
                                 std::string_view text) = 0;

  virtual void ReplyExported(RankConnectionId connection, RequestId request,
                             const Exported& answer) = 0;
  virtual void ReplyUnexported(RankConnectionId connection, RequestId request,
                               const Unexported& answer) = 0;
  virtual void ReplyPlaced(RankConnectionId connection, RequestId request,
                           const Placed& answer) = 0;
  // The events that it was given with Placed are void, now: it asks for others, and pushes once
  // more what is open.
  virtual void PublishEventsLost(RankConnectionId connection) = 0;
  // A rank sent `why`: it is told, disconnected, and reported to the sink as gone. Only inside a
  // call of the sink's.
  virtual void Garbage(RankConnectionId connection, const std::string& why,
                       RankEventSink& sink) = 0;

  // Has the rank ask before it begins a further step than `stop_at - 1`; 0: it need not. Returns
  // how many it has ended, by its own word: of any later one it asks.
  virtual uint64_t PublishStop(RankConnectionId connection, uint64_t stop_at) = 0;
  // How many steps the rank has ended, by its own word.
  virtual uint64_t StepsEnded(RankConnectionId connection) = 0;
  // To every rank, also those that come.
  virtual void PublishEpoch(Epoch epoch) = 0;
  virtual void ReplyMembership(RankConnectionId connection, RequestId request,
                               const RankMembership& answer) = 0;
  virtual void ReplyTold(RankConnectionId connection, RequestId request, const Told& answer) = 0;
  // What the rank declares from now on has these numbers.
  virtual void Renumber(RankConnectionId connection, Rank rank, uint32_t size,
                        const RankNumbers& numbers) = 0;

  struct Completion {
    TensorIndex tensor;
    Round round;
    RankStatus status = RankStatus::kOk;
    std::string_view text;  // Unless kOk.
    uint64_t ranks_summed = 0;
    Epoch sum_epoch;
  };
  // Tells every rank that has declared the tensor; wakes who sleeps. The result's bytes must be in
  // place, with its table; of a tensor that the ranks sum, all local ranks' contributions. With a
  // status other than kOk the round is over for all ranks and they may push the next one. Where the
  // ranks sum that one has a result only after a kMismatch of a round that all of them had pushed.
  virtual void PublishCompletion(const Completion& completion) = 0;

  // So many bytes of the tensor's open round's result have come, by its ArrivalLog: wakes who
  // sleeps for them.
  virtual void PublishArrival(TensorIndex tensor, uint64_t bytes) = 0;

  // The job has failed: every wait of every rank ends with `status` and `text`; later hellos are
  // refused with them. Only the first call counts.
  virtual void FailAll(RankStatus status, std::string_view text) = 0;

  // Ends a connection: the rank's waits end with `status` and `text`. No OnRankGone follows;
  // Release does.
  virtual void Disconnect(RankConnectionId connection, RankStatus status,
                          std::string_view text) = 0;
  // Drops the contribution memory of a connection that is gone. Its spans are invalid afterwards.
  virtual void Release(RankConnectionId connection) = 0;

  virtual RankServerCounters counters() const = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_H_
