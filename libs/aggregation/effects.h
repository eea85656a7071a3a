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
#include "libs/base/encoding.h"
#include "libs/base/ids.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

// What the aggregator core asks its caller to do. Values: no bytes, no pointers. The caller
// performs them in the given order.
//
// An AllocationId names memory. The core draws each id and never uses it again. Offsets count from
// an allocation's first byte.
namespace talweg::aggregation {

using AllocationId = StrongId<struct AllocationIdTag, uint64_t>;  // 0: none.
using WriteId = StrongId<struct WriteIdTag, uint64_t>;            // 0: none.

// Sends one entry of a frame to a connection, after everything that was asked for it before.
// Entries of one type and epoch may share a frame; nothing may overtake.
struct Send {
  ConnectionId connection;
  Epoch epoch;  // For the frame's header.
  std::variant<wire::Welcome, wire::FenceAck, wire::Declared, wire::Decision, wire::Refused,
               wire::Failed, wire::Waiting>
      entry;
};

// Contribution bytes that have been received. The header of any frame may return them. Credit that
// was not returned before a Welcome or a FenceAck is forgotten: after those nothing is in flight.
struct ReturnCredit {
  ConnectionId connection;
  uint64_t bytes = 0;
};

// Allocates memory for one member's contributions to a tensor (the peer writes it); or, without a
// member, for the results of a tensor's slices (peers never write it). OnAllocated or
// OnAllocationRefused answers, at once or later.
struct AllocateMemory {
  AllocationId id;
  TensorKey tensor;
  std::optional<view::MemberIdentity> member;
  uint64_t bytes = 0;  // At least 1.
};

// Releases memory. No later effect names it, and no peer writes it any more. Earlier sums and
// writes may still read it, so free it after them. Also sent for allocations that have not been
// answered yet; their answer is then ignored.
struct ReleaseMemory {
  AllocationId id;
};

// Copies the bytes of contribution `entry_index` of the frame that is being handled to its slot,
// while the frame's bytes are still there.
struct StoreInline {
  AllocationId slots;
  uint64_t offset_bytes = 0;
  uint32_t travel_bytes = 0;
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
  uint32_t travel_bytes = 0;  // How many bytes of the contribution lie there.

  friend bool operator==(const SumInput&, const SumInput&) = default;
};

// Reduces the inputs, in this order and in one pass, from `offset_bytes` of each to `offset_bytes`
// of the result. Where they are encoded, the performer decodes each, and encodes the sum. OnSummed
// answers, at once or later, with the bytes that the result takes; OnUndecodable if an input is no
// encoding of `length_bytes`. Sums and copies to one result are done in the order in which they
// were asked for, even if they have become stale meanwhile. reduce::LastHop has the weights and the
// divisor of averages.
struct Sum {
  SumId id;
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;  // Never kCopy: see CopyResult.
  Encoding encoding = Encoding::kPlain;
  uint64_t offset_bytes = 0;  // In the slots, and in the result.
  uint32_t length_bytes = 0;  // The data's. May be 0; a multiple of the dtype's size.
  std::vector<SumInput> inputs;
  uint32_t rank_count_total = 0;
  AllocationId result;
};

// The source's bytes are the result, encoded or not. OnSummed answers.
struct CopyResult {
  SumId id;
  uint64_t offset_bytes = 0;
  uint32_t travel_bytes = 0;
  AllocationId source;
  AllocationId result;
};

// kWritten: writes a slice's result to a member, then sends the Result entry. kInline: sends the
// entry with the result's bytes, which are read when the effect is performed. kDisagreement: sends
// the entry with `text` as its bytes. kEmpty: sends the entry alone. OnWriteDone answers kWritten
// when the result memory is no longer read, unless the connection is closed or lost first.
struct SendResult {
  ConnectionId connection;
  Epoch epoch;         // For the frame's header.
  wire::Result entry;  // `bytes` is empty.
  AllocationId result;
  uint64_t offset_bytes = 0;
  uint32_t travel_bytes = 0;  // That the result takes, wanted or not.
  wire::RemoteRef target;     // kWritten only.
  WriteId write;              // kWritten only.
  std::string text;           // kDisagreement only: the entry's bytes.
  int32_t priority = 0;       // The priority of the member's contribution.
};

// Closes the connection now. Afterwards nothing from the peer lands, nothing is read for it, and
// the core gets no event of the connection.
struct CloseConnection {
  ConnectionId connection;
  std::string reason;
};

using Effect = std::variant<Send, ReturnCredit, AllocateMemory, ReleaseMemory, StoreInline, Sum,
                            CopyResult, SendResult, CloseConnection>;
using Effects = std::vector<Effect>;

// Asks for one entry to be sent. Cuts a text that is too long for a frame, as one that quotes two
// names may be.
template <typename Entry>
void SendEntry(ConnectionId connection, Epoch epoch, Entry entry, Effects& out) {
  if constexpr (requires { entry.text; }) wire::CutText(entry.text);
  out.push_back(Send{connection, epoch, std::move(entry)});
}

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_EFFECTS_H_
