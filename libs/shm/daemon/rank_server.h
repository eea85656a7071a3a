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

// A tensor on this node. The agent numbers them from 0, without gaps; the number is the same for
// all its ranks.
using TensorIndex = StrongId<struct TensorIndexTag, uint32_t>;
// The number of a rank's question. The answer repeats it.
using RequestId = StrongId<struct RequestIdTag, uint32_t>;

inline constexpr int64_t kBeatEveryNs = 2'000'000'000;

struct RankServerConfig {
  std::string socket_path;
  // The socket's mode bits. While only the owner may write to it, ranks of other users are refused,
  // even root's. 0660 lets `socket_gid` in, 0666 everybody.
  mode_t socket_mode = 0600;
  std::optional<gid_t> socket_gid;
  uint32_t local_rank_count = 1;
  Incarnation incarnation;
  uint32_t ring_capacity = 4096;  // A power of two.
  uint32_t tensors_max = 65536;
  // Limits on the memory of declarations: contributions of one rank, results of the node.
  uint64_t contribution_bytes_max = 64 * kGiB;
  uint64_t result_bytes_max = 128 * kGiB;
  uint64_t segment_bytes_min = 64 * kMiB;
  // How long ranks wait for a Beat before they count the agent as gone; 0: for ever.
  uint32_t silence_ms = 0;
  // Whether the sink takes GPU memory. If not, the server tells a rank that offers some.
  bool takes_devices = false;
};

struct RankHello {
  LocalRank local_rank;  // The wanted local rank, or the lowest free one.
  pid_t pid = 0;         // From SO_PEERCRED; 0 if the rank is in a foreign pid namespace.
  uid_t uid = 0;
  std::string client_name;
  bool knows_standbys = false;  // The rank's node may enter a running job as one.
};

struct RankDeclaration {
  std::string name;
  Collective collective;
  uint32_t root_rank = 0;       // In the job, and in the group. 0 if the collective has none.
  std::vector<uint32_t> ranks;  // The group, as ranks of the job, ascending. Empty: all ranks.
  uint32_t rank_count = 0;      // In the group.
  int32_t priority = 0;
  bool on_device = false;  // The rank pushes from a GPU, and wants no contribution buffer.
  bool in_place = false;   // Sum in place, if the ranks sum and this is the first declaration.
  bool one_place = false;  // The result may come to where the contribution lies.

  // OnRankDeclare gets only sizes that fit. May be 0.
  uint64_t bytes() const { return collective.bytes(rank_count); }
  // The shape of a contribution, and of a result. Both are allocated with their tables:
  // total_bytes().
  BufferShape shape() const { return BufferShape::Of(collective, rank_count); }
};

// One rank's contribution from host memory to one round.
struct PushedRound {
  LocalRank local_rank;
  TensorIndex tensor;
  Round round;
  int32_t priority = 0;
  RoundSignature signature = 0;  // What the rank says about the round.
  // The bytes of each part; 0 for a part that the rank does not give. Each is validated: a multiple
  // of the dtype's size, and at most a full part. Empty: what the rank gives is full. Valid during
  // the call.
  std::span<const uint32_t> lengths;
};

// A rank's GPU memory, as its driver describes it.
struct RankExport {
  GpuUuidBytes uuid = {};
  uint64_t buffer_id = 0;
  GpuHandleBytes handle = {};
};

// Where on a GPU a push lies, as the rank says; not compared with anything yet.
struct DevicePlace {
  uint32_t buffer = 0;
  uint64_t offset = 0;
  bool again = false;  // Repeats the open round, whose event was lost.
};

struct RankGone {
  LocalRank local_rank;
  pid_t pid = 0;
  bool clean = false;  // The rank said goodbye.
  std::string text;    // "local rank 1 (pid 4711, 'train.py') ended without saying goodbye"
};

// The rank's number in declarations. nullopt: its rank in the job.
struct RankNumbers {
  std::optional<uint32_t> own;
  uint32_t count = 0;  // With the numbers of standbys; 0: there are no standbys.
};

struct WelcomeData {
  Rank rank;
  uint32_t size = 0;
  uint32_t local_size = 0;
  NodeRank node_rank;
  uint32_t node_count = 0;
  std::string job_name;
  bool standby = false;
  // If the node is a standby: the rank's number in declarations, and how many numbers there are.
  RankNumbers numbers = {};
};

