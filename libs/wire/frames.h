// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_WIRE_FRAMES_H_
#define TALWEG_LIBS_WIRE_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/dtype.h"
#include "libs/base/ids.h"
#include "libs/view/participation.h"
#include "libs/view/view.h"

// The frames of the data plane, which agents and aggregators send to each other (docs/protocol.md,
// section 3). Values in, bytes out, and back; no state, no I/O.
//
// A frame is a 40-byte header and `entry_count` entries. All integers are little-endian. An entry
// begins on a multiple of 8 with its own length, so that a reader can skip what a newer minor
// version has appended to it. Parsing accepts any bytes: if they are not a frame, it returns an
// error with a text.
namespace talweg::wire {

inline constexpr uint32_t kMagic = 0x47574c54;  // "TLWG"
inline constexpr uint8_t kVersionMajor = 3;     // 2: collectives, groups. 3: encodings.
inline constexpr uint8_t kVersionMinor = 1;     // 1: patience.
inline constexpr size_t kHeaderBytes = 40;
inline constexpr size_t kFrameBytesMax = 64 * 1024;
inline constexpr size_t kNameBytesMax = 1024;
inline constexpr size_t kTextBytesMax = 2048;
// A slice that takes at most this many bytes travels inside its Contribute or Result entry.
inline constexpr uint32_t kInlineBytesMax = 8 * 1024;
// A tensor has at most this many slices in a view, so that a Decision on it fits a frame.
inline constexpr size_t kTensorSlicesMax = 30000;
// So that a Declare fits a frame.
inline constexpr size_t kGroupRanksMax = 4096;
// Declare::root_rank of a tensor that is dead: its root, or another rank that it cannot do
// without, is not in the view.
inline constexpr uint32_t kNoRank = 0xffffffff;

enum class FrameType : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kDeclare = 3,
  kDeclared = 4,
  kContribute = 5,
  kResult = 6,
  kCredit = 7,
  kFence = 8,
  kFenceAck = 9,
  kReport = 10,
  kDecision = 11,
  kRefused = 12,
  kFailed = 13,
  kWaiting = 14,
  kGoodbye = 15,
};

const char* FrameTypeName(FrameType type);

// Memory that the sender of this reference lets its peer write to. Key and address are those of the
// sender's transport for the region, advanced to where the bytes belong.
struct RemoteRef {
  uint64_t key = 0;
  uint64_t address = 0;

  friend bool operator==(const RemoteRef&, const RemoteRef&) = default;
};

struct Hello {
  view::MemberIdentity member;
  uint32_t rank_count = 0;
  uint64_t view_digest = 0;
  std::string job_name;
  std::string node_name;
  friend bool operator==(const Hello&, const Hello&) = default;
};

enum class WelcomeStatus : uint8_t {
  kOk = 1,
  kUnknownJob = 2,   // The aggregator has not heard of this job.
  kNotInView = 3,    // This incarnation is not a member in the aggregator's view.
  kViewDiffers = 4,  // Same epoch, another digest.
  kVersion = 5,
};

