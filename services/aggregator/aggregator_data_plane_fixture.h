// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_FIXTURE_H_
#define TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_FIXTURE_H_

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/fingerprint.h"
#include "libs/runtime/clock.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/tcp/tcp_transport.h"
#include "libs/view/placement.h"
#include "services/aggregator/aggregator_data_plane.h"

// A data plane over a real transport, and agents that tests drive by hand.
namespace talweg::aggregator {

using wire::FrameType;

inline constexpr Incarnation kSelf{900};

inline TensorKey KeyOf(const std::string& name) { return TensorKey{Fingerprint64(name)}; }

// A real clock that a test can stop, and move ahead.
class SkippingClock final : public runtime::Clock {
 public:
  int64_t NowNs() const override { return stopped_ns_.value_or(real_.NowNs()) + skipped_ns; }
  void Stop() { stopped_ns_ = real_.NowNs(); }
  int64_t skipped_ns = 0;

 private:
  runtime::MonotonicClock real_;
  std::optional<int64_t> stopped_ns_;
};

inline view::View MakeView(uint64_t job, uint32_t members, uint64_t epoch = 1) {
  view::View view;
  view.job = JobId{job};
  view.epoch = Epoch{epoch};
  for (uint32_t i = 0; i < members; ++i) {
    view.members.push_back(
        {.id = {NodeRank{i}, Incarnation{100 + i}}, .rank_count = i + 1, .name = "host"});
  }
  view.aggregators.push_back({.incarnation = kSelf, .name = "agg"});
  return view;
}

// An agent as an aggregator sees one.
class HandAgent : public transport::EventSink {
 public:
  HandAgent(absl::StatusOr<std::unique_ptr<transport::Transport>> made, view::View view,
            uint32_t node)
      : view_(std::move(view)), node_(node), arena_(2 * kMiB), results_(4 * kMiB) {
    REQUIRE(made.ok());
    transport = *std::move(made);
    arena_region_ = *transport->Register(arena_);
    results_region_ = *transport->Register(results_);
  }
  ~HandAgent() override {
    if (connected) transport->Close(connection);
  }