struct DeclaredData {
  TensorIndex tensor;
  uint64_t tensor_bytes = 0;  // RankDeclaration::bytes().
  Round completed_round;      // The rank's next push is of completed_round + 1; 0 for a new tensor.
  Location contribution;      // None (segment 0): the rank pushes from a GPU.
  std::array<Location, 2> result;  // By round & 1. None for a tensor that the ranks sum.
  Location arrivals;               // In an ArrivalLog's memory, from AllocateResult; or none.
  // If set, each rank sums the contributions itself; `contribution` is from PlaceContribution.
  std::optional<SharedPlace> shared;
};

// Counted since Create.
struct RankServerCounters {
  uint64_t ranks_accepted = 0;
  uint64_t ranks_refused = 0;  // At hello, or by SO_PEERCRED.
  uint64_t ranks_gone_unclean = 0;
  uint64_t protocol_errors = 0;  // Invalid bytes on a socket or in a ring.
  uint64_t pushes = 0;
  uint64_t completions = 0;
  uint64_t wakes_sent = 0;
  uint64_t doorbells_received = 0;
};

// What ranks do. The server calls it inside Poll..., on the owner thread. A sink may call any
// function of the server but must not destroy it.
class RankEventSink {
 public:
  virtual ~RankEventSink() = default;

  // Answer with Welcome or Refuse, now or later; the rank waits. Its local rank stays reserved
  // until then.
  virtual void OnRankHello(RankConnectionId connection, const RankHello& hello) = 0;
  // Answer with ReplyDeclared or RefuseDeclaration, now or later. Comes only after Welcome.
  // Collective, group (with the rank and the root in it), name and size are valid in themselves. A
  // tensor may be declared again, even by the same rank.
  virtual void OnRankDeclare(RankConnectionId connection, RequestId request,
                             const RankDeclaration& declaration) = 0;
  // Validated: the rank has been told of the tensor, `round` is its next one, and its last round is
  // complete. The bytes lie in the contribution buffer, and stay until the round is published.
  virtual void OnRankPush(RankConnectionId connection, const PushedRound& push) = 0;
  // The same for a push from a GPU. The contribution lies there, once the tensor's event has
  // happened. `place` is not checked: answer an invalid one with Garbage.
  virtual void OnRankPushOnDevice(RankConnectionId connection, LocalRank local_rank,
                                  TensorIndex tensor, Round round, int32_t priority,
                                  const DevicePlace& place);
  // Comes only with RankServerConfig::takes_devices. Answer with ReplyExported, ReplyUnexported,
  // ReplyPlaced, now or later.
  virtual void OnRankExport(RankConnectionId connection, RequestId request,
                            const RankExport& exported);
  virtual void OnRankUnexport(RankConnectionId connection, RequestId request, uint32_t buffer);
  // `tensor` is one that the rank has been told of. `signature`: of its pushes from the GPU.
  virtual void OnRankPlace(RankConnectionId connection, RequestId request, TensorIndex tensor,
                           uint32_t buffer, RoundSignature signature);
  // Answer with ReplyMembership, now or (kWait) later. Comes after what the rank has pushed before.
  // A sink whose nodes never change gives no answer.
  virtual void OnRankBoundary(RankConnectionId /*connection*/, RequestId /*request*/,
                              const Boundary& /*question*/) {}
  // Answer with ReplyTold. Comes after what all ranks have pushed before. `tensor` is one that the
  // rank has been told of.
  virtual void OnRankAsk(RankConnectionId /*connection*/, RequestId /*request*/,
                         TensorIndex /*tensor*/, Round /*round*/) {}
  // Comes once for every connection that OnRankHello was called for, unless the agent ended it
  // itself. Nothing about the connection follows. What the rank had pushed stays readable until
  // Release.
  virtual void OnRankGone(RankConnectionId connection, const RankGone& gone) = 0;
};

// The agent's side of docs/shared_memory.md: the socket, the ranks, their segments and rings.
//
// One owner thread, and no threads of its own. Nothing here blocks. Buffers get their memory by
// UnbackedMemory::Back, which another thread may call. Bytes from ranks never reach a CHECK: a rank
// that sends invalid bytes is told why, disconnected, and reported by OnRankGone.
//
// In the duty cycle, call PollRings at every turn (a few cache misses a rank), PollSockets when
// WaitDescriptor is readable, and PrepareToSleep before sleeping on WaitDescriptor.
class RankServer : public RankMemory {
 public:
  // Creates the socket, and replaces one whose agent is dead. kInvalidArgument, kPermissionDenied,
  // or kLimit, with a text. kRankTaken if another agent listens there; the text names its pid.
  static Outcome<std::unique_ptr<RankServer>> Create(RankServerConfig config);

  // Removes the socket's file and closes every connection. Its buffers become invalid.
  ~RankServer() override = default;

  virtual const RankServerConfig& config() const = 0;

