// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/layout/messages.h"

#include <type_traits>

#include "libs/shm/layout/fields.h"

namespace talweg::shm {
namespace {

Location TakeLocation(Reader& in) {
  Location location;
  location.segment = in.Take<uint32_t>();
  in.Take<uint32_t>();
  location.offset = in.Take<uint64_t>();
  return location;
}

void Put(Writer& out, const Location& location) {
  out.Put(location.segment);
  out.Put(uint32_t{0});
  out.Put(location.offset);
}

// Each Take... returns why the body is invalid, or null.

const char* Take(Reader& in, Hello& hello) {
  hello.major = in.Take<uint16_t>();
  hello.minor = in.Take<uint16_t>();
  if (in.ok() && hello.major != kProtocolMajor) return nullptr;  // Its rest is unknown.
  hello.pid = in.Take<uint32_t>();
  hello.wanted_local_rank = in.Take<uint32_t>();
  hello.client_name = in.TakeString(kClientNameBytesMax);
  if (!in.AtEnd()) hello.flags = in.Take<uint32_t>();
  return nullptr;
}

void Put(Writer& out, const Hello& hello) {
  out.Put(hello.major);
  out.Put(hello.minor);
  out.Put(hello.pid);
  out.Put(hello.wanted_local_rank);
  out.PutName(hello.client_name, kClientNameBytesMax);
  out.Put(hello.flags);
}

const char* Take(Reader& in, Welcome& welcome) {
  welcome.status = static_cast<RankStatus>(in.Take<uint32_t>());
  welcome.major = in.Take<uint16_t>();
  welcome.minor = in.Take<uint16_t>();
  welcome.text = in.TakeString(kTextBytesMax);
  if (in.ok() && welcome.major != kProtocolMajor) return nullptr;
  welcome.rank = in.Take<uint32_t>();
  welcome.size = in.Take<uint32_t>();
  welcome.local_rank = in.Take<uint32_t>();
  welcome.local_size = in.Take<uint32_t>();
  welcome.node_rank = in.Take<uint32_t>();
  welcome.node_count = in.Take<uint32_t>();
  welcome.ring_capacity = in.Take<uint32_t>();
  welcome.tensors_max = in.Take<uint32_t>();
  welcome.control_bytes = in.Take<uint64_t>();
  welcome.job_name = in.TakeString(kJobNameBytesMax);
  welcome.number = welcome.rank;
  if (in.AtEnd()) return nullptr;
  welcome.flags = in.Take<uint32_t>();
  welcome.number = in.Take<uint32_t>();
  return nullptr;
}

void Put(Writer& out, const Welcome& welcome) {
  out.Put(static_cast<uint32_t>(welcome.status));
  out.Put(welcome.major);
  out.Put(welcome.minor);
  out.PutText(welcome.text);
  out.Put(welcome.rank);
  out.Put(welcome.size);
  out.Put(welcome.local_rank);
  out.Put(welcome.local_size);
  out.Put(welcome.node_rank);
  out.Put(welcome.node_count);
  out.Put(welcome.ring_capacity);
  out.Put(welcome.tensors_max);
  out.Put(welcome.control_bytes);
  out.PutName(welcome.job_name, kJobNameBytesMax);
  out.Put(welcome.flags);
  out.Put(welcome.number);
}

const char* Take(Reader& in, Declare& declare) {
  declare.dtype = static_cast<DType>(in.Take<uint8_t>());
  declare.op = static_cast<Op>(in.Take<uint8_t>());
  declare.patience_ms = in.Take<uint16_t>();
  declare.root_rank = in.Take<uint32_t>();
  declare.priority = in.Take<int32_t>();
  in.Take<uint32_t>();
  declare.element_count = in.Take<uint64_t>();
  declare.name = in.TakeString(kTensorNameBytesMax);
  declare.flags = in.Take<uint32_t>();
  if (in.AtEnd()) return nullptr;
  declare.gives = static_cast<Share>(in.Take<uint8_t>());
  declare.gets = static_cast<Share>(in.Take<uint8_t>());
  declare.encoding = static_cast<Encoding>(in.Take<uint8_t>());
  in.Take<uint8_t>();
  declare.ranks = in.TakeRanks();
  return nullptr;
}

void Put(Writer& out, const Declare& declare) {
  out.Put(static_cast<uint8_t>(declare.dtype));
  out.Put(static_cast<uint8_t>(declare.op));
  out.Put(declare.patience_ms);
  out.Put(declare.root_rank);
  out.Put(declare.priority);
  out.Put(uint32_t{0});
  out.Put(declare.element_count);
  out.PutName(declare.name, kTensorNameBytesMax);
  out.Put(declare.flags);
  out.Put(static_cast<uint8_t>(declare.gives));
  out.Put(static_cast<uint8_t>(declare.gets));
  out.Put(static_cast<uint8_t>(declare.encoding));
  out.Put(uint8_t{0});
  out.PutRanks(declare.ranks);
}

const char* Take(Reader& in, Declared& declared) {
  declared.status = static_cast<RankStatus>(in.Take<uint32_t>());
  declared.tensor = in.Take<uint32_t>();
  declared.tensor_bytes = in.Take<uint64_t>();
  declared.completed_round = in.Take<uint64_t>();
  declared.contribution = TakeLocation(in);
  declared.result[0] = TakeLocation(in);
  declared.result[1] = TakeLocation(in);
  declared.text = in.TakeString(kTextBytesMax);
  declared.segment_count = in.Take<uint32_t>();
  if (declared.segment_count > kNewSegmentsMax) return "Declared names more than 4 new segments";
  for (uint32_t i = 0; i < declared.segment_count; ++i) {
    SegmentInfo& info = declared.segments[i];
    info.segment = in.Take<uint32_t>();
    info.kind = static_cast<SegmentKind>(in.Take<uint32_t>());
    info.bytes = in.Take<uint64_t>();
    if (in.ok() && info.kind != SegmentKind::kContribution && info.kind != SegmentKind::kResult) {
      return "Declared names a segment of unknown kind";
    }
  }
  declared.summed_by = static_cast<SummedBy>(in.Take<uint32_t>());
  declared.part = in.Take<uint32_t>();
  if (!in.AtEnd()) declared.arrivals = TakeLocation(in);
  if (in.ok() && declared.summed_by > SummedBy::kRanksInPlace) {
    return "Declared names a way of summing that this release does not know";
  }
  return in.ok() && declared.part >= kPartsMax ? "Declared names a part of an arena that cannot be"
                                               : nullptr;
}

void Put(Writer& out, const Declared& declared) {
  out.Put(static_cast<uint32_t>(declared.status));
  out.Put(declared.tensor);
  out.Put(declared.tensor_bytes);
  out.Put(declared.completed_round);
  Put(out, declared.contribution);
  Put(out, declared.result[0]);
  Put(out, declared.result[1]);
  out.PutText(declared.text);
  out.Put(declared.segment_count);
  for (uint32_t i = 0; i < declared.segment_count && i < kNewSegmentsMax; ++i) {
    out.Put(declared.segments[i].segment);
    out.Put(static_cast<uint32_t>(declared.segments[i].kind));
    out.Put(declared.segments[i].bytes);
  }
  out.Put(static_cast<uint32_t>(declared.summed_by));
  out.Put(declared.part);
  Put(out, declared.arrivals);
}

const char* Take(Reader& in, Lost& lost) {
  lost.status = static_cast<RankStatus>(in.Take<uint32_t>());
  lost.text = in.TakeString(kTextBytesMax);
  return nullptr;
}

void Put(Writer& out, const Lost& lost) {
  out.Put(static_cast<uint32_t>(lost.status));
  out.PutText(lost.text);
}

const char* Take(Reader& in, Peer& peer) {
  peer.local_rank = in.Take<uint32_t>();
  peer.part = in.Take<uint32_t>();
  peer.bytes = in.Take<uint64_t>();
  return in.ok() && peer.part >= kPartsMax ? "Peer names a part of an arena that cannot be"
                                           : nullptr;
}

void Put(Writer& out, const Peer& peer) {
  out.Put(peer.local_rank);
  out.Put(peer.part);
  out.Put(peer.bytes);
}

const char* Take(Reader& in, Export& message) {
  message.uuid = in.Take<GpuUuidBytes>();
  message.buffer_id = in.Take<uint64_t>();
  message.handle = in.Take<GpuHandleBytes>();
  return nullptr;
}

void Put(Writer& out, const Export& message) {
  out.Put(message.uuid);
  out.Put(message.buffer_id);
  out.Put(message.handle);
}

const char* Take(Reader& in, Exported& message) {
  message.status = static_cast<RankStatus>(in.Take<uint32_t>());
  message.buffer = in.Take<uint32_t>();
  message.bytes = in.Take<uint64_t>();
  message.text = in.TakeString(kTextBytesMax);
  return nullptr;
}

void Put(Writer& out, const Exported& message) {
  out.Put(static_cast<uint32_t>(message.status));
  out.Put(message.buffer);
  out.Put(message.bytes);
  out.PutText(message.text);
}

const char* Take(Reader& in, Unexport& message) {
  message.buffer = in.Take<uint32_t>();
  return nullptr;
}

void Put(Writer& out, const Unexport& message) { out.Put(message.buffer); }

const char* Take(Reader& in, Unexported& message) {
  message.status = static_cast<RankStatus>(in.Take<uint32_t>());
  message.text = in.TakeString(kTextBytesMax);
  return nullptr;
}

void Put(Writer& out, const Unexported& message) {
  out.Put(static_cast<uint32_t>(message.status));
  out.PutText(message.text);
}

const char* Take(Reader& in, Place& message) {
  message.tensor = in.Take<uint32_t>();
  message.buffer = in.Take<uint32_t>();
  if (!in.AtEnd()) message.signature = in.Take<uint64_t>();
  return nullptr;
}

void Put(Writer& out, const Place& message) {
  out.Put(message.tensor);
  out.Put(message.buffer);
  out.Put(message.signature);
}

const char* Take(Reader& in, Placed& message) {
  message.status = static_cast<RankStatus>(in.Take<uint32_t>());
  message.pushed = in.Take<GpuHandleBytes>();
  message.taken = in.Take<GpuHandleBytes>();
  message.text = in.TakeString(kTextBytesMax);
  return nullptr;
}

void Put(Writer& out, const Placed& message) {
  out.Put(static_cast<uint32_t>(message.status));
  out.Put(message.pushed);
  out.Put(message.taken);
  out.PutText(message.text);
}

const char* Take(Reader& in, Boundary& message) {
  message.question = static_cast<BoundaryQuestion>(in.Take<uint32_t>());
  message.first_member = in.Take<uint32_t>();
  message.steps_ended = in.Take<uint64_t>();
  message.epoch = in.Take<uint64_t>();
  return in.ok() && message.question > BoundaryQuestion::kReady
             ? "Boundary asks what this release does not know"
             : nullptr;
}

void Put(Writer& out, const Boundary& message) {
  out.Put(static_cast<uint32_t>(message.question));
  out.Put(message.first_member);
  out.Put(message.steps_ended);
  out.Put(message.epoch);
}

const char* Take(Reader& in, RankMembership& message) {
  message.status = static_cast<RankStatus>(in.Take<uint32_t>());
  message.flags = in.Take<uint32_t>();
  message.epoch = in.Take<uint64_t>();
  message.steps = in.Take<uint64_t>();
  message.steps_base = in.Take<uint64_t>();
  message.rank = in.Take<uint32_t>();
  message.size = in.Take<uint32_t>();
  message.member_count = in.Take<uint32_t>();
  message.first_member = in.Take<uint32_t>();
  message.members = in.TakeMembers();
  message.text = in.TakeString(kTextBytesMax);
  message.number = in.AtEnd() ? message.rank : in.Take<uint32_t>();
  return nullptr;
}

void Put(Writer& out, const RankMembership& message) {
  out.Put(static_cast<uint32_t>(message.status));
  out.Put(message.flags);
  out.Put(message.epoch);
  out.Put(message.steps);
  out.Put(message.steps_base);
  out.Put(message.rank);
  out.Put(message.size);
  out.Put(message.member_count);
  out.Put(message.first_member);
  out.PutMembers(message.members);
  out.PutText(message.text);
  out.Put(message.number);
}

const char* Take(Reader& in, Ask& message) {
  message.tensor = in.Take<uint32_t>();
  message.round = in.Take<uint64_t>();
  return nullptr;
}

void Put(Writer& out, const Ask& message) {
  out.Put(message.tensor);
  out.Put(message.round);
}

const char* Take(Reader& in, Told& message) {
  message.status = static_cast<RankStatus>(in.Take<uint32_t>());
  message.text = in.TakeString(kTextBytesMax);
  return nullptr;
}

void Put(Writer& out, const Told& message) {
  out.Put(static_cast<uint32_t>(message.status));
  out.PutText(message.text);
}

const char* Take(Reader&, Goodbye&) { return nullptr; }
const char* Take(Reader&, Doorbell&) { return nullptr; }
const char* Take(Reader&, Wake&) { return nullptr; }

ParseResult Invalid(const char* error) {
  ParseResult result;
  result.error = error;
  return result;
}

ParseResult NeedMore(size_t bytes_needed) {
  ParseResult result;
  result.outcome = ParseOutcome::kNeedMore;
  result.bytes_needed = bytes_needed;
  return result;
}

template <typename Body>
const char* TakeBody(std::span<const std::byte> bytes, MessageBody& out) {
  Reader in(bytes);
  Body& body = out.emplace<Body>();
  if (const char* error = Take(in, body); error != nullptr) return error;
  if (in.too_long()) return "a string or list in the message is longer than its limit";
  return in.ok() ? nullptr : "the message ends before its last field";
}

const char* TakeBody(MessageType type, std::span<const std::byte> bytes, MessageBody& out) {
  switch (type) {
    case MessageType::kHello: return TakeBody<Hello>(bytes, out);
    case MessageType::kWelcome: return TakeBody<Welcome>(bytes, out);
    case MessageType::kDeclare: return TakeBody<Declare>(bytes, out);
    case MessageType::kDeclared: return TakeBody<Declared>(bytes, out);
    case MessageType::kGoodbye: return TakeBody<Goodbye>(bytes, out);
    case MessageType::kLost: return TakeBody<Lost>(bytes, out);
    case MessageType::kDoorbell: return TakeBody<Doorbell>(bytes, out);
    case MessageType::kWake: return TakeBody<Wake>(bytes, out);
    case MessageType::kPeer: return TakeBody<Peer>(bytes, out);
    case MessageType::kExport: return TakeBody<Export>(bytes, out);
    case MessageType::kExported: return TakeBody<Exported>(bytes, out);
    case MessageType::kUnexport: return TakeBody<Unexport>(bytes, out);
    case MessageType::kUnexported: return TakeBody<Unexported>(bytes, out);
    case MessageType::kPlace: return TakeBody<Place>(bytes, out);
    case MessageType::kPlaced: return TakeBody<Placed>(bytes, out);
    case MessageType::kBoundary: return TakeBody<Boundary>(bytes, out);
    case MessageType::kMembership: return TakeBody<RankMembership>(bytes, out);
    case MessageType::kAsk: return TakeBody<Ask>(bytes, out);
    case MessageType::kTold: return TakeBody<Told>(bytes, out);
  }
  return "the message is of an unknown type";
}

// A body's index in MessageBody is its MessageType - 1; checked below.
MessageType TypeOf(const MessageBody& body) { return static_cast<MessageType>(body.index() + 1); }

template <MessageType kType, typename Body>
constexpr bool kStandsInPlace =
    std::is_same_v<std::variant_alternative_t<static_cast<size_t>(kType) - 1, MessageBody>, Body>;
static_assert(kStandsInPlace<MessageType::kHello, Hello>);
static_assert(kStandsInPlace<MessageType::kWelcome, Welcome>);
static_assert(kStandsInPlace<MessageType::kDeclare, Declare>);
static_assert(kStandsInPlace<MessageType::kDeclared, Declared>);
static_assert(kStandsInPlace<MessageType::kGoodbye, Goodbye>);
static_assert(kStandsInPlace<MessageType::kLost, Lost>);
static_assert(kStandsInPlace<MessageType::kDoorbell, Doorbell>);
static_assert(kStandsInPlace<MessageType::kWake, Wake>);
static_assert(kStandsInPlace<MessageType::kPeer, Peer>);
static_assert(kStandsInPlace<MessageType::kExport, Export>);
static_assert(kStandsInPlace<MessageType::kExported, Exported>);
static_assert(kStandsInPlace<MessageType::kUnexport, Unexport>);
static_assert(kStandsInPlace<MessageType::kUnexported, Unexported>);
static_assert(kStandsInPlace<MessageType::kPlace, Place>);
static_assert(kStandsInPlace<MessageType::kPlaced, Placed>);
static_assert(kStandsInPlace<MessageType::kBoundary, Boundary>);
static_assert(kStandsInPlace<MessageType::kMembership, RankMembership>);
static_assert(kStandsInPlace<MessageType::kAsk, Ask>);
static_assert(kStandsInPlace<MessageType::kTold, Told>);

template <typename Body>
bool PutIf(Writer& out, const MessageBody& body) {
  const Body* typed = std::get_if<Body>(&body);
  if (typed == nullptr) return false;
  Put(out, *typed);
  return true;
}

void PutBody(Writer& out, const MessageBody& body) {
  // Not std::visit, which may throw. Goodbye, Doorbell and Wake have no body.
  PutIf<Hello>(out, body) || PutIf<Welcome>(out, body) || PutIf<Declare>(out, body) ||
      PutIf<Declared>(out, body) || PutIf<Lost>(out, body) || PutIf<Peer>(out, body) ||
      PutIf<Export>(out, body) || PutIf<Exported>(out, body) || PutIf<Unexport>(out, body) ||
      PutIf<Unexported>(out, body) || PutIf<Place>(out, body) || PutIf<Placed>(out, body) ||
      PutIf<Boundary>(out, body) || PutIf<RankMembership>(out, body) || PutIf<Ask>(out, body) ||
      PutIf<Told>(out, body);
}

}  // namespace

ParseResult ParseMessage(std::span<const std::byte> bytes) {
  Reader header(bytes);
  const uint32_t magic = header.Take<uint32_t>();
  // Recognises a stranger by its first four bytes, whatever length it announces.
  if (bytes.size() >= sizeof(magic) && magic != kMessageMagic) {
    return Invalid("the bytes do not begin with the magic number of a message");
  }
  if (bytes.size() < kMessageHeaderBytes) return NeedMore(kMessageHeaderBytes);
  const auto type = static_cast<MessageType>(header.Take<uint16_t>());
  const uint32_t fd_count = header.Take<uint16_t>();
  const uint32_t body_bytes = header.Take<uint32_t>();
  const uint32_t request = header.Take<uint32_t>();
  if (body_bytes > kBodyBytesMax) return Invalid("the message's body is longer than 64 KiB");
  if (fd_count > kDescriptorsMax) return Invalid("the message has more than 8 descriptors");
  const size_t total = kMessageHeaderBytes + body_bytes;
  if (bytes.size() < total) return NeedMore(total);

  ParseResult result;
  const char* error =
      TakeBody(type, bytes.subspan(kMessageHeaderBytes, body_bytes), result.message.body);
  if (error != nullptr) return Invalid(error);
  result.outcome = ParseOutcome::kMessage;
  result.message.request = request;
  result.message.fd_count = fd_count;
  result.bytes_used = total;
  return result;
}

size_t EncodeMessage(const Message& message, std::span<std::byte> out) {
  if (out.size() < kMessageHeaderBytes || message.fd_count > kDescriptorsMax) return 0;
  Writer body(out.subspan(kMessageHeaderBytes));
  PutBody(body, message.body);
  if (!body.ok()) return 0;
  Writer header(out);
  header.Put(kMessageMagic);
  header.Put(static_cast<uint16_t>(TypeOf(message.body)));
  header.Put(static_cast<uint16_t>(message.fd_count));
  header.Put(static_cast<uint32_t>(body.used()));
  header.Put(message.request);
  return kMessageHeaderBytes + body.used();
}

const char* MessageTypeName(MessageType type) {
  switch (type) {
    case MessageType::kHello: return "Hello";
    case MessageType::kWelcome: return "Welcome";
    case MessageType::kDeclare: return "Declare";
    case MessageType::kDeclared: return "Declared";
    case MessageType::kGoodbye: return "Goodbye";
    case MessageType::kLost: return "Lost";
    case MessageType::kDoorbell: return "Doorbell";
    case MessageType::kWake: return "Wake";
    case MessageType::kPeer: return "Peer";
    case MessageType::kExport: return "Export";
    case MessageType::kExported: return "Exported";
    case MessageType::kUnexport: return "Unexport";
    case MessageType::kUnexported: return "Unexported";
    case MessageType::kPlace: return "Place";
    case MessageType::kPlaced: return "Placed";
    case MessageType::kBoundary: return "Boundary";
    case MessageType::kMembership: return "Membership";
    case MessageType::kAsk: return "Ask";
    case MessageType::kTold: return "Told";
  }
  return "unknown";
}

}  // namespace talweg::shm
