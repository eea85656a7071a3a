// SPDX-License-Identifier: Apache-2.0
// Collectives other than the reduction of all ranks: which members take part in which slice, and
// rounds whose ranks disagree.
#include <catch2/catch.hpp>

#include "libs/aggregation/aggregator_core_fixture.h"
#include "libs/base/signature_text.h"

namespace talweg::aggregation {
namespace {

constexpr uint64_t kElements = 16;  // 64 bytes: each part is a slice.

// A tensor "t". The first ranks of `nodes` declare it.
struct CollectiveFixture : JobFixture {
  CollectiveFixture(std::string_view collective, std::vector<uint32_t> nodes,
                    std::vector<uint32_t> rank_counts = {1, 1, 1})
      : JobFixture(std::move(rank_counts)) {
    for (const CollectiveRow& row : kCollectives) {
      if (row.name != collective) continue;
      spec = {DType::kF32, row.gives == Share::kWhole ? Op::kSum : Op::kCopy, row.gives, row.gets,
              kElements};
    }
    for (const uint32_t node : nodes) group.push_back({NodeRank{node}, LocalRank{0}});
    Start();
    for (const uint32_t node : nodes) SayDeclare(node, Said(node));
    effects_seen.clear();
  }

  wire::Declare Said(uint32_t node) const {
    wire::Declare declare = DeclareOf("t", node);
    declare.collective = spec;
    declare.group = group;
    return declare;
  }
  void Give(uint32_t node, uint64_t round, uint32_t slice, RoundSignature signature = 0,
            uint32_t length_bytes = 64, uint32_t life = 0) {
    wire::Contribute part = Part("t", round, slice);
    part.mode = spec.copies() ? wire::Mode::kCopy : wire::Mode::kSum;
    part.length_bytes = length_bytes;
    part.signature = signature;
    Contribute(node, part, life);
  }
  void GiveNothing(uint32_t node, uint64_t round, uint32_t slice) {
    wire::Contribute part = Part("t", round, slice);
    part.mode = wire::Mode::kCopy;
    part.form = wire::Form::kEmpty;
    part.rank_count = 0;
    Contribute(node, part);
  }

