// SPDX-License-Identifier: Apache-2.0
//
// A member of a job of its own that abuses the only aggregator of its view until it is killed, over
// the aggregator's transport: libfabric's tcp or Talweg's own TCP. It serves tests and benchmarks.
//
//   rude_member SCHEDULER none|keyed|tls JOB MANNER
//
// greedy: sums 64 tensors of 256 KiB without end, each as soon as it may.
// refused: contributes to tensors that nobody has declared, without end and without credit.
// garbage: sends bytes that are no frame, and connects again when its connection is closed.
// silent: opens 400 connections, says Hello on none, and opens again those that were closed.
// deaf: declares a tensor that has failed again and again, and hardly reads the answers.
// names: declares tensors of new names without end, each for 4096 ranks.
//
// It prints "ready" when it has begun, and "done N" after each 16 further units: rounds, frames,
// frames, connections, frames, frames.
#include <poll.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/fingerprint.h"
#include "libs/runtime/clock.h"
#include "libs/transport/network/network.h"
#include "libs/view/placement.h"
#include "libs/wire/frames.h"
#include "tests/attackers/lone_member.h"

namespace talweg {
namespace {

constexpr size_t kTensors = 64;
constexpr size_t kTensorBytes = 256 * kKiB;
constexpr size_t kConnections = 400;
constexpr uint64_t kPendingBytesMax = 2 * kMiB;
constexpr uint64_t kNoticeEvery = 16;

class Rude : public transport::EventSink {
 public:
  Rude(transport::Transport* transport, view::View view, view::MemberIdentity self)
      : transport_(transport), view_(std::move(view)), self_(self) {}

  // It never returns.
  [[noreturn]] void Run() {
    Begin();
    std::printf("ready\n");
    std::fflush(stdout);
    while (true) {
      const bool more = Go();
      if (!Reads()) continue;
      if (transport_->Poll(*this, 64) > 0 || more || !transport_->PrepareToSleep()) continue;
      pollfd descriptor{transport_->WaitDescriptor(), POLLIN, 0};
      poll(&descriptor, 1, 10);
    }
  }

  void OnAccepted(ConnectionId) override {}
  void OnConnected(ConnectionId) override {}
  void OnWriteDone(ConnectionId, uint64_t) override {}
  void OnFrame(ConnectionId, std::span<const std::byte>) override {}
  void OnDisconnected(ConnectionId, const std::string&) override { connection_.reset(); }

 protected:
  virtual void Begin() {}
  // Does some work. Returns false if there is nothing to do before a network event.
  virtual bool Go() = 0;
  // Returns whether it looks for what has come, after this work.
  virtual bool Reads() { return true; }

  ConnectionId Connect() {
    return *transport_->Connect(
        transport::SelectAddress(view_.aggregators[0].data_address, /*same_host=*/false));
  }
  template <typename Entry>
  void Say(wire::FrameType type, const std::vector<Entry>& entries) {
    wire::FrameWriter writer(type, view_.job, view_.epoch);
    for (const Entry& entry : entries) writer.Add(entry);
    transport_->PostFrame(*connection_, writer.Take());
  }
  // Says Hello on a new connection.
  void Greet() {
    connection_ = Connect();
    Say(wire::FrameType::kHello,
        std::vector{wire::Hello{.member = self_,
                                .rank_count = 1,
                                .view_digest = view::PlacementDigest(view_),
                                .job_name = "rude",
                                .node_name = "rude"}});
    Say(wire::FrameType::kReport, std::vector<wire::Report>());
  }
  bool IsFull() const { return transport_->PendingBytes(*connection_) > kPendingBytesMax; }
  void Count() {
    if (++done_ % kNoticeEvery != 0) return;
    std::printf("done %llu\n", static_cast<unsigned long long>(done_));
    std::fflush(stdout);
  }

  transport::Transport* const transport_;
  const view::View view_;
  const view::MemberIdentity self_;
  std::optional<ConnectionId> connection_;
  uint64_t done_ = 0;
};

class Greedy final : public Rude {
 public:
  using Rude::Rude;