struct Welcome {
  WelcomeStatus status = WelcomeStatus::kOk;
  Incarnation aggregator;
  uint64_t credit_bytes = 0;  // How many contribution bytes may be in flight on this connection.
  std::string text;           // Why not, if not kOk.
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct Declare {
  TensorKey key;
  std::string name;
  Collective collective;
  view::Group group;       // Empty: all ranks.
  uint32_t root_rank = 0;  // The root's number in the view, or kNoRank. 0 if there is no root.
  uint32_t by_rank = 0;    // The global rank that declared it, for error texts.
  std::array<RemoteRef, 2> result;  // Where slice offset 0 of the result goes, by round & 1.
  friend bool operator==(const Declare&, const Declare&) = default;
};

enum class DeclaredStatus : uint8_t {
  kOk = 1,
  kMismatch = 2,
  kOverBudget = 3,
  kInvalid = 4,
  kAborted = 5,  // Reports of it have contradicted each other, in this view or an earlier one.
};

struct Declared {
  TensorKey key;
  DeclaredStatus status = DeclaredStatus::kOk;
  RemoteRef slot;  // Where slot offset 0 of this member's contributions goes.
  Round held;      // The last finished round that this owner knows of; joiners continue from it.
  std::string text;
  friend bool operator==(const Declared&, const Declared&) = default;
};

enum class Mode : uint8_t { kSum = 1, kCopy = 2 };
enum class Form : uint8_t {
  kInline = 1,   // The bytes are in this entry.
  kWritten = 2,  // The bytes have landed in the slot or result region before this frame.
  kEmpty = 3,    // No bytes: not from a copy round's source, or no result is wanted.
  // Ranks disagree on what the round is: those of one node in a contribution, those of several
  // nodes in a result. The bytes are a text that names both sides.
  kDisagreement = 4,
};

struct Contribute {
  TensorKey key;
  Round round;
  SliceIndex slice;
  uint32_t rank_count = 0;    // How many ranks' data is in these bytes.
  uint32_t length_bytes = 0;  // The length of the data; 0 for kEmpty and kDisagreement.
  uint32_t travel_bytes = 0;  // How many bytes travel for it: `length_bytes`, or encoded.
  Mode mode = Mode::kSum;
  Form form = Form::kWritten;
  bool wants_result = true;      // False: it has the result, or no rank here gets the slice.
  Epoch sum_epoch;               // Copy mode after a failure: the epoch of this sum; otherwise 0.
  RoundSignature signature = 0;  // What the ranks here say about the round.
  // For kInline and kDisagreement. Borrowed; after parsing, from the frame.
  std::span<const std::byte> bytes;
  int32_t priority = 0;  // The push's: results with larger priorities may leave first.
};

struct Result {
  TensorKey key;
  Round round;
  SliceIndex slice;
  uint32_t rank_count = 0;    // How many ranks are in the sum.
  uint32_t length_bytes = 0;  // The length of the result, also for kEmpty.
  uint32_t travel_bytes = 0;  // How many bytes travel for it; 0 for kEmpty and kDisagreement.
  Form form = Form::kWritten;
  Epoch sum_epoch;
  std::span<const std::byte> bytes;  // See Contribute.
};

struct Report {
  TensorKey key;
  // The last round that is over here: its whole result is here, or it was aborted.
  Round held;
  Epoch held_epoch;     // The epoch of `held`'s sums; 0 if it was aborted, or held is 0.
  Round contributed;    // held or held + 1.
  Epoch partial_epoch;  // The epoch of the sums of round held + 1 that it has; 0 if none.
  // A bitmap of the slices of round held + 1 that it has, as the frame's epoch cuts the tensor.
  // Slice 0 is bit 0 of word 0.
  std::vector<uint64_t> slices;
  friend bool operator==(const Report&, const Report&) = default;
};

enum class Verdict : uint8_t { kRedo = 1, kFinish = 2, kAbort = 3 };

struct Decision {
  TensorKey key;
  Round round;
  Verdict verdict = Verdict::kRedo;
  Epoch sum_epoch;                // kFinish: of the sums that remain valid.
  std::vector<uint16_t> sources;  // kFinish: for every slice, the member that contributes it.
  std::string text;               // kAbort: why.
  friend bool operator==(const Decision&, const Decision&) = default;
};

enum class RefusedReason : uint8_t {
  kWrongJob = 1,
  kWrongEpoch = 2,
  kNotAMember = 3,
  kNotDeclared = 4,
  kNotPlacedHere = 5,
  kWrongRound = 6,
  kWrongLength = 7,
  kWrongMode = 8,
  kPoisoned = 9,
};
inline constexpr int kRefusedReasonCount = 10;
const char* RefusedReasonName(RefusedReason reason);

struct Refused {
  RefusedReason reason = RefusedReason::kWrongJob;
  TensorKey key;
  Round round;
  SliceIndex slice;
  std::string text;
  friend bool operator==(const Refused&, const Refused&) = default;
};

enum class FailedCode : uint8_t {
  kMismatch = 1,
  kOverBudget = 2,
  kAborted = 3,
  kJobFailed = 4,
  kInvalid = 5,  // Nobody can declare the tensor like this.
};

// From an aggregator: a tensor, or the job, has failed. From an agent, after its Declare: the
// tensor has failed there, so it must fail for the others too.
struct Failed {
  TensorKey key;  // 0: the whole job at this aggregator.
  Round round;    // 0: every round.
  FailedCode code = FailedCode::kMismatch;
  std::string text;
  friend bool operator==(const Failed&, const Failed&) = default;
};

// Names the nodes that a round waits for. For a tensor with patience it is also a word to one
// member: half of the members are here, and the round soon goes on without that member's late
// ranks. Then `waited_ns` is 0, and the member is the only missing node.
struct Waiting {
  TensorKey key;
  Round round;
  uint64_t waited_ns = 0;
  std::vector<uint32_t> missing_nodes;  // Node ranks, ascending; at most 64 are named.
  // For how long each of these nodes has had no connection in this epoch; 0: it has one.
  std::vector<uint64_t> absent_ns;
  std::vector<uint32_t> left_nodes;  // Those of these nodes that have said goodbye to this owner.