  // Handles what the rings hold. Returns the number of pushes delivered.
  virtual int PollRings(RankEventSink& sink) = 0;
  // Handles what the sockets hold: hellos, declarations, goodbyes, deaths. Returns the number of
  // events.
  virtual int PollSockets(RankEventSink& sink) = 0;
  // Polls both.
  int Poll(RankEventSink& sink) { return PollSockets(sink) + PollRings(sink); }

  // One epoll descriptor for the listening socket and all ranks. It is readable when PollSockets
  // has work. While the server is prepared to sleep, a push makes it readable too.
  virtual int WaitDescriptor() const = 0;
  // Until when the caller may sleep. kPushed: any push. kAwaited: of tensors that the ranks sum,
  // only pushes for which a thread waits or polls, because nobody needs the others.
  enum class Until : uint8_t { kPushed, kAwaited };
  // Asks ranks to ring the doorbell. Returns false if `until` has come already: do not sleep, poll
  // again. The next PollRings ends the sleep.
  virtual bool PrepareToSleep(Until until) = 0;
  // Tells ranks that this thread runs. Call it every kBeatEveryNs.
  virtual void Beat() = 0;

  // Answers OnRankHello.
  virtual void Welcome(RankConnectionId connection, const WelcomeData& data) = 0;
  // Answers OnRankHello; ends the connection. No OnRankGone follows.
  virtual void Refuse(RankConnectionId connection, RankStatus status, std::string_view text) = 0;

  // Answers OnRankDeclare, and hands over the descriptors of segments that are new to the rank.
  // `tensor` must be below config().tensors_max. A repeated declaration gets the same answer as the
  // first. A rank whose client does not know sums in place is refused a tensor that has them.
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
  // The events that the rank got with Placed are void from now on. The rank asks for others, and
  // pushes again what is open.
  virtual void PublishEventsLost(RankConnectionId connection) = 0;
  // A rank sent `why`: it is told, disconnected, and reported to the sink as gone. Call it only
  // inside a call of the sink.
  virtual void Garbage(RankConnectionId connection, const std::string& why,
                       RankEventSink& sink) = 0;

  // Makes the rank ask before it begins any step after step `stop_at - 1`; 0: it need not ask.
  // Returns how many steps the rank says it has ended: it asks before any later one.
  virtual uint64_t PublishStop(RankConnectionId connection, uint64_t stop_at) = 0;
  // Returns how many steps the rank says it has ended.
  virtual uint64_t StepsEnded(RankConnectionId connection) = 0;
  // Tells every rank, and ranks that come later.
  virtual void PublishEpoch(Epoch epoch) = 0;
  virtual void ReplyMembership(RankConnectionId connection, RequestId request,
                               const RankMembership& answer) = 0;
  virtual void ReplyTold(RankConnectionId connection, RequestId request, const Told& answer) = 0;
  // The rank's later declarations use these numbers.
  virtual void Renumber(RankConnectionId connection, Rank rank, uint32_t size,
                        const RankNumbers& numbers) = 0;

  struct Completion {
    TensorIndex tensor;
    Round round;
    RankStatus status = RankStatus::kOk;
    std::string_view text;  // Unless kOk.
    uint64_t ranks_summed = 0;
    Epoch sum_epoch;
    // By local rank: the result does not have what this rank contributes. Empty: it has all.
    std::vector<bool> left_out;

    bool LeavesOut(LocalRank rank) const {
      return rank.value() < left_out.size() && left_out[rank.value()];
    }
  };
  // Tells every rank that has declared the tensor, and wakes sleeping threads. The result's bytes
  // and its table must be in place; for a tensor that the ranks sum, all local ranks'
  // contributions. With a status other than kOk the round is over for all ranks and they may push
  // the next one. If the ranks sum, that next round has a result only after a kMismatch of a round
  // that all of them had pushed.
  virtual void PublishCompletion(const Completion& completion) = 0;

  // `bytes` of the result of the tensor's open round have arrived, by its ArrivalLog: wakes the
  // threads that sleep for them.
  virtual void PublishArrival(TensorIndex tensor, uint64_t bytes) = 0;

  // The job has failed: every wait of every rank ends with `status` and `text`, and later hellos
  // are refused with them. Only the first call counts.
  virtual void FailAll(RankStatus status, std::string_view text) = 0;

  // Ends a connection: the rank's waits end with `status` and `text`. No OnRankGone follows; call
  // Release.
  virtual void Disconnect(RankConnectionId connection, RankStatus status,
                          std::string_view text) = 0;
  // Drops the contribution memory of a connection that is gone. Its spans become invalid.
  virtual void Release(RankConnectionId connection) = 0;

  virtual RankServerCounters counters() const = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_H_
