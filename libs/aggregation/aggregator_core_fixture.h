// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_FIXTURE_H_
#define TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_FIXTURE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/aggregator_core.h"
#include "libs/base/fingerprint.h"
#include "libs/view/placement.h"

// A job at one aggregator for unit tests: sends what agents would send, and performs the effects.
namespace talweg::aggregation {

inline TensorKey KeyOf(const std::string& name) { return TensorKey{Fingerprint64(name)}; }

// The connection of a node's agent, at its `life`-th attempt.
inline ConnectionId Conn(uint32_t node, uint32_t life = 0) {
  return ConnectionId{10 + node + uint64_t{100} * life};
}

class JobFixture {
 public:
  static constexpr JobId kJob{5};
  static constexpr Incarnation kSelf{900};

  explicit JobFixture(std::vector<uint32_t> rank_counts = {2, 2}, uint64_t budget_bytes = kGiB,
                      AggregatorCoreConfig config = {})
      : budget(budget_bytes), job(Named(std::move(config)), &budget) {
    for (uint32_t i = 0; i < rank_counts.size(); ++i) {
      view.members.push_back({.id = {NodeRank{i}, Incarnation{100 + i}},
                              .rank_count = rank_counts[i],
                              .name = "host-" + std::to_string(i)});
    }
    view.job = kJob;
    view.epoch = Epoch{1};
    view.aggregators.push_back({.incarnation = kSelf, .name = "agg"});
  }

  void PublishView() {
    job.OnView(view, now_ns, effects);
    Perform();
  }
  // Enters the next epoch, without the named nodes.
  void NextView(const std::vector<uint32_t>& without = {}) {
    for (const uint32_t node : without) {
      std::erase_if(view.members,
                    [node](const view::ViewMember& m) { return m.id.node == NodeRank{node}; });
    }
    view.epoch = view.epoch.Next();
    PublishView();
  }

  template <typename Entry>
  void Say(ConnectionId connection, wire::FrameType type, std::vector<Entry> entries,
           uint8_t flags = 0) {
    wire::Frame frame;
    frame.header = {.type = type, .flags = flags, .job = kJob, .epoch = said_epoch()};
    frame.entries = std::move(entries);
    SayFrame(connection, frame);
  }
  void SayFrame(ConnectionId connection, const wire::Frame& frame) {
    job.OnFrame(connection, frame, now_ns, effects);
    Perform();
  }
  Epoch said_epoch() const { return epoch_override.value_or(view.epoch); }

  wire::Hello HelloOf(uint32_t node) const {
    for (const view::ViewMember& member : view.members) {
      if (member.id.node != NodeRank{node}) continue;
      return {.member = member.id,
              .rank_count = member.rank_count,
              .view_digest = view::PlacementDigest(view),
              .job_name = "job",
              .node_name = member.name};
    }
    return {.member = {NodeRank{node}, Incarnation{100 + node}}, .rank_count = 1};
  }
  void SayHello(uint32_t node, uint32_t life = 0) {
    Say(Conn(node, life), wire::FrameType::kHello, std::vector{HelloOf(node)});
  }
  void SayFence(uint32_t node) {
    wire::Frame frame;
    frame.header = {.type = wire::FrameType::kFence, .job = kJob, .epoch = said_epoch()};
    SayFrame(Conn(node), frame);
  }
  void SayReport(uint32_t node, std::vector<wire::Report> reports = {}, uint32_t life = 0,
                 uint8_t flags = 0) {
    Say(Conn(node, life), wire::FrameType::kReport, std::move(reports), flags);
  }
  wire::Declare DeclareOf(const std::string& name, uint32_t node, uint64_t element_count = 4,
                          DType dtype = DType::kF32, Op op = Op::kSum, uint32_t root = 0) const {
    return {.key = KeyOf(name),
            .name = name,
            .collective = Collective::Of(dtype, op, element_count),
            .root_rank = root,
            .by_rank = node * 10,
            .result = {wire::RemoteRef{node, 1'000'000}, wire::RemoteRef{node, 2'000'000}}};
  }
  void SayDeclare(uint32_t node, wire::Declare declare, uint32_t life = 0) {
    Say(Conn(node, life), wire::FrameType::kDeclare, std::vector{std::move(declare)});
  }
  void SayFailed(uint32_t node, wire::Failed failed) {
    Say(Conn(node), wire::FrameType::kFailed, std::vector{std::move(failed)});
  }
  // All members connect and report nothing; drops the effects so far.
  void Start() {
    PublishView();
    for (const view::ViewMember& member : view.members) SayHello(member.id.node.value());
    for (const view::ViewMember& member : view.members) SayReport(member.id.node.value());
    effects_seen.clear();
  }
  // All members also declare the tensor.
  void StartWith(const std::string& name, uint64_t element_count = 4, Op op = Op::kSum,
                 uint32_t root = 0, DType dtype = DType::kF32) {
    Start();
    for (const view::ViewMember& member : view.members) {
      const uint32_t node = member.id.node.value();
      SayDeclare(node, DeclareOf(name, node, element_count, dtype, op, root));
    }
    effects_seen.clear();
  }

