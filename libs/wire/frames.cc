// SPDX-License-Identifier: Apache-2.0
#include "libs/wire/frames.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/wire/fields.h"

namespace talweg::wire {
namespace {

template <typename Enum>
bool Between(Enum value, Enum first, Enum last) {
  return value >= first && value <= last;
}

void Write(FieldWriter& out, const Hello& e) {
  out.Put(e.member.node);
  out.Put(e.rank_count);
  out.Put(e.member.incarnation);
  out.Put(e.view_digest);
  out.Put(e.job_name);
  out.Put(e.node_name);
}
void Read(FieldReader& in, Hello& e) {
  in.Get(e.member.node);
  in.Get(e.rank_count);
  in.Get(e.member.incarnation);
  in.Get(e.view_digest);
  in.Get(e.job_name, kNameBytesMax);
  in.Get(e.node_name, kNameBytesMax);
}

void Write(FieldWriter& out, const Welcome& e) {
  out.Put(e.aggregator);
  out.Put(e.credit_bytes);
  out.Put(e.status);
  out.Put(e.text);
}
void Read(FieldReader& in, Welcome& e) {
  in.Get(e.aggregator);
  in.Get(e.credit_bytes);
  in.Get(e.status);
  in.Get(e.text, kTextBytesMax);
  if (!Between(e.status, WelcomeStatus::kOk, WelcomeStatus::kVersion)) in.Fail();
}

void Write(FieldWriter& out, const Declare& e) {
  out.Put(e.key);
  out.Put(e.collective.element_count);
  for (const RemoteRef& ref : e.result) out.Put(ref);
  out.Put(e.root_rank);
  out.Put(e.by_rank);
  out.Put(e.collective.dtype);
  out.Put(e.collective.op);
  out.Put(e.collective.gives);
  out.Put(e.collective.gets);
  out.Put(e.name);
  std::vector<uint32_t> places;
  places.reserve(2 * e.group.size());
  for (const view::Place& place : e.group) {
    places.push_back(place.node.value());
    places.push_back(place.local_rank.value());
  }
  out.Put(places);
  out.Put(e.collective.side);
  out.Put(e.collective.encoding);
  out.Put(e.collective.patience_ms);
}
void Read(FieldReader& in, Declare& e) {
  in.Get(e.key);
  in.Get(e.collective.element_count);
  for (RemoteRef& ref : e.result) in.Get(ref);
  in.Get(e.root_rank);
  in.Get(e.by_rank);
  in.Get(e.collective.dtype);
  in.Get(e.collective.op);
  in.Get(e.collective.gives);
  in.Get(e.collective.gets);
  in.Get(e.name, kNameBytesMax);
  std::vector<uint32_t> places;
  in.Get(places);
  if (places.size() % 2 != 0 || places.size() > 2 * kGroupRanksMax) return in.Fail();
  for (size_t i = 0; i < places.size(); i += 2) {
    e.group.push_back({NodeRank{places[i]}, LocalRank{places[i + 1]}});
    if (i > 0 && e.group.end()[-2] >= e.group.back()) return in.Fail();
  }
  in.Get(e.collective.side);
  in.Get(e.collective.encoding);
  if (in.remaining() > 0) in.Get(e.collective.patience_ms);  // Since 3.1.
}

void Write(FieldWriter& out, const Declared& e) {
  out.Put(e.key);
  out.Put(e.slot);
  out.Put(e.held);
  out.Put(e.status);
  out.Put(e.text);
}
void Read(FieldReader& in, Declared& e) {
  in.Get(e.key);
  in.Get(e.slot);
  in.Get(e.held);
  in.Get(e.status);
  in.Get(e.text, kTextBytesMax);
  if (!Between(e.status, DeclaredStatus::kOk, DeclaredStatus::kAborted)) in.Fail();
}

// The most bytes that an entry of this form may hold.
constexpr size_t InlineBytesMax(Form form) {
  switch (form) {
    case Form::kInline: return kInlineBytesMax;
    case Form::kDisagreement: return kTextBytesMax;
    case Form::kWritten:
    case Form::kEmpty: break;
  }
  return 0;
}

void WriteInline(FieldWriter& out, Form form, std::span<const std::byte> bytes) {
  TALWEG_CHECK(bytes.size() <= InlineBytesMax(form));
  out.Put(static_cast<uint32_t>(bytes.size()));
  out.PutBytes(bytes);
}
void ReadInline(FieldReader& in, Form form, std::span<const std::byte>& bytes) {
  uint32_t size = 0;
  in.Get(size);
  if (!Between(form, Form::kInline, Form::kDisagreement) || size > InlineBytesMax(form))
    return in.Fail();
  bytes = in.GetBytes(size);
}

void Write(FieldWriter& out, const Contribute& e) {
  out.Put(e.key);
  out.Put(e.round);
  out.Put(e.sum_epoch);
  out.Put(e.slice);
  out.Put(e.rank_count);
  out.Put(e.mode);
  out.Put(e.form);
  out.Put(e.wants_result);
  out.Put(uint8_t{0});
  out.Put(e.length_bytes);
  out.Put(e.travel_bytes);
  out.Put(e.priority);
  out.Put(e.signature);
  WriteInline(out, e.form, e.bytes);
}
void Read(FieldReader& in, Contribute& e) {
  uint8_t reserved = 0;
  in.Get(e.key);
  in.Get(e.round);
  in.Get(e.sum_epoch);
  in.Get(e.slice);
  in.Get(e.rank_count);
  in.Get(e.mode);
  in.Get(e.form);
  in.Get(e.wants_result);
  in.Get(reserved);
  in.Get(e.length_bytes);
  in.Get(e.travel_bytes);
  in.Get(e.priority);
  in.Get(e.signature);
  ReadInline(in, e.form, e.bytes);
  if (!Between(e.mode, Mode::kSum, Mode::kCopy)) in.Fail();
}

void Write(FieldWriter& out, const Result& e) {
  out.Put(e.key);
  out.Put(e.round);
  out.Put(e.sum_epoch);
  out.Put(e.slice);
  out.Put(e.rank_count);
  out.Put(e.form);
  out.Put(uint8_t{0});
  out.Put(uint16_t{0});
  out.Put(e.length_bytes);
  out.Put(e.travel_bytes);
  WriteInline(out, e.form, e.bytes);
}
void Read(FieldReader& in, Result& e) {
  uint8_t reserved8 = 0;
  uint16_t reserved16 = 0;
  in.Get(e.key);
  in.Get(e.round);
  in.Get(e.sum_epoch);
  in.Get(e.slice);
  in.Get(e.rank_count);
  in.Get(e.form);
  in.Get(reserved8);
  in.Get(reserved16);
  in.Get(e.length_bytes);
  in.Get(e.travel_bytes);
  ReadInline(in, e.form, e.bytes);
}

void Write(FieldWriter& out, const Report& e) {
  out.Put(e.key);
  out.Put(e.held);
  out.Put(e.held_epoch);
  out.Put(e.contributed);
  out.Put(e.partial_epoch);
  out.Put(e.slices);
}
void Read(FieldReader& in, Report& e) {
  in.Get(e.key);
  in.Get(e.held);
  in.Get(e.held_epoch);
  in.Get(e.contributed);
  in.Get(e.partial_epoch);
  in.Get(e.slices);
}

void Write(FieldWriter& out, const Decision& e) {
  out.Put(e.key);
  out.Put(e.round);
  out.Put(e.sum_epoch);
  out.Put(e.verdict);
  out.Put(e.sources);
  out.Put(e.text);
}
void Read(FieldReader& in, Decision& e) {
  in.Get(e.key);
  in.Get(e.round);
  in.Get(e.sum_epoch);
  in.Get(e.verdict);
  in.Get(e.sources);
  in.Get(e.text, kTextBytesMax);
  if (!Between(e.verdict, Verdict::kRedo, Verdict::kAbort)) in.Fail();
}

void Write(FieldWriter& out, const Refused& e) {
  out.Put(e.key);
  out.Put(e.round);
  out.Put(e.slice);
  out.Put(e.reason);
  out.Put(e.text);
}
void Read(FieldReader& in, Refused& e) {
  in.Get(e.key);
  in.Get(e.round);
  in.Get(e.slice);
  in.Get(e.reason);
  in.Get(e.text, kTextBytesMax);
  if (!Between(e.reason, RefusedReason::kWrongJob, RefusedReason::kPoisoned)) in.Fail();
}

void Write(FieldWriter& out, const Failed& e) {
  out.Put(e.key);
  out.Put(e.round);
  out.Put(e.code);
  out.Put(e.text);
}
void Read(FieldReader& in, Failed& e) {
  in.Get(e.key);
  in.Get(e.round);
  in.Get(e.code);
  in.Get(e.text, kTextBytesMax);
  if (!Between(e.code, FailedCode::kMismatch, FailedCode::kInvalid)) in.Fail();
}

void Write(FieldWriter& out, const Waiting& e) {
  out.Put(e.key);
  out.Put(e.round);
  out.Put(e.waited_ns);
  out.Put(e.missing_nodes);
  out.Put(e.absent_ns);
  out.Put(e.left_nodes);
}
void Read(FieldReader& in, Waiting& e) {
  in.Get(e.key);
  in.Get(e.round);
  in.Get(e.waited_ns);
  in.Get(e.missing_nodes);
  in.Get(e.absent_ns);
  in.Get(e.left_nodes);
  e.absent_ns.resize(e.missing_nodes.size());
}

std::string Hex(uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

template <typename Entry>
bool ReadEntries(std::span<const std::byte> body, uint32_t count, Entries& entries) {
  // An entry takes at least 8 bytes; the check keeps a false count from reserving much.
  if (count > body.size() / kAlignmentBytes) return false;
  std::vector<Entry> list;
  list.reserve(count);
  FieldReader in(body);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t entry_bytes = 0;
    in.Get(entry_bytes);
    if (entry_bytes < sizeof entry_bytes) return false;
    FieldReader fields(in.GetBytes(entry_bytes - sizeof entry_bytes));
    if (!in.ok()) return false;
    Entry& entry = list.emplace_back();
    Read(fields, entry);
    if (!fields.ok()) return false;
    in.GetBytes(RoundUp(entry_bytes, kAlignmentBytes) - entry_bytes);
  }
  entries = std::move(list);
  return in.ok() && in.remaining() == 0;
}

bool ReadBody(const Header& header, std::span<const std::byte> body, Entries& entries) {
  const uint32_t count = header.entry_count;
  switch (header.type) {
    case FrameType::kHello: return ReadEntries<Hello>(body, count, entries);
    case FrameType::kWelcome: return ReadEntries<Welcome>(body, count, entries);
    case FrameType::kDeclare: return ReadEntries<Declare>(body, count, entries);
    case FrameType::kDeclared: return ReadEntries<Declared>(body, count, entries);
    case FrameType::kContribute: return ReadEntries<Contribute>(body, count, entries);
    case FrameType::kResult: return ReadEntries<Result>(body, count, entries);
    case FrameType::kReport: return ReadEntries<Report>(body, count, entries);
    case FrameType::kDecision: return ReadEntries<Decision>(body, count, entries);
    case FrameType::kRefused: return ReadEntries<Refused>(body, count, entries);
    case FrameType::kFailed: return ReadEntries<Failed>(body, count, entries);
    case FrameType::kWaiting: return ReadEntries<Waiting>(body, count, entries);
    case FrameType::kCredit:
    case FrameType::kFence:
    case FrameType::kFenceAck:
    case FrameType::kGoodbye: return count == 0 && body.empty();
  }
  return false;
}

}  // namespace

const char* FrameTypeName(FrameType type) {
  static constexpr const char* kNames[] = {
      "invalid", "Hello",    "Welcome", "Declare",  "Declared", "Contribute", "Result",  "Credit",
      "Fence",   "FenceAck", "Report",  "Decision", "Refused",  "Failed",     "Waiting", "Goodbye"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : kNames[0];
}

const char* RefusedReasonName(RefusedReason reason) {
  static constexpr const char* kNames[kRefusedReasonCount] = {
      "invalid",         "wrong_job",   "wrong_epoch",  "not_a_member", "not_declared",
      "not_placed_here", "wrong_round", "wrong_length", "wrong_mode",   "poisoned_tensor"};
  const auto index = static_cast<size_t>(reason);
  return index < std::size(kNames) ? kNames[index] : kNames[0];
}

FrameWriter::FrameWriter(FrameType type, JobId job, Epoch epoch, uint8_t flags)
    : type_(type), job_(job), epoch_(epoch), flags_(flags) {
  Reset();
}

void FrameWriter::Reset() {
  bytes_.assign(kHeaderBytes, std::byte{0});
  entry_count_ = 0;
}

template <typename Body>
bool FrameWriter::AddEntry(FrameType type, const Body& body) {
  TALWEG_CHECK(type == type_);
  const size_t begin = bytes_.size();
  FieldWriter out(bytes_);
  out.Put(uint32_t{0});
  Write(out, body);
  const auto entry_bytes = static_cast<uint32_t>(bytes_.size() - begin);
  std::memcpy(bytes_.data() + begin, &entry_bytes, sizeof entry_bytes);
  out.Pad();
  if (bytes_.size() > kFrameBytesMax) {
    TALWEG_CHECK(entry_count_ > 0);
    bytes_.resize(begin);
    return false;
  }
  ++entry_count_;
  return true;
}

bool FrameWriter::Add(const Hello& entry) { return AddEntry(FrameType::kHello, entry); }
bool FrameWriter::Add(const Welcome& entry) { return AddEntry(FrameType::kWelcome, entry); }
bool FrameWriter::Add(const Declare& entry) { return AddEntry(FrameType::kDeclare, entry); }
bool FrameWriter::Add(const Declared& entry) { return AddEntry(FrameType::kDeclared, entry); }
bool FrameWriter::Add(const Contribute& entry) { return AddEntry(FrameType::kContribute, entry); }
bool FrameWriter::Add(const Result& entry) { return AddEntry(FrameType::kResult, entry); }
bool FrameWriter::Add(const Report& entry) { return AddEntry(FrameType::kReport, entry); }
bool FrameWriter::Add(const Decision& entry) { return AddEntry(FrameType::kDecision, entry); }
bool FrameWriter::Add(const Refused& entry) { return AddEntry(FrameType::kRefused, entry); }
bool FrameWriter::Add(const Failed& entry) { return AddEntry(FrameType::kFailed, entry); }
bool FrameWriter::Add(const Waiting& entry) { return AddEntry(FrameType::kWaiting, entry); }

std::vector<std::byte> FrameWriter::Take(uint64_t credit_bytes) {
  std::vector<std::byte> header;
  header.reserve(kHeaderBytes);
  FieldWriter out(header);
  out.Put(kMagic);
  out.Put(kVersionMajor);
  out.Put(kVersionMinor);
  out.Put(type_);
  out.Put(flags_);
  out.Put(job_);
  out.Put(epoch_);
  out.Put(static_cast<uint32_t>(bytes_.size() - kHeaderBytes));
  out.Put(entry_count_);
  out.Put(credit_bytes);
  TALWEG_CHECK(header.size() == kHeaderBytes);
  std::copy(header.begin(), header.end(), bytes_.begin());
  std::vector<std::byte> frame = std::move(bytes_);
  Reset();
  return frame;
}

std::variant<Frame, ParseError> ParseFrame(std::span<const std::byte> bytes) {
  Frame frame;
  Header& header = frame.header;
  uint32_t magic = 0;
  FieldReader in(bytes);
  in.Get(magic);
  in.Get(header.version_major);
  in.Get(header.version_minor);
  in.Get(header.type);
  in.Get(header.flags);
  in.Get(header.job);
  in.Get(header.epoch);
  in.Get(header.body_bytes);
  in.Get(header.entry_count);
  in.Get(header.credit_bytes);
  if (!in.ok()) {
    return ParseError{"a frame of " + Counted(bytes.size(), "byte") +
                      " is shorter than its header of " + std::to_string(kHeaderBytes)};
  }
  if (magic != kMagic) {
    return ParseError{"magic is " + Hex(magic) + ", not " + Hex(kMagic) +
                      ": this is not a Talweg frame"};
  }
  if (header.version_major != kVersionMajor) {
    return ParseError{"the peer speaks protocol version " + std::to_string(header.version_major) +
                      "." + std::to_string(header.version_minor) + ", this process " +
                      std::to_string(kVersionMajor) + "." + std::to_string(kVersionMinor) +
                      ": install versions with the same major number"};
  }
  if (header.body_bytes != in.remaining()) {
    return ParseError{"body_bytes is " + std::to_string(header.body_bytes) + ", but " +
                      std::to_string(in.remaining()) + " follow the header"};
  }
  if (!ReadBody(header, bytes.subspan(kHeaderBytes), frame.entries)) {
    return ParseError{std::string("the entries of a ") + FrameTypeName(header.type) + " frame (" +
                      std::to_string(header.entry_count) + " in " +
                      Counted(header.body_bytes, "byte") + ") do not parse"};
  }
  return frame;
}

void CutText(std::string& text) {
  if (text.size() <= kTextBytesMax) return;
  size_t end = kTextBytesMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
}

}  // namespace talweg::wire
