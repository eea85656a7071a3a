// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_EFFECTS_H_
#define TALWEG_LIBS_PIPELINE_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/encoding.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

// What an agent's core wants done. The caller performs effects, in order, after the event that
// produced them. Effects name memory; they never point to it.
namespace talweg::pipeline {

// A tensor's place in this agent's tables, counted from 0 in order of first declaration. Never
// reused.
using TensorIndex = StrongId<struct TensorIndexTag, uint32_t>;

// How a tensor, a round or a job ended.
enum class Status : uint8_t {
  kOk = 0,
  kInvalid = 1,     // The request makes no sense; the text says why.
  kMismatch = 2,    // The ranks do not agree on what the tensor is.
  kOverBudget = 3,  // No room for the tensor, here or at an owner.
  kAborted = 4,     // The round cannot be finished; later rounds may be.
  kJobFailed = 5,
};
const char* StatusName(Status status);

struct TensorSpec {
  std::string name;
  Collective collective;
  uint32_t root_rank = 0;   // Global, by the numbers that ranks here use. 0 if there is no root.
  std::vector<Rank> ranks;  // The group, by the same numbers, ascending. Empty: all ranks.

  // The bytes of one rank's contribution, or of its result.
  uint64_t bytes() const { return collective.bytes(rank_count()); }
  uint32_t part_count() const { return collective.part_count(rank_count()); }
  // The size of the group. 1 for "all ranks": there the number does not matter.
  uint32_t rank_count() const { return ranks.empty() ? 1 : static_cast<uint32_t>(ranks.size()); }

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Where the memory of a tensor may lie, as a rank wishes. The first declaration of a tensor that
// this node accepts decides for all of its ranks.
struct MemoryWishes {
  // Ranks push the tensor from GPUs. The contribution of a node's only rank then does not lie where
  // it can be sent from: it is reduced to the send buffer, as those of several ranks are.
  bool on_device = false;
  bool in_place = false;   // If the ranks sum, each may write into the others' contributions.
  bool one_place = false;  // The result may come to where a node's only rank contributes.

  friend bool operator==(const MemoryWishes&, const MemoryWishes&) = default;
};

// What a rank declares.
struct Declaration {
  TensorSpec spec;  // The same at all ranks.
  MemoryWishes wishes;
};

// A rank has contributed to a round.
struct Push {
  LocalRank rank;
  TensorIndex tensor;
  Round round;
  int32_t priority = 0;
  RoundSignature signature = 0;
  // By part, how many bytes the rank gives, for the parts that it gives. Empty: all of them are
  // full.
  std::vector<uint32_t> lengths;
};

// Memory of one tensor on this node.
enum class Memory : uint8_t {
  kContribution = 1,  // The buffer of the node's only rank.
  kSendBuffer = 2,    // Where the ranks of this node are reduced to, and encoded.
  kResult = 3,        // The result buffer of the round's parity.
  kArrivals = 4,      // Where results arrive if the tensor is encoded.
};

// Bytes of one tensor's round in `memory`.
struct SliceBytes {
  TensorIndex tensor;
  Round round;
  SliceIndex slice;
  Memory memory = Memory::kSendBuffer;
  uint64_t offset_bytes = 0;  // In the tensor, also where the bytes are encoded.
  uint32_t length_bytes = 0;  // How many bytes lie there, from the slice's beginning on.