  Collective spec;
  view::Group group;
};

TEST_CASE("AggregatorCore: a part waits only for the members that give or get it",
          "[aggregation]") {
  CollectiveFixture f("all_to_all", {0, 1, 2});
  GIVEN("the part from node 0 to node 1") {
    f.Give(0, 1, 1, 0, 32);
    CHECK(f.Results(1).empty());
    f.GiveNothing(1, 1, 1);
    REQUIRE(f.Results(1).size() == 1);
    CHECK(f.Results(1)[0].entry.length_bytes == 32);
    CHECK(f.Results(0).size() == 1);
    CHECK(f.Results(2).empty());
  }
  GIVEN("a contribution of a node that has nothing to do with it") {
    f.GiveNothing(2, 1, 1);
    CHECK(f.RefusedCount(wire::RefusedReason::kWrongMode) == 1);
  }
  GIVEN("bytes of one that gets it") {
    f.Give(1, 1, 1);
    CHECK(f.RefusedCount(wire::RefusedReason::kWrongMode) == 1);
  }
}

TEST_CASE("AggregatorCore: ranks that give a round different meanings hear of both",
          "[aggregation]") {
  CollectiveFixture f("all_reduce", {0, 1});
  const RoundSignature one = SignatureOf(f.spec, 16);
  const RoundSignature other = SignatureOf(f.spec, 8);
  f.Give(0, 1, 0, one);
  f.Give(1, 1, 0, other);
  CHECK(f.Seen<Sum>().empty());
  CHECK(f.job.counters().rounds_disagreed == 1);
  for (const uint32_t node : {0u, 1u}) {
    const auto results = f.Results(node);
    REQUIRE(results.size() == 1);
    CHECK(results[0].entry.form == wire::Form::kDisagreement);
    CHECK(results[0].text ==
          "round 1 of tensor 't': rank 0 (node 0 (host-0)) gives f32[16] sum, rank 1 (node 1 "
          "(host-1)) gives f32[8] sum");
  }

  SECTION("They go on with the next round") {
    f.effects_seen.clear();
    f.Give(0, 2, 0, one);
    f.Give(1, 2, 0, one);
    CHECK(f.Seen<Sum>().size() == 1);
    REQUIRE(f.Results(1).size() == 1);
    CHECK(f.Results(1)[0].entry.form != wire::Form::kDisagreement);
  }
  SECTION("They hear of it over a new connection too") {
    f.job.OnDisconnect(Conn(1), f.effects);
    f.Perform();
    f.SayHello(1, 1);
    f.SayDeclare(1, f.Said(1), 1);
    f.SayReport(1, {}, 1);
    f.effects_seen.clear();
    f.Give(1, 1, 0, other, 64, 1);
    CHECK(f.job.counters().results_again == 1);
    REQUIRE(f.Results(1, 1).size() == 1);
    CHECK(f.Results(1, 1)[0].entry.form == wire::Form::kDisagreement);
    CHECK(f.Results(1, 1)[0].text.find("f32[8] sum") != std::string::npos);
  }
}

TEST_CASE("AggregatorCore: a node whose ranks have all joined agrees with what the others give",
          "[aggregation]") {
  CollectiveFixture f("all_reduce", {0, 1, 2});
  const uint32_t joined = GENERATE(0u, 1u, 2u);
  const uint32_t other = joined == 0 ? 1 : 0;
  f.Give(joined, 1, 0, kFitsAll);
  f.Give(other, 1, 0, 7);
  SECTION("The others give the same") {
    f.Give(3 - joined - other, 1, 0, 7);
    CHECK(f.Seen<Sum>().size() == 1);
  }
  SECTION("The others differ") {
    f.Give(3 - joined - other, 1, 0, 8);
    CHECK(f.Seen<Sum>().empty());
    REQUIRE(f.Results(joined).size() == 1);
    CHECK(f.Results(joined)[0].text.find("has joined") == std::string::npos);
  }
}

TEST_CASE("AggregatorCore: lengths are compared where contributions are combined",
          "[aggregation]") {
  CollectiveFixture f("all_reduce", {0, 1});
  f.Give(0, 1, 0, 0, 64);
  f.Give(1, 1, 0, 0, 32);
  CHECK(f.Seen<Sum>().empty());
  REQUIRE(f.Results(0).size() == 1);
  CHECK(f.Results(0)[0].text.find("gives 64 bytes, rank 1 ") != std::string::npos);
  CHECK(f.Results(0)[0].text.find("gives 32 bytes in slice 0") != std::string::npos);
}

TEST_CASE("AggregatorCore: all members hear of one node's own disagreement", "[aggregation]") {
  CollectiveFixture f("all_reduce", {0, 1});
  const std::string text = "rank 1 gives 4 bytes, rank 2 gives 8 bytes";
  wire::Contribute part = f.Part("t", 1);
  part.form = wire::Form::kDisagreement;
  part.bytes = std::as_bytes(std::span(text));
  f.Contribute(1, part);
  f.Give(0, 1, 0);
  CHECK(f.Seen<Sum>().empty());
  REQUIRE(f.Results(0).size() == 1);
  CHECK(f.Results(0)[0].text == "round 1 of tensor 't': " + text);
}

TEST_CASE("AggregatorCore: a group takes memory for its own members", "[aggregation]") {
  CollectiveFixture f("all_reduce", {0, 1});
  CHECK(f.job.Status(f.now_ns, false).reserved_bytes ==
        3 * 64);  // Two members and the result, not four.
}

TEST_CASE("AggregatorCore: a node without a rank in a group cannot declare it", "[aggregation]") {
  CollectiveFixture f("all_reduce", {0, 1});
  f.SayDeclare(2, f.Said(2));
  const auto declared = f.Sent<wire::Declared>(Conn(2));
  REQUIRE(declared.size() == 1);
  CHECK(declared[0].status == wire::DeclaredStatus::kInvalid);
  CHECK(declared[0].text.find("has no rank in it") != std::string::npos);
  // The others continue.
  f.Give(0, 1, 0);
  f.Give(1, 1, 0);
  CHECK(f.Seen<Sum>().size() == 1);
}

TEST_CASE("AggregatorCore: groups that differ poison the tensor", "[aggregation]") {
  CollectiveFixture f("all_reduce", {0, 1});
  wire::Declare other = f.Said(2);
  other.group.back().node = NodeRank{2};
  f.SayDeclare(2, other);
  const auto failed = f.Sent<wire::Failed>(Conn(0));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].text.find("2 ranks (0.0, 1.0)") != std::string::npos);
  CHECK(failed[0].text.find("2 ranks (0.0, 2.0)") != std::string::npos);
}

