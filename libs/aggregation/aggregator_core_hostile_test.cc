// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "libs/aggregation/aggregator_core_fixture.h"
#include "libs/base/random.h"

// Peers send anything at any time. Their values come from a small range, so they often nearly make
// sense. No CHECK may be reached, and all effects can be performed.
namespace talweg::aggregation {
namespace {

constexpr const char* kNames[] = {"a", "b", "c"};
constexpr uint32_t kNodes = 3;

class HostilePeers {
 public:
  explicit HostilePeers(uint64_t seed) : random_(seed), f_({1, 2, 1}, 2 * kMiB) {
    f_.sums_at_once = false;
    f_.writes_at_once = false;
    f_.PublishView();
    inline_bytes_.resize(64);
  }

  void Step() {
    f_.effects_seen.clear();
    f_.epoch_override =
        Epoch{f_.view.epoch.value() + (random_.OneIn(12) ? random_.Below(3) - 1 : 0)};
    Act();
    f_.epoch_override.reset();
    f_.Perform();
    for (const Effect& effect : f_.effects_seen) {
      std::visit([this](const auto& known) { Check(known); }, effect);
    }
    CHECK(f_.budget.used_bytes() <= f_.budget.limit_bytes());
    CHECK(f_.job.writes_under_way() <= writes_.size());
  }
  void Finish() {
    f_.job.OnClosed("over", f_.now_ns, f_.effects);
    f_.now_ns += 100'000'000'000;
    f_.job.OnTick(f_.now_ns, f_.effects);
    f_.Perform();
    CHECK(f_.job.finished());
    CHECK(f_.allocated.empty());
    CHECK(f_.budget.used_bytes() == 0);
  }
  const Counters& counters() const { return f_.job.counters(); }

 private:
  // Returns mostly the present connection of some node.
  ConnectionId AnyConnection() {
    const uint32_t node = AnyNode();
    return Conn(node, lives_[node] - (random_.OneIn(50) && lives_[node] > 0 ? 1 : 0));
  }
  uint32_t AnyNode() { return static_cast<uint32_t>(random_.Below(kNodes)); }
  std::string AnyName() { return kNames[random_.Below(std::size(kNames))]; }