  void Follow(view::View view) { view_ = std::move(view); }
  // Connects to `address` with the key of this agent's member.
  void Connect(const std::string& address) {
    ConnectTo(
        transport::AddressForMember(address, {.job = view_.job,
                                              .epoch = view_.epoch,
                                              .node = view_.members[node_].id.node,
                                              .incarnation = view_.members[node_].id.incarnation}));
  }
  void ConnectTo(const std::string& address) {
    connection = *transport->Connect(address);
    connected = true;
    end.clear();
  }
  template <typename Entry>
  void Say(FrameType type, const std::vector<Entry>& entries) {
    wire::FrameWriter writer(type, view_.job, view_.epoch,
                             type == FrameType::kContribute ? contribute_flags : uint8_t{0});
    for (const Entry& entry : entries) {
      if (writer.Add(entry)) continue;
      transport->PostFrame(connection, writer.Take());
      REQUIRE(writer.Add(entry));
    }
    transport->PostFrame(connection, writer.Take());
  }
  void SayHello() { SayHelloOf(view_); }
  // Says Hello as the member that has this agent's place in `view`.
  void SayHelloOf(const view::View& view) {
    const view::ViewMember& self = view.members[node_];
    Say(FrameType::kHello, std::vector{wire::Hello{.member = self.id,
                                                   .rank_count = self.rank_count,
                                                   .view_digest = view::PlacementDigest(view),
                                                   .job_name = "job",
                                                   .node_name = self.name}});
  }
  void SayReport() { Say(FrameType::kReport, std::vector<wire::Report>()); }
  // Results of even rounds land at `offset` in the first half of results_, those of odd rounds in
  // the second half.
  wire::Declare DeclareOf(const std::string& name, uint64_t count, Op op, uint64_t offset = 0) {
    return {.key = KeyOf(name),
            .name = name,
            .collective = Collective::Of(DType::kF32, op, count),
            .by_rank = node_,
            .result = {results_region_.Ref(offset), results_region_.Ref(2 * kMiB + offset)}};
  }
  void Push(const std::string& name, uint64_t round, const std::vector<float>& values,
            wire::Mode mode = wire::Mode::kSum) {
    wire::Contribute entry = {.key = KeyOf(name),
                              .round = Round{round},
                              .rank_count = view_.members[node_].rank_count,
                              .mode = mode};
    const size_t bytes = values.size() * sizeof(float);
    entry.length_bytes = static_cast<uint32_t>(bytes);
    entry.travel_bytes = entry.length_bytes;
    if (bytes <= wire::kInlineBytesMax) {
      entry.form = wire::Form::kInline;
      entry.bytes = std::as_bytes(std::span(values));
    } else {
      std::memcpy(arena_.data(), values.data(), bytes);
      transport->PostWrite(connection, arena_region_.Slice(0, bytes), slots.at(KeyOf(name)), 1);
    }
    Say(FrameType::kContribute, std::vector{entry});
  }
  // Pushes several tensors of the same long values, each with a priority, in one frame.
  void PushTogether(const std::vector<std::pair<std::string, int32_t>>& names, uint64_t round,
                    const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    std::memcpy(arena_.data(), values.data(), bytes);
    std::vector<wire::Contribute> entries;
    for (const auto& [name, priority] : names) {
      transport->PostWrite(connection, arena_region_.Slice(0, bytes), slots.at(KeyOf(name)), 1);
      entries.push_back({.key = KeyOf(name),
                         .round = Round{round},
                         .rank_count = view_.members[node_].rank_count,
                         .length_bytes = static_cast<uint32_t>(bytes),
                         .travel_bytes = static_cast<uint32_t>(bytes),
                         .priority = priority});
    }
    Say(FrameType::kContribute, entries);
  }
  // Returns the tensors whose results have come, in the order in which they came.
  std::vector<TensorKey> ResultOrder() const {
    std::vector<TensorKey> order;
    for (const wire::Frame& frame : frames) {
      const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries);
      if (results == nullptr) continue;
      for (const wire::Result& result : *results) order.push_back(result.key);
    }
    return order;
  }
  std::vector<float> Written(uint64_t round, size_t count, uint64_t offset = 0) const {
    std::vector<float> values(count);
    std::memcpy(values.data(), results_.data() + (round & 1) * 2 * kMiB + offset,
                count * sizeof(float));
    return values;
  }
  bool HasFrame(FrameType type) const {
    return std::any_of(frames.begin(), frames.end(),
                       [type](const wire::Frame& frame) { return frame.header.type == type; });
  }
  template <typename Entry>
  size_t Count() const {
    size_t count = 0;
    for (const wire::Frame& frame : frames) {
      const auto* entries = std::get_if<std::vector<Entry>>(&frame.entries);
      if (entries != nullptr) count += entries->size();
    }
    return count;
  }
  template <typename Entry>
  Entry Last() const {
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      const auto* entries = std::get_if<std::vector<Entry>>(&frame->entries);
      if (entries != nullptr && !entries->empty()) return entries->back();
    }
    FAIL("no such entry");
    return {};
  }

  void OnAccepted(ConnectionId) override {}
  void OnConnected(ConnectionId) override {}
  void OnDisconnected(ConnectionId, const std::string& reason) override {
    connected = false;
    end = reason;
  }
  void OnFrame(ConnectionId, std::span<const std::byte> bytes) override {
    kept.emplace_back(bytes.begin(), bytes.end());  // `frames` points into them.
    const auto parsed = wire::ParseFrame(kept.back());
    REQUIRE(std::holds_alternative<wire::Frame>(parsed));
    frames.push_back(std::get<wire::Frame>(parsed));
    credit_bytes += frames.back().header.credit_bytes;
    if (const auto* declared = std::get_if<std::vector<wire::Declared>>(&frames.back().entries)) {
      for (const wire::Declared& entry : *declared) slots[entry.key] = entry.slot;
    }
  }
  void OnWriteDone(ConnectionId, uint64_t) override {}

  std::unique_ptr<transport::Transport> transport;
  ConnectionId connection;
  bool connected = false;
  std::string end;  // How the last connection ended.
  std::deque<std::vector<std::byte>> kept;
  std::vector<wire::Frame> frames;
  std::map<TensorKey, wire::RemoteRef> slots;
  uint64_t credit_bytes = 0;
  uint8_t contribute_flags = 0;

 private:
  view::View view_;
  uint32_t node_;
  std::vector<std::byte> arena_;
  std::vector<std::byte> results_;
  transport::Region arena_region_;
  transport::Region results_region_;
};