TEST_CASE("AggregatorCore: a round that is over for some and can never end for others is lost",
          "[aggregation]") {
  CollectiveFixture f("gather", {0, 1});
  f.NextView();
  for (const uint32_t node : {0u, 1u, 2u}) f.SayFence(node);
  for (const uint32_t node : {0u, 1u}) f.SayDeclare(node, f.Said(node));
  f.effects_seen.clear();
  f.SayReport(
      0, {{.key = KeyOf("t"), .held = Round{1}, .held_epoch = Epoch{1}, .contributed = Round{1}}});
  f.SayReport(1, {{.key = KeyOf("t"), .held = Round{0}, .contributed = Round{1}}});
  f.SayReport(2);
  CHECK(f.job.counters().rounds_lost == 1);
  CHECK(f.job.counters().contradictions == 0);
  for (const uint32_t node : {0u, 1u}) {
    const auto failed = f.Sent<wire::Failed>(Conn(node));
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].code == wire::FailedCode::kAborted);
    CHECK(failed[0].text.find("round 1 was over at member 0") != std::string::npos);
  }
}

// A node on each of the hosts "x", "y" and "z", and this aggregator on "y".
struct HostsFixture : JobFixture {
  HostsFixture() : JobFixture({1, 1, 1}) {
    view.aggregators[0].host_id = "y";
    const char* const hosts[] = {"x", "y", "z"};
    for (uint32_t i = 0; i < 3; ++i) {
      view.members[i].host_id = hosts[i];
      group.push_back({NodeRank{i}, LocalRank{0}});
    }
  }
  void AddAggregator(const std::string& name, const std::string& host_id, uint32_t weight = 1) {
    view.aggregators.push_back({.incarnation = Incarnation{1000 + view.aggregators.size()},
                                .name = name,
                                .weight = weight,
                                .host_id = host_id});
  }
  void SayDeclareAll(const std::string& name, std::vector<uint32_t> nodes) {
    for (const uint32_t node : nodes) {
      wire::Declare declare = DeclareOf(name, node);
      declare.collective = spec;
      declare.group = group;
      SayDeclare(node, declare);
    }
  }

  Collective spec;
  view::Group group;
};

TEST_CASE("AggregatorCore: an aggregator has memory for the parts of its host's ranks",
          "[aggregation]") {
  HostsFixture f;
  f.AddAggregator("b", "x");
  f.AddAggregator("c", "z");
  f.spec = {DType::kF32, Op::kSum, Share::kWhole, Share::kOwn, 64 * kKiB};
  f.Start();
  f.SayDeclareAll("t", {0, 1, 2});
  CHECK(f.job.Status(f.now_ns, false).reserved_bytes == 4 * 256 * kKiB);
  for (const LocalSlice& slice : f.job.tensors().at(KeyOf("t")).local) CHECK(slice.part == 1);
  // The part of "z" no longer has an aggregator beside it, and is cut in two.
  f.view.aggregators.pop_back();
  f.NextView();
  f.effects_seen.clear();
  for (const uint32_t node : {0u, 1u, 2u}) f.SayFence(node);
  f.SayDeclareAll("t", {0, 1, 2});
  CHECK(f.job.Status(f.now_ns, false).reserved_bytes == 4 * 384 * kKiB);
  const auto allocated = f.Seen<AllocateMemory>();
  REQUIRE(allocated.size() == 4);
  for (const AllocateMemory& memory : allocated) CHECK(memory.bytes == 384 * kKiB);
  CHECK(f.Seen<ReleaseMemory>().size() == 4);
}