 private:
  void Begin() override {
    sent_.resize(kTensorBytes);
    got_.resize(2 * kTensors * kTensorBytes);
    sent_region_ = *transport_->Register(sent_);
    got_region_ = *transport_->Register(got_);
    Greet();
    const Collective collective =
        Collective::Of(DType::kF32, Op::kSum, kTensorBytes / sizeof(float));
    std::vector<wire::Declare> declares;
    for (size_t i = 0; i < kTensors; ++i) {
      const std::string name = "t" + std::to_string(i);
      keys_.push_back(TensorKey{Fingerprint64(name)});
      declares.push_back({.key = keys_[i],
                          .name = name,
                          .collective = collective,
                          .result = {got_region_.Ref(2 * i * kTensorBytes),
                                     got_region_.Ref((2 * i + 1) * kTensorBytes)}});
    }
    cut_ = view::Placement(view_, keys_[0], collective, view::Group()).slices();
    Say(wire::FrameType::kDeclare, declares);
  }
  bool Go() override { return false; }
  void OnFrame(ConnectionId, std::span<const std::byte> bytes) override {
    const auto parsed = wire::ParseFrame(bytes);
    const auto* frame = std::get_if<wire::Frame>(&parsed);
    if (frame == nullptr) return;
    if (const auto* declared = std::get_if<std::vector<wire::Declared>>(&frame->entries)) {
      for (const wire::Declared& entry : *declared) {
        slots_[entry.key] = entry.slot;
        Push(entry.key, Round{1});
      }
    } else if (const auto* results = std::get_if<std::vector<wire::Result>>(&frame->entries)) {
      for (const wire::Result& entry : *results) {
        // A tensor has several slices. The last one of a round begins the next round.
        if (++slices_[{entry.key, entry.round}] < cut_.size()) continue;
        slices_.erase({entry.key, entry.round});
        Push(entry.key, entry.round.Next());
        Count();
      }
    }
  }
  void Push(TensorKey key, Round round) {
    const wire::RemoteRef slot = slots_.at(key);
    transport_->PostWrite(*connection_, sent_region_.Slice(0, kTensorBytes), slot, 1);
    std::vector<wire::Contribute> entries;
    for (uint32_t slice = 0; slice < cut_.size(); ++slice) {
      entries.push_back({.key = key,
                         .round = round,
                         .slice = SliceIndex{slice},
                         .rank_count = 1,
                         .length_bytes = cut_[slice].length_bytes,
                         .travel_bytes = cut_[slice].length_bytes});
    }
    Say(wire::FrameType::kContribute, entries);
  }

  std::vector<std::byte> sent_;
  std::vector<std::byte> got_;
  transport::Region sent_region_;
  transport::Region got_region_;
  std::vector<TensorKey> keys_;
  std::vector<view::Slice> cut_;  // The same for all tensors, because there is one aggregator.
  std::map<TensorKey, wire::RemoteRef> slots_;
  std::map<std::pair<TensorKey, Round>, uint32_t> slices_;
};

// Sends without end, as fast as the network takes it.
class Flood : public Rude {
 public:
  using Rude::Rude;

 private:
  bool Go() final {
    if (!connection_) Greet();
    if (IsFull()) return false;
    Send();
    Count();
    return true;
  }
  virtual void Send() = 0;
};

class RefusedFlood final : public Flood {
 public:
  using Flood::Flood;

 private:
  void Send() override {
    const std::vector<wire::Contribute> entries(
        7, {.key = TensorKey{1},
            .round = Round{1},
            .rank_count = 1,
            .length_bytes = static_cast<uint32_t>(bytes_.size()),
            .travel_bytes = static_cast<uint32_t>(bytes_.size()),
            .form = wire::Form::kInline,
            .bytes = bytes_});
    Say(wire::FrameType::kContribute, entries);
  }

  const std::array<std::byte, wire::kInlineBytesMax> bytes_{};
};

class Garbage final : public Flood {
 public:
  using Flood::Flood;

 private:
  void Send() override {
    std::vector<std::byte> frame(wire::kFrameBytesMax);
    for (std::byte& byte : frame) byte = static_cast<std::byte>(++last_ * 193);
    transport_->PostFrame(*connection_, std::move(frame));
  }

