// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_MESSAGES_H_
#define TALWEG_LIBS_SHM_LAYOUT_MESSAGES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <variant>

#include "libs/base/collective.h"
#include "libs/base/dtype.h"
#include "libs/shm/layout/parts.h"
#include "libs/shm/layout/rank_status.h"

// The messages on the Unix socket between a rank and its agent (docs/shared_memory.md): values in,
// bytes out, and back. No state, no I/O, no allocation, no exceptions; the C client links this.
//
//   0        4      6          8            12        16
//   +--------+------+----------+------------+---------+------------------+
//   | magic  | type | fd_count | body_bytes | request | body_bytes bytes |
//   +--------+------+----------+------------+---------+------------------+
//
// Little-endian. A string is a u32 length and its bytes. A body may be longer than its known
// fields, because a newer minor version appends some: the rest is skipped. Descriptors travel by
// SCM_RIGHTS with the first byte.
namespace talweg::shm {

inline constexpr uint32_t kMessageMagic = 0x4d535754;  // "TWSM"
inline constexpr uint16_t kProtocolMajor = 1;
inline constexpr uint16_t kProtocolMinor = 12;
// Since this version a rank that waits or polls rings (AgentLine::sleeps_until_awaited).
inline constexpr uint16_t kRingsToAwaitMinor = 1;
// Since this version a rank knows SummedBy::kRanksInPlace.
inline constexpr uint16_t kInPlaceMinor = 2;
// Since this version an agent leaves room for a PushedLine, and takes early pushes.
inline constexpr uint16_t kTellsPushesMinor = 4;
// Since this version an agent knows every collective, groups of ranks, and pushes in parts.
inline constexpr uint16_t kCollectivesMinor = 5;
// Since this version a rank ends steps, and hears of views.
inline constexpr uint16_t kStepsMinor = 6;
// Since this version a rank that sums has room only for the parts that it gives.
inline constexpr uint16_t kOwnPartsMinor = 7;
// Since this version agents and ranks know standbys and side tensors.
inline constexpr uint16_t kStandbyMinor = 8;
// Since this version an agent says whom a round waits for.
inline constexpr uint16_t kTellsWaitsMinor = 9;
// Since this version a rank knows tensors whose result comes to where their contribution lies.
inline constexpr uint16_t kOnePlaceMinor = 10;
// Since this version an agent signs what a rank pushes from a GPU (Place::signature).
inline constexpr uint16_t kSignsDevicesMinor = 10;
// Since this version an agent knows encodings.
inline constexpr uint16_t kEncodingsMinor = 11;
// Since this version an agent knows rounds that leave late ranks out.
inline constexpr uint16_t kPatienceMinor = 12;
inline constexpr size_t kMessageHeaderBytes = 16;
inline constexpr size_t kBodyBytesMax = 64 * 1024;
// No message of this version is longer; a buffer of this size takes any that EncodeMessage makes.
inline constexpr size_t kEncodedBytesMax = 40 * 1024;
inline constexpr size_t kTensorNameBytesMax = 1024;
inline constexpr size_t kTextBytesMax = 2048;  // Longer texts are cut by Encode.
inline constexpr size_t kClientNameBytesMax = 256;
inline constexpr size_t kJobNameBytesMax = 1024;
inline constexpr uint32_t kDescriptorsMax = 8;  // With one message.
inline constexpr uint32_t kAnyLocalRank = 0xffffffff;

enum class MessageType : uint16_t {
  kHello = 1,     // rank -> agent
  kWelcome = 2,   // agent -> rank
  kDeclare = 3,   // rank -> agent
  kDeclared = 4,  // agent -> rank
  kGoodbye = 5,   // both
  kLost = 6,      // agent -> rank
  kDoorbell = 7,  // rank -> agent: look at the ring
  kWake = 8,      // agent -> rank: look at the control segment
  kPeer = 9,      // agent -> rank: what another rank of the node contributes
  // Memory of GPUs (docs/gpu.md).
  kExport = 10,      // rank -> agent: an allocation to map
  kExported = 11,    // agent -> rank
  kUnexport = 12,    // rank -> agent: an allocation to unmap
  kUnexported = 13,  // agent -> rank: the allocation may be freed
  kPlace = 14,       // rank -> agent: a tensor will be pushed from a GPU
  kPlaced = 15,      // agent -> rank
  // Steps and views (docs/elastic.md).
  kBoundary = 16,    // rank -> agent
  kMembership = 17,  // agent -> rank
  // These messages tell whom a round waits for.
  kAsk = 18,   // rank -> agent
  kTold = 19,  // agent -> rank
};

// Hello::flags. (Since minor version 8, as everything about standbys.)
inline constexpr uint32_t kHelloStandby = 1;  // The node may enter a running job as a standby.

struct Hello {
  uint16_t major = kProtocolMajor;
  uint16_t minor = kProtocolMinor;
  uint32_t pid = 0;  // As the rank sees it; the agent uses SO_PEERCRED.
  uint32_t wanted_local_rank = kAnyLocalRank;
  std::string_view client_name;
  uint32_t flags = 0;
  friend bool operator==(const Hello&, const Hello&) = default;
};

// Welcome::flags
inline constexpr uint32_t kWelcomeStandby = 1;  // The node is a standby.

// `status`, `major`, `minor` and `text` come first in every major version.
struct Welcome {
  RankStatus status = RankStatus::kOk;
  uint16_t major = kProtocolMajor;
  uint16_t minor = kProtocolMinor;
  std::string_view text;  // Why the rank was refused.
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t local_rank = 0;
  uint32_t local_size = 0;
  uint32_t node_rank = 0;
  uint32_t node_count = 0;
  uint32_t ring_capacity = 0;
  uint32_t tensors_max = 0;
  uint64_t control_bytes = 0;
  std::string_view job_name;
  uint32_t flags = 0;
  uint32_t number = 0;  // The rank's number in declarations: `rank`, except for a standby.
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// Declare::flags
inline constexpr uint32_t kDeclareOnDevice = 1;  // Pushed from a GPU: no contribution buffer.
// The first declaration on a node decides. If the ranks sum, they sum in place. If the agent can
// have contribution and result in one place, it does.
inline constexpr uint32_t kDeclareInPlace = 2;
inline constexpr uint32_t kDeclareSide = 4;  // Collective::side.

// Who sums the contributions of a node's ranks.
enum class SummedBy : uint32_t {
  kAgent = 0,
  kRanks = 1,         // Each rank, into a buffer of its own.
  kRanksInPlace = 2,  // Each piece by one of them, over all contributions.
};

// Numbers of ranks, borrowed, at any alignment.
class RankList {
 public:
  RankList() = default;
  explicit RankList(std::span<const uint32_t> ranks)
      : bytes_(reinterpret_cast<const std::byte*>(ranks.data())),
        size_(static_cast<uint32_t>(ranks.size())) {}
  RankList(const std::byte* bytes, uint32_t size) : bytes_(bytes), size_(size) {}

  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  uint32_t operator[](uint32_t i) const {
    uint32_t rank = 0;
    std::memcpy(&rank, bytes_ + uint64_t{i} * sizeof(rank), sizeof(rank));
    return rank;
  }
  // Returns the place of `rank` among the numbers, which ascend; size() if it is not there.
  uint32_t Find(uint32_t rank) const {
    uint32_t begin = 0;
    for (uint32_t end = size_; begin < end;) {
      const uint32_t middle = begin + (end - begin) / 2;
      if ((*this)[middle] == rank) return middle;
      (*this)[middle] < rank ? begin = middle + 1 : end = middle;
    }
    return size_;
  }
  std::span<const std::byte> bytes() const { return {bytes_, size_ * sizeof(uint32_t)}; }
  friend bool operator==(const RankList& a, const RankList& b) {
    return a.size_ == b.size_ &&
           (a.size_ == 0 || std::memcmp(a.bytes_, b.bytes_, a.bytes().size()) == 0);
  }