  friend bool operator==(const SliceBytes&, const SliceBytes&) = default;
};

// Opens a connection that every event calls `connection`. OnConnected or OnDisconnected follows.
struct Connect {
  ConnectionId connection;
  Incarnation aggregator;
  std::string name;
  std::string data_address;
  std::string host_id;
};

// After this, nothing more may land through the connection, and no event of it may follow.
struct Close {
  ConnectionId connection;
  std::string reason;
};

// Entries for one peer, in as many frames as they need. All frames of a Report except the last
// carry kFlagMore; a message without entries is one frame. The caller fills in what only it knows:
//   Declare     `result`, from `tensors`[i] and the connection
//   Contribute  `bytes` of an inline entry, from `sources`[i]; of a disagreement, from
//               `texts`[i]
struct Send {
  ConnectionId connection;
  wire::FrameType type = wire::FrameType::kGoodbye;
  JobId job;
  Epoch epoch;
  wire::Entries entries;
  std::vector<TensorIndex> tensors;
  std::vector<SliceBytes> sources;
  std::vector<std::string> texts;  // As many as there are entries, or none.
  bool more_wait = false;          // More contributions for this peer wait: the frames carry
                                   // kFlagMore.
};

// Writes a slice. The Send that announces it follows on the same ordered connection.
struct WriteSlice {
  ConnectionId connection;
  SliceBytes source;
  wire::RemoteRef target;
};

// Combines the ranks' contributions with the tensor's op, in the given order. A collective that
// copies has one input. If the tensor is encoded and `is_final` is false, the outcome is encoded to
// `target`, whose length is that of the data. OnReduced(ticket) follows. Skip the reduction if
// AgentCore::Wants(ticket) has become false.
struct ReduceSlice {
  uint64_t ticket = 0;
  SliceBytes target;              // kSendBuffer, or kResult when `is_final`.
  std::vector<LocalRank> inputs;  // None: the outcome is zero.
  // For how many ranks the outcome stands. It is more than the inputs if late ranks are left out.
  uint32_t rank_count = 0;
  bool is_final = false;  // The target is the round's result, not a contribution: an average
                          // divides here.
};

// Copies the payload of entry `entry` of the Result frame that is being delivered to `target`.
struct CopyInline {
  uint32_t entry = 0;
  SliceBytes target;
};

// Decodes a result. OnDecoded(ticket) follows. Skip it if AgentCore::Wants(ticket) has become
// false.
struct DecodeSlice {
  uint64_t ticket = 0;
  Encoding encoding = Encoding::kPlain;
  SliceBytes source;  // kArrivals.
  SliceBytes target;  // kResult.
};

// A contribution of this node is the slice's result, and no result travels: copies `source` to the
// same offset of the result buffer.
struct CopyOwn {
  SliceBytes source;
};

// The result of a slice of the open round has arrived, and ranks may begin to copy it. A new view
// may discard the slice. SliceArrived is then sent again when the new result arrives. Only a rank
// that was told of every byte exactly once has the round's result.
struct SliceArrived {
  SliceBytes result;
};

// Allocates a tensor's memory: a contribution buffer for every local rank, two result buffers, and
// a send buffer if the node has several ranks. OnTensorAllocated follows, now or later.
struct AllocateTensor {
  TensorIndex tensor;
  TensorSpec spec;
  MemoryWishes wishes;
};

// The answer to OnRankDeclare.
struct DeclareReply {
  LocalRank local_rank;
  uint32_t request = 0;
  Status status = Status::kOk;
  std::string text;
  TensorIndex tensor;  // If kOk.
  Round held;          // If kOk: the rank's first round is the next.
};

// Ends every local rank's wait for the round. If kOk, the result lies in the result buffer.
struct CompleteRound {
  TensorIndex tensor;
  Round round;
  Status status = Status::kOk;
  std::string text;
  uint32_t ranks_summed = 0;
  Epoch sum_epoch;
  // If kOk: by part, how many bytes the result has. The lengths of parts that no rank here gets
  // mean nothing.
  std::vector<uint64_t> lengths;
  // By local rank: the round went on without this rank, which pushes it late, or is about to. Empty
  // if it went on without none.
  std::vector<bool> left_out;
};

// Every round of the tensor, open or future, has failed.
struct FailTensor {
  TensorIndex tensor;
  Status status = Status::kMismatch;
  std::string text;
};

// The rank broke the rules. Tells it why, and disconnects it. OnRankLeft follows.
struct FailRank {
  LocalRank local_rank;
  std::string text;
};

// Ends every rank's waits with this text. Nothing is sent any more.
struct FailJob {
  Status status = Status::kJobFailed;
  std::string text;
};

// Tells the scheduler that this member cannot go on. `rank`: its rank that is dead, if that is why.
struct ReportLost {
  std::string text;
  std::optional<Rank> rank;
};

// A rank that has ended `steps` steps, by its own count, begins no further one; ranks that wait but
// have ended fewer go on. nullopt: all go on. 0: all stop at the end of their current step, and
// OnRanksStop follows with the steps that each had ended when it was told.
struct StopRanks {
  std::optional<uint64_t> steps;
};

// Tells the scheduler the latest step that a rank here is in; or that all ranks here have ended the
// step that they were asked to end, and no round is open.
struct Quiesced {
  uint64_t id = 0;
  uint64_t step = 0;
};

// All ranks have joined, and have left cleanly.
struct RanksDone {};

// Says who has been waited for, and for how long. Sent at growing intervals.
struct LogWaiting {
  enum class For : uint8_t {
    kNodes = 1,        // An owner waits for contributions; `missing` are node ranks.
    kLocalRanks = 2,   // This node waits for pushes; `missing` are local ranks.
    kAggregators = 3,  // This node waits for answers; `missing` are places in the view.
    kEpoch = 4,        // An owner waits for reports; `missing` are node ranks.
  };
  For what = For::kNodes;
  TensorIndex tensor;  // For kNodes and kLocalRanks.
  Round round;
  uint64_t waited_ns = 0;
  std::vector<uint32_t> missing;
  std::vector<uint64_t> absent_ns;  // How long each node has had no connection; 0: it has one.
};

// A message for people. What peers did wrong is also counted.
struct Log {
  bool is_warning = false;
  std::string text;
};

using Effect =
    std::variant<Connect, Close, Send, WriteSlice, ReduceSlice, CopyInline, DecodeSlice, CopyOwn,
                 SliceArrived, AllocateTensor, DeclareReply, CompleteRound, FailTensor, FailRank,
                 FailJob, ReportLost, StopRanks, Quiesced, RanksDone, LogWaiting, Log>;
using Effects = std::vector<Effect>;

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_EFFECTS_H_
