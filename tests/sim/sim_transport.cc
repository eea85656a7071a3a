// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_transport.h"

#include <cstring>
#include <utility>

#include "tests/sim/ledger.h"

namespace talweg::sim {
namespace {

class CellMapping final : public aggregator::Mapping {
 public:
  explicit CellMapping(size_t bytes) : words_(bytes / sizeof(uint64_t)) {
    bytes_ = std::as_writable_bytes(std::span(words_));
  }

 private:
  std::vector<uint64_t> words_;
};

uint64_t LoadCell(const std::byte* at) {
  uint64_t cell = 0;
  std::memcpy(&cell, at, sizeof cell);
  return cell;
}

void StoreCell(std::byte* at, uint64_t cell) { std::memcpy(at, &cell, sizeof cell); }

constexpr size_t kRunCells = 2;  // The first cell, and the distance to the next.

// Every encoding gives cells back as they were. Each has a pattern with which its cells travel, so
// that cells that no decoder has seen, or that of another encoding, are wrong.
bool IsRuns(Encoding encoding) {
  return encoding == Encoding::kRuns || encoding == Encoding::kGaps || Rounds(encoding);
}
uint64_t PatternOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kPlain:
    case Encoding::kRuns:
    case Encoding::kTwice: return 0;
    case Encoding::kBf16: return 0xb16b16b16b16b16b;
    case Encoding::kInt8: return 0x1818181818181818;
    case Encoding::kGaps: return 0x6a6a6a6a6a6a6a6a;
    case Encoding::kFew: return 0xfefefefefefefefe;
  }
  throw Violation{"an encoding that does not exist"};
}

}  // namespace

void CellMemory::Map(size_t bytes, std::weak_ptr<const void> /*wanted*/, Then then) {
  then(std::make_shared<CellMapping>(bytes));
}

void CellSummer::Sum(const aggregator::SliceSum& sum) const {
  float ranks = 0;
  for (const float count : sum.rank_counts) ranks += count;
  if (ranks != static_cast<float>(sum.rank_count_total))
    throw Violation{"the divisor is not the number of ranks"};
  for (size_t at = 0; at < sum.length_bytes; at += kCellBytes) {
    uint64_t cell = 0;
    for (const std::byte* input : sum.inputs) cell = Combine(cell, LoadCell(input + at));
    std::memcpy(sum.output + at, &cell, sizeof cell);
  }
}

size_t CellCodec::Encode(Encoding encoding, uint64_t /*seed*/, std::span<const std::byte> plain,
                         std::span<std::byte> out) const {
  if (out.size() < TravelBytesMax(encoding, plain.size())) {
    throw Violation{"what is encoded has less room than its encoding may need"};
  }
  Cells cells;
  for (size_t at = 0; at < plain.size(); at += kCellBytes) {
    cells.push_back(LoadCell(plain.data() + at));
  }
  size_t bytes = plain.size();
  if (encoding == Encoding::kTwice) {
    const size_t count = cells.size();
    for (size_t i = 0; i < count; ++i) cells.push_back(~cells[i]);
    bytes = cells.size() * kCellBytes;
  } else if (IsRuns(encoding) && cells.size() > kRunCells) {
    const uint64_t step = cells[1] - cells[0];
    bool is_even = true;
    for (size_t i = 1; i < cells.size(); ++i) is_even &= cells[i] - cells[i - 1] == step;
    if (is_even) {
      cells = {cells[0], step};
      bytes = kRunCells * kCellBytes;
    }
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    StoreCell(out.data() + i * kCellBytes, cells[i] ^ PatternOf(encoding));
  }
  return bytes;
}

bool CellCodec::Decode(Encoding encoding, std::span<const std::byte> encoded,
                       std::span<std::byte> plain) const {
  const size_t count = CellCount(plain.size());
  const auto cell = [&](size_t place) {
    return LoadCell(encoded.data() + place * kCellBytes) ^ PatternOf(encoding);
  };
  const auto fill = [&](const auto& cell_of) {
    for (size_t i = 0; i < count; ++i) StoreCell(plain.data() + i * kCellBytes, cell_of(i));
  };
  if (encoding == Encoding::kTwice) {
    if (encoded.size() != 2 * count * kCellBytes) return false;
    for (size_t i = 0; i < count; ++i) {
      if (cell(i) != ~cell(count + i)) return false;
    }
  } else if (IsRuns(encoding) && count > kRunCells && encoded.size() == kRunCells * kCellBytes) {
    fill([&](size_t i) { return cell(0) + i * cell(1); });
    return true;
  } else if (encoded.size() != plain.size()) {
    return false;
  }
  fill(cell);
  return true;
}