  void Act() {
    switch (random_.Below(24)) {
      case 0: return SayHello();
      case 1: return SayFence();
      case 2:
        if (random_.OneIn(20)) Disconnect(AnyNode());
        return;
      case 3:
        if (random_.OneIn(10)) NextView();
        return;
      case 4: f_.now_ns += 700'000'000; return f_.job.OnTick(f_.now_ns, f_.effects);
      case 5:
      case 6: return FinishSums();
      case 7:
      case 8: return FinishSomeWrites();
      case 9:
      case 10: return SayDeclare();
      case 11:
      case 12: return SayReport();
      case 13:
        if (random_.OneIn(10)) SayNonsense();
        return;
      case 14: f_.allocations_fail = random_.OneIn(20); return;
      default: return SayContribution();
    }
  }
  void SayHello() {
    const uint32_t node = AnyNode();
    if (f_.job.sessions().count(Conn(node, lives_[node])) != 0) {
      if (!random_.OneIn(20)) return;
      ++lives_[node];
    }
    wire::Hello hello = f_.HelloOf(node);
    if (random_.OneIn(20)) hello.view_digest ^= 1;
    if (random_.OneIn(20)) hello.member.incarnation = Incarnation{7};
    f_.Say(Conn(node, lives_[node]), wire::FrameType::kHello, std::vector{hello});
  }
  void SayFence() {
    const uint32_t node = AnyNode();
    if (f_.job.sessions().count(Conn(node, lives_[node])) == 0) return;
    wire::Frame frame;
    frame.header = {
        .type = wire::FrameType::kFence, .job = JobFixture::kJob, .epoch = f_.said_epoch()};
    f_.SayFrame(Conn(node, lives_[node]), frame);
  }
  void Disconnect(uint32_t node) {
    const ConnectionId connection = Conn(node, lives_[node]++);
    Forget(connection);
    f_.job.OnDisconnect(connection, f_.effects);
  }
  void SayDeclare() {
    const uint64_t count = random_.OneIn(300) ? 7 : random_.OneIn(300) ? kMiB : 16;
    const std::string name = AnyName();
    // "c" is a broadcast of written slices; in some views its root is gone.
    const uint32_t root = f_.view.epoch.value() % 3 == 2 ? wire::kNoRank : 0;
    wire::Declare declare =
        name == "c" ? f_.DeclareOf(name, AnyNode(), 30'000, DType::kF32, Op::kCopy, root)
                    : f_.DeclareOf(name, AnyNode(), name == "b" ? 20'000 : count);
    if (name == "b") declare.collective.encoding = Encoding::kTwice;
    if (random_.OneIn(500)) declare.collective.op = static_cast<Op>(random_.Below(12));
    if (random_.OneIn(500)) declare.collective.dtype = static_cast<DType>(random_.Below(16));
    if (random_.OneIn(500)) declare.key = KeyOf(AnyName());
    f_.Say(AnyConnection(), wire::FrameType::kDeclare, std::vector{declare});
  }
  void SayReport() {
    std::vector<wire::Report> reports;
    while (random_.OneIn(2)) {
      const uint64_t held = random_.OneIn(3) ? random_.Below(3) : 1;
      reports.push_back({.key = KeyOf(AnyName()),
                         .held = Round{random_.OneIn(100) ? UINT64_MAX : held},
                         .held_epoch = Epoch{random_.Below(3)},
                         .contributed = Round{held + (random_.OneIn(4) ? 0 : 1)},
                         .partial_epoch = Epoch{random_.Below(3)},
                         .slices = {random_.Below(4)}});
    }
    f_.Say(AnyConnection(), wire::FrameType::kReport, reports,
           random_.OneIn(4) ? wire::kFlagMore : 0);
  }
  void SayContribution() {
    const std::string name = AnyName();
    wire::Contribute part = f_.Part(name, OpenRound(name) - (random_.OneIn(8) ? 1 : 0));
    if (random_.OneIn(20)) part.slice = SliceIndex{static_cast<uint32_t>(random_.Below(4))};
    if (part.key == KeyOf("a")) {
      part.form = wire::Form::kInline;
      part.bytes = std::span(inline_bytes_).first(random_.OneIn(20) ? 60 : 64);
    }
    if (part.key == KeyOf("c") || random_.OneIn(20)) {
      part.mode = wire::Mode::kCopy;
      part.wants_result = random_.OneIn(2);
      if (random_.OneIn(2)) part.form = wire::Form::kEmpty;
      if (random_.OneIn(4)) part.sum_epoch = Epoch{random_.Below(4)};
    }
    if (random_.OneIn(30)) part.rank_count = static_cast<uint32_t>(random_.Below(4));
    part = f_.WithLength(part);
    if (random_.OneIn(30)) part.length_bytes = static_cast<uint32_t>(4 * random_.Below(20'000));
    if (random_.OneIn(30)) part.signature = random_.Below(3);
    if (random_.OneIn(40)) {
      part.form = wire::Form::kDisagreement;
      part.length_bytes = 0;
    }
    // "b" travels encoded.
    const bool grows = part.key == KeyOf("b") && random_.OneIn(2);
    if (!random_.OneIn(30)) part.travel_bytes = part.length_bytes * (grows ? 2 : 1);
    f_.Say(AnyConnection(), wire::FrameType::kContribute, std::vector{part, part});
  }
  uint64_t OpenRound(const std::string& name) {
    const auto tensor = f_.job.tensors().find(KeyOf(name));
    if (tensor == f_.job.tensors().end() || !tensor->second.Placed()) return 2;
    if (tensor->second.local.empty() || random_.OneIn(20)) return 1 + random_.Below(4);
    const Round open = tensor->second.local.front().round.open_round();
    return open == Round{0} ? 2 : open.value();
  }
  void SayNonsense() {
    wire::Frame frame;
    frame.header = {.type = static_cast<wire::FrameType>(1 + random_.Below(15)),
                    .job = JobId{JobFixture::kJob.value() + random_.Below(2)},
                    .epoch = f_.view.epoch};
    if (frame.header.type == wire::FrameType::kContribute) {
      frame.entries = std::vector{f_.Part(AnyName(), 1)};
    }
    f_.SayFrame(AnyConnection(), frame);
  }
  // Some of the sums have an input that is no encoding.
  void FinishSums() {
    if (!f_.sums_under_way.empty() && random_.OneIn(8)) {
      const SumId id = f_.sums_under_way.front().first;
      f_.sums_under_way.erase(f_.sums_under_way.begin());
      if (copies_.count(id) != 0) {
        f_.job.OnSummed(id, 0, f_.effects);
      } else {
        f_.job.OnUndecodable(id, random_.Below(kNodes), f_.effects);
      }
    }
    f_.FinishSums();
  }
  void FinishSomeWrites() {
    while (!f_.writes_under_way.empty() && !random_.OneIn(5)) {
      const size_t index = random_.Below(f_.writes_under_way.size());
      const WriteId id = f_.writes_under_way[index];
      f_.writes_under_way.erase(f_.writes_under_way.begin() + static_cast<ptrdiff_t>(index));
      writes_.erase(id);
      f_.job.OnWriteDone(id, f_.effects);
    }
  }
  void NextView() {
    f_.view.epoch = f_.view.epoch.Next();
    if (random_.OneIn(3)) {  // A member is now another incarnation.
      view::ViewMember& member = f_.view.members[random_.Below(f_.view.members.size())];
      member.id.incarnation = Incarnation{member.id.incarnation.value() + 1000};
    }
    if (random_.OneIn(3)) {
      if (f_.view.aggregators.size() == 1) {
        f_.view.aggregators.push_back({.incarnation = Incarnation{950}, .name = "bgg"});
      } else {
        f_.view.aggregators.pop_back();
      }
    }
    f_.job.OnView(f_.view, f_.now_ns, f_.effects);
  }

  bool IsAllocated(AllocationId id) const { return live_.count(id) != 0 || id == AllocationId{0}; }
  void Check(const Send& effect) const { CHECK(closed_.count(effect.connection) == 0); }
  void Check(const ReturnCredit& effect) const { CHECK(closed_.count(effect.connection) == 0); }
  void Check(const AllocateMemory& effect) {
    CHECK(effect.bytes > 0);
    CHECK(live_.insert(effect.id).second);
  }
  void Check(const ReleaseMemory& effect) { CHECK(live_.erase(effect.id) == 1); }
  void Check(const StoreInline& effect) const { CHECK(IsAllocated(effect.slots)); }
  void Check(const Sum& effect) const {
    std::set<AllocationId> inputs;
    for (const SumInput& input : effect.inputs) {
      CHECK(IsAllocated(input.slots));
      CHECK(inputs.insert(input.slots).second);
      CHECK(input.rank_count > 0);
    }
    CHECK(effect.inputs.size() == f_.view.members.size());
    CheckResultIsFree(effect.result, effect.offset_bytes);
  }
  void Check(const CopyResult& effect) {
    copies_.insert(effect.id);
    CHECK(IsAllocated(effect.source));
    CheckResultIsFree(effect.result, effect.offset_bytes);
  }
  // Checks that no write reads memory that is about to be overwritten.
  void CheckResultIsFree(AllocationId result, uint64_t offset_bytes) const {
    CHECK(IsAllocated(result));
    for (const auto& [id, write] : writes_) {
      CHECK_FALSE((write.result == result && write.offset_bytes == offset_bytes));
    }
  }
  void Check(const SendResult& effect) {
    CHECK(IsAllocated(effect.result));
    CHECK(closed_.count(effect.connection) == 0);
    if (effect.entry.form == wire::Form::kWritten) writes_.emplace(effect.write, effect);
  }
  void Check(const CloseConnection& effect) {
    Forget(effect.connection);
    for (uint32_t node = 0; node < kNodes; ++node) {
      if (effect.connection == Conn(node, lives_[node])) ++lives_[node];
    }
  }
  void Forget(ConnectionId connection) {
    closed_.insert(connection);
    std::erase_if(
        writes_, [connection](const auto& write) { return write.second.connection == connection; });
  }

  Random random_;
  JobFixture f_;
  uint32_t lives_[kNodes] = {};
  std::vector<std::byte> inline_bytes_;
  std::set<AllocationId> live_;
  std::set<SumId> copies_;
  std::map<WriteId, SendResult> writes_;
  std::set<ConnectionId> closed_;
};

TEST_CASE("AggregatorCore: peers that send anything reach no CHECK and break no promise",
          "[aggregation]") {
  Counters reached;
  for (uint64_t seed = 1; seed <= 240; ++seed) {
    INFO("seed " << seed);
    HostilePeers peers(seed);
    for (int step = 0; step < 2'000; ++step) peers.Step();
    peers.Finish();
    AddCounters(peers.counters(), reached);
  }
  // The test is worth something only if it reaches every counter.
  for (const auto& [name, value] : NamedCounters(reached)) {
    INFO(name);
    if (name == "frames_unreadable" || name == "sums_stale") continue;
    if (name == "rounds_lost") continue;  // aggregator_core_collectives_test reaches this one.
    CHECK(value > 0);
  }
}

TEST_CASE(
    "AggregatorCore: a member of a larger view is lost after a tensor that was poisoned in a "
    "smaller one",
    "[aggregation]") {
  JobFixture f({1, 1});
  f.StartWith("w");
  f.SayDeclare(1, f.DeclareOf("w", 1, 5));
  f.view.members.push_back({.id = {NodeRank{2}, Incarnation{102}}, .rank_count = 1});
  f.NextView();
  f.SayHello(2);
  f.SayDeclare(2, f.DeclareOf("w", 2));
  f.effects_seen.clear();
  f.job.OnDisconnect(Conn(2), f.effects);
  f.Perform();
  CHECK(f.job.sessions().size() == 2);
  f.SayHello(2, 1);
  f.SayDeclare(2, f.DeclareOf("w", 2), 1);
  CHECK(f.Sent<wire::Failed>(Conn(2, 1)).size() == 1);
}

}  // namespace
}  // namespace talweg::aggregation