 private:
  const std::byte* bytes_ = nullptr;
  uint32_t size_ = 0;
};

struct Declare {
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;
  uint32_t root_rank = 0;
  int32_t priority = 0;
  uint64_t element_count = 0;  // In one part.
  std::string_view name;
  uint32_t flags = 0;
  // Since minor version 5. Before: Collective::Of(dtype, op, element_count) of all ranks.
  Share gives = Share::kUnspecified;
  Share gets = Share::kUnspecified;
  Encoding encoding = Encoding::kPlain;  // Since minor version 11.
  uint16_t patience_ms = 0;              // Since minor version 12.
  RankList ranks;  // By the job's numbers, ascending, at most kGroupRanksMax; none: all.

  static Declare Of(const Collective& collective, std::string_view name) {
    return {.dtype = collective.dtype,
            .op = collective.op,
            .element_count = collective.element_count,
            .name = name,
            .flags = collective.side ? kDeclareSide : 0,
            .gives = collective.gives,
            .gets = collective.gets,
            .encoding = collective.encoding,
            .patience_ms = collective.patience_ms};
  }
  Collective collective() const {
    if (gives == Share::kUnspecified && gets == Share::kUnspecified) {
      return Collective::Of(dtype, op, element_count);
    }
    return {dtype,    op,         gives, gets, element_count, (flags & kDeclareSide) != 0,
            encoding, patience_ms};
  }
  friend bool operator==(const Declare&, const Declare&) = default;
};

struct Location {
  uint32_t segment = 0;
  uint64_t offset = 0;
  friend bool operator==(const Location&, const Location&) = default;
};

enum class SegmentKind : uint32_t { kContribution = 1, kResult = 2 };

struct SegmentInfo {
  uint32_t segment = 0;
  SegmentKind kind = SegmentKind::kContribution;
  uint64_t bytes = 0;
  friend bool operator==(const SegmentInfo&, const SegmentInfo&) = default;
};

inline constexpr uint32_t kNewSegmentsMax = 4;  // In one Declared: one for each location.

struct Declared {
  RankStatus status = RankStatus::kOk;
  uint32_t tensor = 0;
  uint64_t tensor_bytes = 0;     // The data alone: BufferShape::data_bytes.
  uint64_t completed_round = 0;  // The next push is of this + 1.
  Location contribution;         // Segment 0: none, the tensor was declared with kDeclareOnDevice.
  Location result[2];            // By round & 1.
  std::string_view text;
  uint32_t segment_count = 0;  // Segments that are new to this rank, with one descriptor each.
  SegmentInfo segments[kNewSegmentsMax];
  // If the ranks sum, there are no results. rank_sums.h says what lies at `contribution`, in part
  // `part` of every rank's arena, at the same offset.
  SummedBy summed_by = SummedBy::kAgent;
  uint32_t part = 0;
  // Where the tensor's arrivals lie, among the results: ArrivalsBytes(tensor_bytes) of arrivals.h.
  // Segment 0: none. (Since minor version 3.)
  Location arrivals;
  friend bool operator==(const Declared&, const Declared&) = default;
};

struct Goodbye {
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

struct Lost {
  RankStatus status = RankStatus::kJobFailed;
  std::string_view text;
  friend bool operator==(const Lost&, const Lost&) = default;
};

struct Doorbell {
  friend bool operator==(const Doorbell&, const Doorbell&) = default;
};

struct Wake {
  friend bool operator==(const Wake&, const Wake&) = default;
};

inline constexpr uint32_t kPartsMax = 64;

// A segment of another local rank's contributions, with one descriptor. It is only read; in a part
// of tensors that are summed in place it is written, too.
struct Peer {
  uint32_t local_rank = 0;
  uint32_t part = 0;  // Below kPartsMax: the segment's place in that rank's arena.
  uint64_t bytes = 0;
  friend bool operator==(const Peer&, const Peer&) = default;
};

using GpuUuidBytes = std::array<uint8_t, 16>;
using GpuHandleBytes = std::array<uint8_t, 64>;  // As the GPU's driver made them.

// A rank's allocation on a GPU. The rank keeps it until Unexported.
struct Export {
  GpuUuidBytes uuid = {};
  uint64_t buffer_id = 0;  // The driver's number for it, never reused in the rank's life.
  GpuHandleBytes handle = {};
  friend bool operator==(const Export&, const Export&) = default;
};

struct Exported {
  RankStatus status = RankStatus::kOk;
  uint32_t buffer = 0;  // The buffer's number in pushes: from 0, not reused in the rank's life.
  uint64_t bytes = 0;   // As the agent's driver says.
  std::string_view text;
  friend bool operator==(const Exported&, const Exported&) = default;
};

struct Unexport {
  uint32_t buffer = 0;
  friend bool operator==(const Unexport&, const Unexport&) = default;
};

struct Unexported {
  RankStatus status = RankStatus::kOk;
  std::string_view text;
  friend bool operator==(const Unexported&, const Unexported&) = default;
};

// The tensor will be pushed from buffers of the GPU that `buffer` lies on.
struct Place {
  uint32_t tensor = 0;
  uint32_t buffer = 0;
  // The signature of each round that the rank pushes from a GPU, until the tensor is placed again;
  // 0: not said. (Since minor version 10; 0 before.)
  RoundSignature signature = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

// The tensor's events, which the agent has made and the rank opens.
struct Placed {
  RankStatus status = RankStatus::kOk;
  GpuHandleBytes pushed = {};  // Recorded by the rank before it pushes.
  GpuHandleBytes taken = {};   // Recorded by the agent before it publishes a round.
  std::string_view text;
  friend bool operator==(const Placed&, const Placed&) = default;
};

// A rank's question at the end of a step, or at any time.
enum class BoundaryQuestion : uint32_t {
  kLook = 0,    // Asks for the newest view.
  kWait = 1,    // The same; the answer comes when the rank may begin the next step.
  kFollow = 2,  // From now on the rank's numbers are those of view `epoch`.
  kReady = 3,   // As kLook; and says that the rank can take part in steps.
};

struct Boundary {
  BoundaryQuestion question = BoundaryQuestion::kLook;
  uint64_t steps_ended = 0;   // kWait.
  uint64_t epoch = 0;         // kFollow. kLook: the view of this epoch; 0: the newest.
  uint32_t first_member = 0;  // The answer lists the view's members from this one on.
  friend bool operator==(const Boundary&, const Boundary&) = default;
};

// MembershipMember::flags
inline constexpr uint16_t kMemberStandby = 1;

struct MembershipMember {
  uint32_t node = 0;
  uint16_t rank_count = 0;
  uint16_t flags = 0;
  uint64_t incarnation = 0;
  friend bool operator==(const MembershipMember&, const MembershipMember&) = default;
};
static_assert(sizeof(MembershipMember) == 16);

inline constexpr uint32_t kMembershipMembersMax = 2048;  // In one message.

// Members, borrowed, at any alignment.
class MemberList {
 public:
  MemberList() = default;
  MemberList(const void* bytes, uint32_t size)
      : bytes_(static_cast<const std::byte*>(bytes)), size_(size) {}