  wire::Contribute Part(const std::string& name, uint64_t round, uint32_t slice = 0) const {
    return {.key = KeyOf(name),
            .round = Round{round},
            .slice = SliceIndex{slice},
            .rank_count = 1,
            .mode = wire::Mode::kSum,
            .form = wire::Form::kWritten};
  }
  // Fills in the lengths if the test gives none: all of a slice, which travels plain.
  wire::Contribute WithLength(wire::Contribute part) const {
    part = WithDataLength(part);
    if (part.travel_bytes == 0) part.travel_bytes = part.length_bytes;
    return part;
  }
  wire::Contribute WithDataLength(wire::Contribute part) const {
    if (part.form == wire::Form::kInline) {
      part.length_bytes = static_cast<uint32_t>(part.bytes.size());
    }
    const auto tensor = job.tensors().find(part.key);
    if (part.form != wire::Form::kWritten || part.length_bytes != 0 ||
        tensor == job.tensors().end()) {
      return part;
    }
    for (const LocalSlice& slice : tensor->second.local) {
      if (slice.index == part.slice) part.length_bytes = slice.length_bytes;
    }
    return part;
  }
  void Contribute(uint32_t node, wire::Contribute part, uint32_t life = 0) {
    Say(Conn(node, life), wire::FrameType::kContribute, std::vector{WithLength(part)});
  }
  void Contribute(uint32_t node, const std::string& name, uint64_t round, uint32_t slice = 0) {
    Contribute(node, Part(name, round, slice));
  }

  // Finds effects of one type, in order.
  template <typename T>
  std::vector<T> Seen() const {
    std::vector<T> found;
    for (const Effect& effect : effects_seen) {
      if (const T* match = std::get_if<T>(&effect)) found.push_back(*match);
    }
    return found;
  }
  // The entries of one type that were sent to a connection.
  template <typename Entry>
  std::vector<Entry> Sent(ConnectionId connection) const {
    std::vector<Entry> found;
    for (const Send& send : Seen<Send>()) {
      const Entry* entry = std::get_if<Entry>(&send.entry);
      if (entry != nullptr && send.connection == connection) found.push_back(*entry);
    }
    return found;
  }
  std::vector<SendResult> Results(uint32_t node, uint32_t life = 0) const {
    std::vector<SendResult> found;
    for (const SendResult& result : Seen<SendResult>()) {
      if (result.connection == Conn(node, life)) found.push_back(result);
    }
    return found;
  }
  uint64_t RefusedCount(wire::RefusedReason reason) const {
    return job.counters().refused[static_cast<size_t>(reason)];
  }
  void FinishSums() {
    while (!sums_under_way.empty()) {
      const auto [id, travel_bytes] = sums_under_way.front();
      sums_under_way.erase(sums_under_way.begin());
      job.OnSummed(id, travel_bytes, effects);
      Perform();
    }
  }
  void FinishWrites() {
    while (!writes_under_way.empty()) {
      const WriteId id = writes_under_way.front();
      writes_under_way.erase(writes_under_way.begin());
      job.OnWriteDone(id, effects);
      Perform();
    }
  }

  MemoryBudget budget;
  AggregatorCore job;
  view::View view;
  int64_t now_ns = 1'000'000'000'000;
  std::optional<Epoch> epoch_override;
  bool sums_at_once = true;
  bool writes_at_once = true;
  bool allocations_fail = false;
  std::vector<std::pair<SumId, uint32_t>> sums_under_way;  // With the bytes of their results.
  std::vector<WriteId> writes_under_way;
  std::vector<AllocationId> allocated;
  std::vector<Effect> effects;       // To perform.
  std::vector<Effect> effects_seen;  // Performed since the last clear.

  // Performs the effects; allocations succeed at once.
  void Perform() {
    while (!effects.empty()) {
      const std::vector<Effect> batch = std::exchange(effects, {});
      for (const Effect& effect : batch) {
        effects_seen.push_back(effect);
        if (const auto* allocate = std::get_if<AllocateMemory>(&effect)) {
          if (allocations_fail) {
            job.OnAllocationRefused(allocate->id, "mmap says no", effects);
          } else {
            allocated.push_back(allocate->id);
            job.OnAllocated(allocate->id, wire::RemoteRef{allocate->id.value(), 0x1000}, effects);
          }
        } else if (const auto* release = std::get_if<ReleaseMemory>(&effect)) {
          std::erase(allocated, release->id);
        } else if (const auto* sum = std::get_if<Sum>(&effect)) {
          sums_under_way.push_back({sum->id, sum->length_bytes});
        } else if (const auto* copy = std::get_if<CopyResult>(&effect)) {
          sums_under_way.push_back({copy->id, copy->travel_bytes});
        } else if (const auto* result = std::get_if<SendResult>(&effect)) {
          if (result->write != WriteId{0}) writes_under_way.push_back(result->write);
        }
      }
    }
    if (sums_at_once && !sums_under_way.empty()) FinishSums();
    if (writes_at_once && !writes_under_way.empty()) FinishWrites();
  }

 private:
  static AggregatorCoreConfig Named(AggregatorCoreConfig config) {
    config.job = kJob;
    config.name = "job";
    config.self = kSelf;
    config.self_name = "agg";
    return config;
  }
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_FIXTURE_H_
