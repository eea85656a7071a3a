// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_EFFECTS_H_
#define TALWEG_LIBS_PIPELINE_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

// What an agent's core wants done. Effects are performed by the caller, in order, after the event
// that produced them; they name memory, they never point to it.
namespace talweg::pipeline {

// A tensor's place in this agent's tables, from 0 in order of first declaration. Never reused.
using TensorIndex = StrongId<struct TensorIndexTag, uint32_t>;

// How a tensor, a round or a job ended.
enum class Status : uint8_t {
  kOk = 0,
  kInvalid = 1,     // The request makes no sense: the text says why.
  kMismatch = 2,    // The ranks do not agree on what the tensor is.
  kOverBudget = 3,  // No room for the tensor, here or at an owner.
  kAborted = 4,     // The round cannot be finished; later rounds may be.
  kJobFailed = 5,
};
const char* StatusName(Status status);

struct TensorSpec {
  std::string name;
  Collective collective;
  uint32_t root_rank = 0;   // Global, as ranks here count. 0 where there is no root.
  std::vector<Rank> ranks;  // The group, likewise, ascending. Empty: all ranks.

  // What a rank's contribution, or its result, takes.
  uint64_t bytes() const { return collective.bytes(rank_count()); }
  uint32_t part_count() const { return collective.part_count(rank_count()); }
  // Where it does not matter how many there are, 1 stands for all.
  uint32_t rank_count() const { return ranks.empty() ? 1 : static_cast<uint32_t>(ranks.size()); }

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// A rank has contributed to a round.
struct Push {
  LocalRank rank;
  TensorIndex tensor;
  Round round;
  int32_t priority = 0;
  RoundSignature signature = 0;
  // By part, in bytes, for the parts that the rank gives. Empty: all of them are full.
  std::vector<uint32_t> lengths;
};

// Memory of one tensor on this node.
enum class Memory : uint8_t {
  kContribution = 1,  // The buffer of the node's only rank.
  kSendBuffer = 2,    // Where the node's ranks are reduced to.
  kResult = 3,        // The result buffer of the round's parity.
};

// Some bytes of one tensor's round in `memory`.
struct SliceBytes {
  TensorIndex tensor;
  Round round;
  SliceIndex slice;
  Memory memory = Memory::kSendBuffer;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;  // How long the data is: at most the slice.