TEST_CASE("AggregatorCore: a member that declares late hears of no round that it took no part in",
          "[aggregation]") {
  HostsFixture f;
  f.AddAggregator("b", "y", 2);
  f.AddAggregator("c", "x");
  f.AddAggregator("d", "z");
  f.spec = {DType::kF32, Op::kCopy, Share::kRow, Share::kColumn, 16 * kKiB};
  // Finds a name whose primary owner is here. Nothing else may be placed here but what node 0 gives
  // to node 1.
  std::string name;
  for (int i = 0; name.empty(); ++i) {
    REQUIRE(i < 1000);
    const TensorKey key = KeyOf("t" + std::to_string(i));
    if (view::PrimaryOwner(f.view, key) != AggregatorIndex{0}) continue;
    const view::Placement placement(f.view, key, f.spec, f.group);
    if (placement.slices()[1].owner == AggregatorIndex{0}) name = "t" + std::to_string(i);
  }
  f.Start();
  f.SayDeclareAll(name, {0, 1});
  REQUIRE(f.job.tensors().at(KeyOf(name)).local.size() == 1);
  wire::Contribute part = f.Part(name, 1, 1);
  part.mode = wire::Mode::kCopy;
  f.Contribute(0, part);
  part.form = wire::Form::kEmpty;
  part.rank_count = 0;
  f.Contribute(1, part);
  CHECK(f.Results(1).size() == 1);
  f.SayDeclareAll(name, {2});
  const auto declared = f.Sent<wire::Declared>(Conn(2));
  REQUIRE(declared.size() == 1);
  CHECK(declared[0].held == Round{0});
}

// Two members, each of one rank, declare one tensor that is encoded as `encoding`.
struct EncodedFixture : CollectiveFixture {
  explicit EncodedFixture(Encoding encoding, uint64_t elements = 16)
      : CollectiveFixture("all_reduce", {}, {1, 1}) {
    sums_at_once = false;
    spec.encoding = encoding;
    spec.element_count = elements;
    for (const uint32_t node : {0, 1}) SayDeclare(node, Said(node));
    effects_seen.clear();
  }

  void GiveEncoded(uint32_t node, uint64_t round, uint32_t travel_bytes,
                   uint32_t length_bytes = 64) {
    wire::Contribute part = Part("t", round, 0);
    part.length_bytes = length_bytes;
    part.travel_bytes = travel_bytes;
    Contribute(node, part);
  }
};