  uint32_t last_ = 0;
};

// The only member of its view says that the tensor has failed, with a long text, which each answer
// repeats.
class Deaf final : public Flood {
 public:
  using Flood::Flood;

 private:
  static constexpr uint64_t kSeldom = 256;
  static constexpr size_t kEntries = 400;

  void Send() override {
    const wire::Declare declare = {.key = TensorKey{Fingerprint64("t")},
                                   .name = "t",
                                   .collective = Collective::Of(DType::kF32, Op::kSum, 1)};
    Say(wire::FrameType::kDeclare, std::vector(kEntries, declare));
    if (declared_on_ == connection_) return;
    declared_on_ = connection_;
    Say(wire::FrameType::kFailed,
        std::vector{wire::Failed{.key = declare.key, .text = std::string(2000, 'x')}});
  }
  // Frames leave when they are posted. It looks only now and then whether it is still connected.
  bool Reads() override { return ++passes_ % kSeldom == 0 || IsFull(); }

  std::optional<ConnectionId> declared_on_;
  uint64_t passes_ = 0;
};

class Names final : public Flood {
 public:
  using Flood::Flood;

 private:
  void Send() override {
    const std::string name = "name " + std::to_string(++last_);
    wire::Declare declare = {.key = TensorKey{Fingerprint64(name)},
                             .name = name,
                             .collective = Collective::Of(DType::kF32, Op::kSum, 1)};
    for (uint32_t rank = 0; rank < wire::kGroupRanksMax; ++rank) {
      declare.group.push_back({NodeRank{rank}, LocalRank{0}});
    }
    Say(wire::FrameType::kDeclare, std::vector{declare});
  }

  uint64_t last_ = 0;
};

class Silent final : public Rude {
 public:
  using Rude::Rude;

 private:
  // It opens only a few at once, because few half-open connections are let in.
  void Begin() override {
    for (size_t i = 0; i < kAtOnce; ++i) Open();
  }
  bool Go() override { return false; }
  void OnConnected(ConnectionId) override {
    if (open_ < kConnections) Open();
  }
  void OnDisconnected(ConnectionId, const std::string&) override {
    --open_;
    Open();
    Count();
  }
  void Open() {
    ++open_;
    Connect();
  }

  static constexpr size_t kAtOnce = 16;
  size_t open_ = 0;
};

int Run(const std::string& scheduler, const std::string& setting, const std::string& job,
        const std::string& manner) {
  const runtime::MonotonicClock clock;
  const view::MemberIdentity self = {NodeRank(0),
                                     Incarnation(static_cast<uint64_t>(clock.NowNs()) | 1)};
  LoneMember member(scheduler, setting, job, self);
  if (!member.WaitForView()) return 1;
  const view::View& view = member.view();
  const std::string address =
      transport::SelectAddress(view.aggregators[0].data_address, /*same_host=*/false);
  auto transport = transport::NewNetworkTransport(
      {.data_security = setting,
       .data_transport = address.starts_with("fi:") ? "libfabric" : "tcp"},
      &clock, nullptr);
  if (!transport.ok()) {
    std::printf("%s\n", std::string(transport.status().message()).c_str());
    return 1;
  }
  transport::Transport* const raw = transport->get();
  std::unique_ptr<Rude> rude;
  if (manner == "greedy") rude = std::make_unique<Greedy>(raw, view, self);
  if (manner == "refused") rude = std::make_unique<RefusedFlood>(raw, view, self);
  if (manner == "garbage") rude = std::make_unique<Garbage>(raw, view, self);
  if (manner == "silent") rude = std::make_unique<Silent>(raw, view, self);
  if (manner == "deaf") rude = std::make_unique<Deaf>(raw, view, self);
  if (manner == "names") rude = std::make_unique<Names>(raw, view, self);
  if (rude == nullptr) {
    std::printf("no such manner: %s\n", manner.c_str());
    return 2;
  }
  rude->Run();
}

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  return talweg::Run(argv[1], argv[2], argv[3], argv[4]);
}