  friend bool operator==(const SliceBytes&, const SliceBytes&) = default;
};

// Open a connection and call it `connection` in every event: OnConnected or OnDisconnected follows.
struct Connect {
  ConnectionId connection;
  Incarnation aggregator;
  std::string name;
  std::string data_address;
  std::string host_id;
};

// When this has been performed nothing more may land through the connection, and no event of it
// may follow.
struct Close {
  ConnectionId connection;
  std::string reason;
};

// Entries for one peer, in as many frames as they need (a Report's frames but the last carry
// kFlagMore; an entry-less message is one frame). The caller completes what only it knows:
//   Declare     `result`, from `tensors`[i] and the connection
//   Contribute  `bytes` of an inline entry, from `sources`[i]; those of a disagreement are
//               `texts`[i]
struct Send {
  ConnectionId connection;
  wire::FrameType type = wire::FrameType::kGoodbye;
  JobId job;
  Epoch epoch;
  wire::Entries entries;
  std::vector<TensorIndex> tensors;
  std::vector<SliceBytes> sources;
  std::vector<std::string> texts;  // As many as entries, or none.
  bool more_wait = false;          // Contributions for this peer; its frames carry kFlagMore.
};

// Goes before the Send that announces it, on the same ordered connection.
struct WriteSlice {
  ConnectionId connection;
  SliceBytes source;
  wire::RemoteRef target;
};

// Combine the ranks' contributions with the tensor's op, in the order given; where the collective
// copies there is one. OnReduced(ticket) when done. Skip it if AgentCore::ReduceWanted(ticket) is
// false by then.
struct ReduceSlice {
  uint64_t ticket = 0;
  SliceBytes target;  // kSendBuffer, or kResult when `is_final`.
  std::vector<LocalRank> inputs;
  bool is_final = false;  // The round's result, not a contribution to it: an average divides here.
};

// Copy the payload of entry `entry` of the Result frame that is being delivered to `target`.
struct CopyInline {
  uint32_t entry = 0;
  SliceBytes target;
};

// What a rank here has given is the result of the slice, which does not travel: copy `source` to
// the same bytes of the result.
struct CopyOwn {
  SliceBytes source;
};

// The result of a slice of the open round is there. Ranks may begin to copy it; but it may still be
// given up in a new view: then it is said again when it has come again, so that whoever has been
// told of each byte once has the round's result.
struct SliceArrived {
  SliceBytes result;
};

// Make memory for a tensor: contribution buffers of every local rank, two result buffers, a send
// buffer if the node has several ranks. OnTensorAllocated follows.
struct AllocateTensor {
  TensorIndex tensor;
  TensorSpec spec;
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

// Every local rank's wait for the round is over; its result, if kOk, lies in the result buffer.
struct CompleteRound {
  TensorIndex tensor;
  Round round;
  Status status = Status::kOk;
  std::string text;
  uint32_t ranks_summed = 0;
  Epoch sum_epoch;
  // If kOk: by part, how many bytes of it the result has. Those of parts that no rank here gets
  // mean nothing.
  std::vector<uint64_t> lengths;
};

// Every round of the tensor, open or future, has failed.
struct FailTensor {
  TensorIndex tensor;
  Status status = Status::kMismatch;
  std::string text;
};

// This rank broke the rules: tell it why, and disconnect it. OnRankLeft follows.
struct FailRank {
  LocalRank local_rank;
  std::string text;
};

// Every rank's waits end with this text. Nothing is sent any more.
struct FailJob {
  Status status = Status::kJobFailed;
  std::string text;
};

// Tell the scheduler that this member cannot go on: `rank` of it is dead, if that is why.
struct ReportLost {
  std::string text;
  std::optional<Rank> rank;
};

// A rank that has ended so many steps, by its own count, begins no further one; nullopt: each may
// go on. With 0 all stop at the end of the step that they are in: OnRanksStop follows, with what
// each has ended when it has been told. Ranks that wait and have ended fewer go on.
struct StopRanks {
  std::optional<uint64_t> steps;
};

// Tell the scheduler which is the latest step that a rank here is in, or that all have ended the
// one that they were to end, and no round is open.
struct Quiesced {
  uint64_t id = 0;
  uint64_t step = 0;
};

// All ranks joined, and left cleanly.
struct RanksDone {};

// Somebody is waited for, since so long. Comes at growing intervals.
struct LogWaiting {
  enum class For : uint8_t {
    kNodes = 1,        // Their contributions, says an owner: `missing` are node ranks.
    kLocalRanks = 2,   // Their pushes: `missing` are local ranks.
    kAggregators = 3,  // Their answers: `missing` are places in the view.
    kEpoch = 4,        // Their reports, says an owner: `missing` are node ranks.
  };
  For what = For::kNodes;
  TensorIndex tensor;  // kNodes, kLocalRanks.
  Round round;
  uint64_t waited_ns = 0;
  std::vector<uint32_t> missing;
  std::vector<uint64_t> absent_ns;  // How long each node has had no connection; 0: it has one.
};

// Something that a person may want to know; what peers did wrong is also counted.
struct Log {
  bool is_warning = false;
  std::string text;
};

using Effect =
    std::variant<Connect, Close, Send, WriteSlice, ReduceSlice, CopyInline, CopyOwn, SliceArrived,
                 AllocateTensor, DeclareReply, CompleteRound, FailTensor, FailRank, FailJob,
                 ReportLost, StopRanks, Quiesced, RanksDone, LogWaiting, Log>;
using Effects = std::vector<Effect>;

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_EFFECTS_H_
