// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_EFFECTS_H_
#define TALWEG_LIBS_AGGREGATION_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/dtype.h"
#include "libs/base/ids.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

// What the aggregator core asks its caller to do. Values: no bytes, no pointers. The caller
// performs them in the order in which they were given.
//
// Memory is named by AllocationId, which the core draws and never uses again; offsets count from
// an allocation's first byte.
namespace talweg::aggregation {

using AllocationId = StrongId<struct AllocationIdTag, uint64_t>;  // 0: none.
using WriteId = StrongId<struct WriteIdTag, uint64_t>;            // 0: none.

// One entry of a frame, to be sent to a connection after everything that was asked for it
// before. Entries of one type and epoch may share a frame; nothing may overtake.
struct Send {
  ConnectionId connection;
  Epoch epoch;  // For the frame's header.
  std::variant<wire::Welcome, wire::FenceAck, wire::Declared, wire::Decision, wire::Refused,
               wire::Failed, wire::Waiting>
      entry;
};

// Contribution bytes that have been received: to be told in the header of any frame. Credit that
// has not been sent when a Welcome or a FenceAck is, is forgotten: after those nothing is in
// flight.
struct ReturnCredit {
  ConnectionId connection;
  uint64_t bytes = 0;
};

// Memory for one member's contributions to a tensor (the peer writes it), or, without a member,
// for the results of a tensor's slices (the peers never write it). Answered by OnAllocated or
// OnAllocationRefused, at once or later.
struct AllocateMemory {
  AllocationId id;
  TensorKey tensor;
  std::optional<view::MemberIdentity> member;
  uint64_t bytes = 0;  // At least 1.
};

// No effect after this one names the memory, and no peer writes it any more; sums and writes
// that were asked for before may still read it, so it is freed after them. Also for allocations
// that have not been answered yet (an answer is ignored then).
struct ReleaseMemory {
  AllocationId id;
};

// Copy the bytes of the contribution `entry_index` of the frame that is being handled to its
// slot. Performed before the frame's bytes are gone.
struct StoreInline {
  AllocationId slots;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;
  uint32_t entry_index = 0;
};

// Identifies a Sum or CopyResult in OnSummed.
struct SumId {
  Epoch epoch;
  TensorKey tensor;
  SliceIndex slice;
  Round round;

  friend auto operator<=>(const SumId&, const SumId&) = default;
};

struct SumInput {
  AllocationId slots;
  uint32_t rank_count = 0;

  friend bool operator==(const SumInput&, const SumInput&) = default;
};

// Combine the inputs, in this order, in one pass, from `offset_bytes` of each to `offset_bytes`
// of the result. Answered by OnSummed, at once or later. Sums and copies that name one result are
// done in the order in which they were asked for, also when they have become stale meanwhile.
// For averages reduce::LastHop has weights and divisor.
struct Sum {
  SumId id;
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;  // Never kBroadcast.
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;  // May be 0; a multiple of the dtype's size.
  std::vector<SumInput> inputs;
  uint32_t rank_count_total = 0;
  AllocationId result;
};

// The source's bytes are the result. Answered as Sum.
struct CopyResult {
  SumId id;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;
  AllocationId source;
  AllocationId result;
};

// Write a slice's result to a member (kWritten), then, after it, send the Result entry; or put
// the bytes into the entry (kInline; they are read when the effect is performed; kDisagreement); or
// send the entry alone (kEmpty). kWritten is answered by OnWriteDone when the result memory is not
// read any more, unless the connection is closed or lost first.
struct SendResult {
  ConnectionId connection;
  Epoch epoch;         // For the frame's header.
  wire::Result entry;  // `bytes` is empty.
  AllocationId result;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;
  wire::RemoteRef target;  // kWritten only.
  WriteId write;           // kWritten only.
  std::string text;        // kDisagreement only: the entry's bytes.
  int32_t priority = 0;    // That the member gave its contribution.
};

// Close now: nothing of the peer lands, and nothing that is read for it is read, when this has
// been performed. No event of the connection is told to the core afterwards.
struct CloseConnection {
  ConnectionId connection;
  std::string reason;
};

using Effect = std::variant<Send, ReturnCredit, AllocateMemory, ReleaseMemory, StoreInline, Sum,
                            CopyResult, SendResult, CloseConnection>;
using Effects = std::vector<Effect>;

// Asks for one entry to be sent. Frames bound the length of texts, and those that quote two names
// may be longer: they are cut.
template <typename Entry>
void SendEntry(ConnectionId connection, Epoch epoch, Entry entry, Effects& out) {
  if constexpr (requires { entry.text; }) wire::CutText(entry.text);
  out.push_back(Send{connection, epoch, std::move(entry)});
}

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_EFFECTS_H_