  uint32_t size() const { return size_; }
  MembershipMember operator[](uint32_t i) const {
    MembershipMember member;
    std::memcpy(&member, bytes_ + uint64_t{i} * sizeof(member), sizeof(member));
    return member;
  }
  std::span<const std::byte> bytes() const { return {bytes_, size_ * sizeof(MembershipMember)}; }
  friend bool operator==(const MemberList& a, const MemberList& b) {
    return a.size_ == b.size_ &&
           (a.size_ == 0 || std::memcmp(a.bytes_, b.bytes_, a.bytes().size()) == 0);
  }

 private:
  const std::byte* bytes_ = nullptr;
  uint32_t size_ = 0;
};

// RankMembership::flags
inline constexpr uint32_t kMembershipChanges = 1;  // Nodes may come and go.
inline constexpr uint32_t kMembershipStandby = 2;  // The rank's node is a standby.

// A view, as this rank sees itself in it.
struct RankMembership {
  RankStatus status = RankStatus::kOk;
  uint32_t flags = 0;
  uint64_t epoch = 0;
  uint64_t steps = 0;       // Ended by the ranks where members last entered; View::steps.
  uint64_t steps_base = 0;  // Ended by others when this rank's member joined the steps.
  uint32_t rank = 0;        // `rank` and `size`: in that view.
  uint32_t size = 0;
  uint32_t member_count = 0;  // In the whole view.
  uint32_t first_member = 0;  // The place of `members` among them.
  MemberList members;
  std::string_view text;  // Why there is no view.
  uint32_t number = 0;    // The rank's number in declarations, once it follows this view.
  friend bool operator==(const RankMembership&, const RankMembership&) = default;
};

// Asks who has not contributed to the round yet.
struct Ask {
  uint32_t tensor = 0;
  uint64_t round = 0;
  friend bool operator==(const Ask&, const Ask&) = default;
};

struct Told {
  RankStatus status = RankStatus::kOk;
  std::string_view text;  // For people; empty: nobody known. Or why there is no answer.
  friend bool operator==(const Told&, const Told&) = default;
};

using MessageBody = std::variant<Hello, Welcome, Declare, Declared, Goodbye, Lost, Doorbell, Wake,
                                 Peer, Export, Exported, Unexport, Unexported, Place, Placed,
                                 Boundary, RankMembership, Ask, Told>;

struct Message {
  uint32_t request = 0;  // Chosen by the one that asks, and repeated in the answer; otherwise 0.
  uint32_t fd_count = 0;
  MessageBody body;
};

enum class ParseOutcome : uint8_t {
  kMessage,   // `message` is set; it took the first `bytes_used` bytes.
  kNeedMore,  // The beginning of a message: at least `bytes_needed` bytes are needed in all.
  kInvalid,   // Not a message; `error` says why. The stream cannot be read any further.
};

struct ParseResult {
  ParseOutcome outcome = ParseOutcome::kInvalid;
  Message message;  // Its strings borrow from the input.
  size_t bytes_used = 0;
  size_t bytes_needed = 0;
  const char* error = "";  // Static storage.
};

// Reads the first message of `bytes`. Any input is allowed. Never reads past it, never allocates.
ParseResult ParseMessage(std::span<const std::byte> bytes);

// Writes one message and returns its length. Returns 0 if a name is too long, or if `out` is too
// small (kEncodedBytesMax is always enough). Texts are cut at kTextBytesMax.
size_t EncodeMessage(const Message& message, std::span<std::byte> out);

const char* MessageTypeName(MessageType type);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_MESSAGES_H_