  bool hurries() const { return key != TensorKey{0} && waited_ns == 0; }
  friend bool operator==(const Waiting&, const Waiting&) = default;
};

struct Credit {};
struct Fence {};
struct FenceAck {};
struct Goodbye {};

struct Header {
  uint8_t version_major = kVersionMajor;
  uint8_t version_minor = kVersionMinor;
  FrameType type = FrameType::kHello;
  uint8_t flags = 0;
  JobId job;
  Epoch epoch;
  uint32_t body_bytes = 0;
  uint32_t entry_count = 0;
  uint64_t credit_bytes = 0;  // Bytes received from the frame's receiver, no longer in flight.
  friend bool operator==(const Header&, const Header&) = default;
};

// Header::flags. On a Report: more frames of this report follow. On contributions: more of them
// wait at their agent for this owner.
inline constexpr uint8_t kFlagMore = 1;

// Whether an entry carries bytes of a tensor.
constexpr bool CarriesData(Form form) { return form == Form::kInline || form == Form::kWritten; }

// How much a contribution counts against its connection's credit while it is in flight.
constexpr uint32_t CreditCost(Form form, uint32_t travel_bytes) {
  return CarriesData(form) ? travel_bytes : 0;
}

// A receiver of contributions returns credit at once if it has granted no more than
// kSmallCreditBytes. If it has granted more, it may keep up to kKeptCreditBytes back until it has
// something else to say, and more on a fast connection. Senders rely on this (docs/protocol.md,
// section 5).
inline constexpr uint64_t kSmallCreditBytes = kMiB;
inline constexpr uint64_t kKeptCreditBytes = 128 * kKiB;

// Frames of one type hold entries of one type; Credit, Fence, FenceAck and Goodbye hold none.
using Entries = std::variant<std::monostate, std::vector<Hello>, std::vector<Welcome>,
                             std::vector<Declare>, std::vector<Declared>, std::vector<Contribute>,
                             std::vector<Result>, std::vector<Report>, std::vector<Decision>,
                             std::vector<Refused>, std::vector<Failed>, std::vector<Waiting>>;

struct Frame {
  Header header;
  Entries entries;
};

// Builds frames: Add entries of one type until one does not fit, Take the bytes, continue.
class FrameWriter {
 public:
  FrameWriter(FrameType type, JobId job, Epoch epoch, uint8_t flags = 0);

  // Returns false, and adds nothing, if the frame would grow past kFrameBytesMax. An entry that
  // does not fit an empty frame is the caller's bug: the caller cuts names and texts to their
  // limits.
  bool Add(const Hello& entry);
  bool Add(const Welcome& entry);
  bool Add(const Declare& entry);
  bool Add(const Declared& entry);
  bool Add(const Contribute& entry);
  bool Add(const Result& entry);
  bool Add(const Report& entry);
  bool Add(const Decision& entry);
  bool Add(const Refused& entry);
  bool Add(const Failed& entry);
  bool Add(const Waiting& entry);

  uint32_t entry_count() const { return entry_count_; }
  FrameType type() const { return type_; }

  // Returns the finished frame. The writer is then empty, for the same type, job and epoch.
  std::vector<std::byte> Take(uint64_t credit_bytes = 0);

 private:
  template <typename Body>
  bool AddEntry(FrameType type, const Body& body);
  void Reset();

  FrameType type_;
  JobId job_;
  Epoch epoch_;
  uint8_t flags_;
  uint32_t entry_count_ = 0;
  std::vector<std::byte> bytes_;
};

// Cuts a text to kTextBytesMax, at the end of a UTF-8 character.
void CutText(std::string& text);

struct ParseError {
  std::string text;  // What is wrong, with the offending values.
};

// Reads one whole frame. Spans in the entries point into `bytes`. Checks everything that can be
// checked without state: magic, version, lengths, enum values, name and text limits.
std::variant<Frame, ParseError> ParseFrame(std::span<const std::byte> bytes);

}  // namespace talweg::wire

#endif  // TALWEG_LIBS_WIRE_FRAMES_H_