class SimTransport::Registered final : public transport::Registration {
 public:
  Registered(SimTransport* owner, uint64_t key, std::span<std::byte> bytes) : owner_(owner) {
    bytes_ = bytes;
    base_ = {.key = key, .address = 0};
    owner_->regions_[key] = bytes;
  }
  ~Registered() override { owner_->regions_.erase(base_.key); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  SimTransport* const owner_;
};

absl::StatusOr<ConnectionId> SimTransport::Connect(const std::string& address) {
  const ConnectionId name{next_name_++};
  network_->Connect(host_, name, static_cast<HostIndex>(std::stoul(address)),
                    next_claim_ ? next_claim_() : std::nullopt);
  return name;
}

std::string SimTransport::Check(const transport::TokenClaim& claim) {
  const std::string why = admission_ ? admission_(claim.identity) : "";
  if (!why.empty() || tokens_.Take(claim, admission_)) return why;
  return "the token was used before, or is late";
}

std::string SimTransport::WhyRefused(ConnectionId connection, const transport::TokenClaim& claim) {
  std::string why = Check(claim);
  watcher_->OnToken(claim, why);
  if (!why.empty()) return why;
  taken_.push_back(claim);
  proven_[connection] = claim.identity;
  return "";
}

bool SimTransport::LetsInAgain() {
  return !taken_.empty() && Check(taken_[random_.Below(taken_.size())]).empty();
}

std::optional<transport::PeerIdentity> SimTransport::ProvenIdentity(ConnectionId connection) const {
  const auto found = proven_.find(connection);
  if (found == proven_.end()) return std::nullopt;
  return found->second;
}

void SimTransport::Close(ConnectionId connection) {
  network_->Close(host_, connection);
  std::erase_if(events_, [connection](const Event& e) { return e.connection == connection; });
}

absl::StatusOr<transport::Region> SimTransport::Register(std::span<std::byte> bytes) {
  return transport::Region(std::make_unique<Registered>(this, next_key_++, bytes));
}

Cells SimTransport::Read(uint64_t key, size_t offset, size_t length) const {
  const auto region = regions_.find(key);
  if (region == regions_.end()) {
    throw Violation{"host " + std::to_string(host_) +
                    ": memory was freed while a write still reads it"};
  }
  Cells cells;
  cells.reserve(CellCount(length));
  const std::byte* const first = region->second.data() + offset;
  for (size_t at = 0; at < length; at += kCellBytes) cells.push_back(LoadCell(first + at));
  return cells;
}

transport::PostResult SimTransport::PostWrite(ConnectionId connection,
                                              transport::RegionSlice source, wire::RemoteRef target,
                                              uint64_t context) {
  network_->Write(
      host_, connection,
      [this, key = source.registration->base().key, offset = source.offset,
       length = source.length] { return Read(key, offset, length); },
      target, context);
  return transport::PostResult::kPosted;
}

transport::PostResult SimTransport::PostFrame(ConnectionId connection,
                                              std::vector<std::byte> frame) {
  watcher_->OnFramePosted(connection, frame);
  network_->SendFrame(host_, connection, std::move(frame));
  return transport::PostResult::kPosted;
}

void SimTransport::Push(Event event) {
  events_.push_back(std::move(event));
  watcher_->OnWake();
}

void SimTransport::OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) {
  Push({.what = What::kFrame,
        .connection = connection,
        .frame = {bytes.begin(), bytes.end()},
        .sent_ns = network_->frame_sent_ns()});
}

void SimTransport::OnLinkAccepted(ConnectionId connection) {
  Push({.what = What::kAccepted, .connection = connection});
}

void SimTransport::OnLinkOpen(ConnectionId connection) {
  Push({.what = What::kConnected, .connection = connection});
}

void SimTransport::OnLinkLost(ConnectionId connection, const std::string& reason) {
  Push({.what = What::kDisconnected, .connection = connection, .reason = reason});
}

void SimTransport::OnWriteLanded(ConnectionId connection, uint64_t context) {
  Push({.what = What::kWriteDone, .connection = connection, .context = context});
}

CellTarget SimTransport::Target(ConnectionId, wire::RemoteRef ref, uint64_t cells) {
  const auto region = regions_.find(ref.key);
  if (region == regions_.end()) return {};
  const uint64_t bytes = cells * kCellBytes;
  const uint64_t region_bytes = CellCount(region->second.size()) * kCellBytes;
  if (ref.address % kCellBytes != 0 || ref.address + bytes > region_bytes) {
    throw Violation{"host " + std::to_string(host_) + ": a peer writes past the end of a region"};
  }
  watcher_->OnLanding(ref, bytes);
  auto* const first = reinterpret_cast<uint64_t*>(region->second.data() + ref.address);
  return {.first = first, .stride = kCellBytes / sizeof(uint64_t)};
}

void SimTransport::Deliver(transport::EventSink& sink, const Event& event) {
  switch (event.what) {
    case What::kAccepted: return sink.OnAccepted(event.connection);
    case What::kConnected: return sink.OnConnected(event.connection);
    case What::kDisconnected: return sink.OnDisconnected(event.connection, event.reason);
    case What::kFrame: return sink.OnFrame(event.connection, event.frame);
    case What::kWriteDone: return sink.OnWriteDone(event.connection, event.context);
  }
}

int SimTransport::Poll(transport::EventSink& sink, int events_max) {
  int done = 0;
  while (done < events_max && !events_.empty()) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    if (event.what == What::kFrame) frame_sent_ns_ = event.sent_ns;
    watcher_->OnEvent(event.connection, event.frame, event.what == What::kDisconnected,
                      [&] { Deliver(sink, event); });
    ++done;
  }
  return done;
}

}  // namespace talweg::sim