// Makes the transports of a test.
using TransportMaker =
    absl::StatusOr<std::unique_ptr<transport::Transport>> (*)(const runtime::Clock*);

inline absl::StatusOr<std::unique_ptr<transport::Transport>> OverLibfabric(
    const runtime::Clock* clock) {
  return transport::NewFabricTransport({}, clock, nullptr);
}
inline absl::StatusOr<std::unique_ptr<transport::Transport>> OverTcp(const runtime::Clock* clock) {
  return transport::NewTcpTransport({.security = transport::DataSecurity::kKeyed}, clock, nullptr);
}

struct Pool {
  explicit Pool(DataPlaneOptions options = {.memory_bytes_max = 64 * kMiB},
                TransportMaker over = OverLibfabric)
      : make(over) {
    auto made = make(&clock);
    REQUIRE(made.ok());
    transport = *std::move(made);
    address = *transport->Listen({});
    options.name = "agg";
    options.incarnation = kSelf;
    data_plane = std::make_unique<AggregatorDataPlane>(options, transport.get(), &clock);
  }

  HandAgent& AddAgent(const view::View& view, uint32_t node) {
    agents.push_back(std::make_unique<HandAgent>(make(&clock), view, node));
    agents.back()->Connect(address);
    return *agents.back();
  }
  // Adds a peer that has the aggregator's own key, and is no member.
  HandAgent& AddNobody(const view::View& view) {
    agents.push_back(std::make_unique<HandAgent>(make(&clock), view, 0));
    agents.back()->ConnectTo(address);
    return *agents.back();
  }
  // Polls the data plane and all agents until `done`. Sleeps on their descriptors while there is
  // nothing to do.
  void Until(const std::function<bool()>& done) {
    const int64_t deadline_ns = clock.NowNs() + 60'000'000'000;
    while (!done()) {
      REQUIRE(clock.NowNs() < deadline_ns);
      data_plane->Tick();
      int work = data_plane->Poll();
      for (const auto& agent : agents) work += agent->transport->Poll(*agent, 64);
      if (work > 0) continue;
      bool sleep = data_plane->PrepareToSleep();
      std::vector<pollfd> descriptors = {{transport->WaitDescriptor(), POLLIN, 0}};
      for (const auto& agent : agents) {
        sleep &= agent->transport->PrepareToSleep();
        descriptors.push_back({agent->transport->WaitDescriptor(), POLLIN, 0});
      }
      if (sleep) poll(descriptors.data(), descriptors.size(), 20);
    }
  }
  // Has the agents of one job say Hello and declare the tensors, and waits for the answers.
  void Start(const std::vector<HandAgent*>& members, const std::vector<std::string>& names,
             uint64_t count, Op op = Op::kSum) {
    for (HandAgent* agent : members) {
      agent->SayHello();
      agent->SayReport();
      std::vector<wire::Declare> declares;
      for (const std::string& name : names) declares.push_back(agent->DeclareOf(name, count, op));
      agent->Say(FrameType::kDeclare, declares);
    }
    Until([&] {
      for (HandAgent* agent : members) {
        if (agent->Count<wire::Declared>() < names.size()) return false;
      }
      return true;
    });
  }

  SkippingClock clock;
  const TransportMaker make;
  std::unique_ptr<transport::Transport> transport;
  std::string address;
  std::unique_ptr<AggregatorDataPlane> data_plane;
  std::vector<std::unique_ptr<HandAgent>> agents;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_DATA_PLANE_FIXTURE_H_