TEST_CASE("AggregatorCore: what is encoded has as much room as its encoding may need",
          "[aggregation]") {
  EncodedFixture f(Encoding::kTwice, 20'000);
  const AggregatorTensor& tensor = f.job.tensors().at(KeyOf("t"));
  CHECK(tensor.SlotBytes() == 2 * 80'000);
  CHECK(tensor.reserved_bytes == 3 * 2 * 80'000);
  REQUIRE(tensor.local.size() > 1);
  CHECK(tensor.local[1].slot_offset_bytes == 2 * tensor.local[1].offset_bytes);
}

TEST_CASE(
    "AggregatorCore: encoded contributions are summed as encoded, and the result says its size",
    "[aggregation]") {
  EncodedFixture f(Encoding::kTwice);
  f.GiveEncoded(0, 1, 120);
  f.GiveEncoded(1, 1, 128);
  REQUIRE(f.Seen<Sum>().size() == 1);
  const Sum sum = f.Seen<Sum>()[0];
  CHECK(sum.encoding == Encoding::kTwice);
  CHECK(sum.length_bytes == 64);
  REQUIRE(sum.inputs.size() == 2);
  CHECK(sum.inputs[0].travel_bytes == 120);
  CHECK(sum.inputs[1].travel_bytes == 128);
  f.job.OnSummed(sum.id, 100, f.effects);
  f.Perform();
  for (const uint32_t node : {0, 1}) {
    REQUIRE(f.Results(node).size() == 1);
    CHECK(f.Results(node)[0].entry.length_bytes == 64);
    CHECK(f.Results(node)[0].entry.travel_bytes == 100);
    CHECK(f.Results(node)[0].travel_bytes == 100);
  }
}

TEST_CASE("AggregatorCore: a contribution that takes more than its encoding may need is refused",
          "[aggregation]") {
  EncodedFixture f(Encoding::kRuns);
  f.GiveEncoded(0, 1, 65);
  CHECK(f.RefusedCount(wire::RefusedReason::kWrongLength) == 1);
  f.GiveEncoded(0, 1, 8);
  CHECK(f.job.counters().contributions == 1);
}

TEST_CASE("AggregatorCore: a result that is finished for others travels plain", "[aggregation]") {
  EncodedFixture f(Encoding::kRuns);
  wire::Contribute source = f.Part("t", 1, 0);
  source.mode = wire::Mode::kCopy;
  source.sum_epoch = Epoch{1};
  source.length_bytes = 64;
  source.travel_bytes = 8;  // As if it were encoded.
  f.Contribute(0, source);
  CHECK(f.RefusedCount(wire::RefusedReason::kWrongLength) == 1);
  source.travel_bytes = 64;
  f.Contribute(0, source);
  wire::Contribute other = f.Part("t", 1, 0);
  other.mode = wire::Mode::kCopy;
  other.form = wire::Form::kEmpty;
  other.rank_count = 0;
  f.Contribute(1, other);
  REQUIRE(f.Seen<CopyResult>().size() == 1);
  CHECK(f.Seen<CopyResult>()[0].travel_bytes == 64);
}

TEST_CASE("AggregatorCore: bytes that are no encoding end the round for all, and only that round",
          "[aggregation]") {
  EncodedFixture f(Encoding::kRuns);
  f.GiveEncoded(0, 1, 12);
  f.GiveEncoded(1, 1, 40);
  f.job.OnUndecodable(f.Seen<Sum>()[0].id, 1, f.effects);
  f.Perform();
  for (const uint32_t node : {0, 1}) {
    REQUIRE(f.Results(node).size() == 1);
    CHECK(f.Results(node)[0].entry.form == wire::Form::kDisagreement);
    CHECK_THAT(f.Results(node)[0].text,
               Catch::Contains("round 1 of tensor 't'") && Catch::Contains("the 40 bytes") &&
                   Catch::Contains("node 1") && Catch::Contains("no runs encoding of 64 bytes"));
  }
  f.effects_seen.clear();
  f.GiveEncoded(0, 2, 12);
  f.GiveEncoded(1, 2, 12);
  REQUIRE(f.Seen<Sum>().size() == 1);
  CHECK(f.Seen<Sum>()[0].id.round == Round{2});
}

TEST_CASE("AggregatorCore: members that declare other encodings hear of both", "[aggregation]") {
  CollectiveFixture f("all_reduce", {}, {1, 1});
  f.SayDeclare(0, f.Said(0));
  f.spec.encoding = Encoding::kRuns;
  f.SayDeclare(1, f.Said(1));
  REQUIRE(f.job.tensors().at(KeyOf("t")).poison.has_value());
  CHECK_THAT(f.job.tensors().at(KeyOf("t")).poison->text,
             Catch::Contains("declared f32[16] sum,") &&
                 Catch::Contains("declares f32[16] sum encoded as runs"));
}

}  // namespace
}  // namespace talweg::aggregation
