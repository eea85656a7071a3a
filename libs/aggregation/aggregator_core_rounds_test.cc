// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "libs/aggregation/aggregator_core_fixture.h"

// Contributions and results (docs/protocol.md, section 5).
namespace talweg::aggregation {
namespace {

using wire::Form;
using wire::Mode;
using wire::RefusedReason;

constexpr uint64_t kLargeCount = 10'000;  // f32: one slice, too long for an entry.

TEST_CASE("AggregatorCore: contributions are summed in member order, whatever order they come in",
          "[aggregation]") {
  JobFixture f({2, 3});
  f.StartWith("w", kLargeCount, Op::kAverage);
  wire::Contribute second = f.Part("w", 1);
  second.rank_count = 3;
  f.Contribute(1, second);
  CHECK(f.Seen<Sum>().empty());
  wire::Contribute first = f.Part("w", 1);
  first.rank_count = 2;
  f.Contribute(0, first);
  REQUIRE(f.Seen<Sum>().size() == 1);
  const Sum sum = f.Seen<Sum>()[0];
  constexpr uint32_t kBytes = kLargeCount * 4;
  CHECK(sum.inputs ==
        std::vector<SumInput>{{f.allocated[1], 2, kBytes}, {f.allocated[2], 3, kBytes}});
  CHECK(sum.result == f.allocated[0]);
  CHECK(sum.rank_count_total == 5);
  CHECK(sum.op == Op::kAverage);
  CHECK(sum.length_bytes == kLargeCount * 4);
  REQUIRE(f.Results(0).size() == 1);
  const SendResult result = f.Results(0)[0];
  CHECK(result.entry.form == Form::kWritten);
  CHECK(result.entry.rank_count == 5);
  CHECK(result.entry.sum_epoch == Epoch{1});
  // The round's parity decides where the result goes.
  CHECK(result.target == wire::RemoteRef{0, 2'000'000});
  CHECK(f.Results(1).size() == 1);
  CHECK(f.job.counters().summed_bytes == 2 * kLargeCount * 4);
}

TEST_CASE(
    "AggregatorCore: a result has the priority that its member gave, also when it comes again",
    "[aggregation]") {
  JobFixture f;
  f.StartWith("w", kLargeCount);
  wire::Contribute part = f.Part("w", 1);
  part.priority = 4;
  f.Contribute(0, part);
  part.priority = -4;
  f.Contribute(1, part);
  REQUIRE(f.Results(0).size() == 1);
  CHECK(f.Results(0)[0].priority == 4);
  CHECK(f.Results(1)[0].priority == -4);
  part.priority = 6;
  f.Contribute(1, part);
  REQUIRE(f.Results(1).size() == 2);
  CHECK(f.Results(1)[1].priority == 6);
}

TEST_CASE("AggregatorCore: rounds follow each other, results alternate between the regions",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w", kLargeCount);
  for (uint64_t round = 1; round <= 4; ++round) {
    f.Contribute(0, "w", round);
    f.Contribute(1, "w", round);
  }
  const auto results = f.Results(1);
  REQUIRE(results.size() == 4);
  CHECK(results[0].target.address == 2'000'000);
  CHECK(results[1].target.address == 1'000'000);
  CHECK(results[2].target.address == 2'000'000);
  CHECK(results[3].entry.round == Round{4});
}

TEST_CASE("AggregatorCore: small slices travel in entries, both ways", "[aggregation]") {
  JobFixture f;
  f.StartWith("w", 4);
  const std::vector<std::byte> bytes(16);
  for (const uint32_t node : {0u, 1u}) {
    wire::Contribute part = f.Part("w", 1);
    part.form = Form::kInline;
    part.bytes = bytes;
    f.Contribute(node, part);
  }
  const auto stores = f.Seen<StoreInline>();
  REQUIRE(stores.size() == 2);
  CHECK(stores[0].slots == f.allocated[1]);
  CHECK(stores[1].slots == f.allocated[2]);
  CHECK(stores[1].travel_bytes == 16);
  REQUIRE(f.Results(0).size() == 1);
  CHECK(f.Results(0)[0].entry.form == Form::kInline);
  CHECK(f.Results(0)[0].write == WriteId{0});
}

TEST_CASE("AggregatorCore: slices of a large tensor are rounds of their own", "[aggregation]") {
  JobFixture f;
  f.StartWith("w", 3 * 64 * kKiB / 4);
  REQUIRE(f.job.tensors().begin()->second.slice_count == 3);
  f.Contribute(0, "w", 1, 2);
  f.Contribute(1, "w", 1, 2);
  REQUIRE(f.Results(0).size() == 1);
  CHECK(f.Results(0)[0].entry.slice == SliceIndex{2});
  CHECK(f.Results(0)[0].target.address == 2'000'000 + 2 * 64 * kKiB);
  CHECK(f.Results(0)[0].offset_bytes == 2 * 64 * kKiB);
}

TEST_CASE(
    "AggregatorCore: credit returns when a contribution has been received, even if it is refused",
    "[aggregation]") {
  JobFixture f;
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  f.Contribute(0, "w", 9);  // It is refused: the round is another one.
  wire::Contribute empty = f.Part("w", 1);
  empty.form = Form::kEmpty;
  f.Contribute(0, empty);  // It is refused, and returns no credit.
  const auto credit = f.Seen<ReturnCredit>();
  REQUIRE(credit.size() == 2);
  CHECK(credit[0].bytes == kLargeCount * 4);
  CHECK(credit[1].bytes == kLargeCount * 4);
  CHECK(credit[1].connection == Conn(0));
}

TEST_CASE("AggregatorCore: a contribution that does not match is refused, counted and never summed",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w", 4);
  const auto refused = [&f](RefusedReason reason, const auto& say) {
    f.effects_seen.clear();
    const uint64_t before = f.RefusedCount(reason);
    say();
    CHECK(f.RefusedCount(reason) == before + 1);
    REQUIRE(f.Sent<wire::Refused>(Conn(0)).size() == 1);
    CHECK(f.Sent<wire::Refused>(Conn(0))[0].reason == reason);
    CHECK_FALSE(f.Sent<wire::Refused>(Conn(0))[0].text.empty());
    CHECK(f.Seen<Sum>().empty());
  };
  f.Contribute(1, "w", 1);
  refused(RefusedReason::kNotDeclared, [&] { f.Contribute(0, "v", 1); });
  refused(RefusedReason::kNotPlacedHere, [&] { f.Contribute(0, "w", 1, 1); });
  refused(RefusedReason::kNotPlacedHere, [&] { f.Contribute(0, "w", 1, UINT32_MAX); });
  refused(RefusedReason::kWrongRound, [&] { f.Contribute(0, "w", 2); });
  refused(RefusedReason::kWrongRound, [&] { f.Contribute(0, "w", 0); });
  refused(RefusedReason::kWrongLength, [&] {
    const std::vector<std::byte> bytes(15);
    wire::Contribute part = f.Part("w", 1);
    part.form = Form::kInline;
    part.bytes = bytes;
    f.Contribute(0, part);
  });
  refused(RefusedReason::kWrongMode, [&] {
    wire::Contribute part = f.Part("w", 1);
    part.form = Form::kEmpty;
    f.Contribute(0, part);
  });
  refused(RefusedReason::kWrongMode, [&] {
    wire::Contribute part = f.Part("w", 1);
    part.mode = Mode::kCopy;
    part.sum_epoch = Epoch{1};
    f.Contribute(0, part);
  });
  refused(RefusedReason::kWrongMode, [&] {
    wire::Contribute part = f.Part("w", 1);
    part.rank_count = 3;  // The node has two.
    f.Contribute(0, part);
  });
  refused(RefusedReason::kWrongMode, [&] {
    wire::Contribute part = f.Part("w", 1);
    part.rank_count = 0;
    f.Contribute(0, part);
  });
  refused(RefusedReason::kWrongEpoch, [&] {
    f.epoch_override = Epoch{2};
    f.Contribute(0, "w", 1);
    f.epoch_override.reset();
  });
  refused(RefusedReason::kWrongJob, [&] {
    wire::Frame frame;
    frame.header = {.type = wire::FrameType::kContribute, .job = JobId{6}, .epoch = Epoch{1}};
    frame.entries = std::vector{f.Part("w", 1)};
    f.SayFrame(Conn(0), frame);
  });
  f.Contribute(0, "w", 1);
  CHECK(f.Seen<Sum>().size() == 1);
}

TEST_CASE("AggregatorCore: contributions before the declaration is answered are refused",
          "[aggregation]") {
  JobFixture f;
  f.PublishView();
  f.SayHello(0);
  f.SayHello(1);
  f.SayDeclare(0, f.DeclareOf("w", 0));
  f.Contribute(0, "w", 1);
  CHECK(f.RefusedCount(RefusedReason::kNotDeclared) == 1);
  f.epoch_override = Epoch{1};
  f.Contribute(5, "w", 1);  // This connection never said Hello.
  CHECK(f.Seen<CloseConnection>().size() == 1);
}

TEST_CASE("AggregatorCore: a connection that is refused again and again is closed",
          "[aggregation]") {
  JobFixture f({2, 2}, kGiB, {.refusals_max = 3});
  f.StartWith("w");
  for (int i = 0; i < 4; ++i) f.Contribute(0, "v", 1);
  CHECK(f.Seen<CloseConnection>().size() == 1);
}

TEST_CASE("AggregatorCore: a duplicate is not counted twice; after its round it is answered again",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  f.Contribute(0, "w", 1);
  CHECK(f.job.counters().duplicates == 1);
  CHECK(f.Seen<Sum>().empty());
  f.Contribute(1, "w", 1);
  f.Contribute(0, "w", 1);
  CHECK(f.Seen<Sum>().size() == 1);
  CHECK(f.Results(0).size() == 2);
  CHECK(f.Results(1).size() == 1);
  CHECK(f.job.counters().results_again == 1);
}

TEST_CASE("AggregatorCore: a lost connection's contributions are forgotten and sent again",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  f.job.OnDisconnect(Conn(0), f.effects);
  f.Perform();
  f.Contribute(1, "w", 1);
  CHECK(f.Seen<Sum>().empty());
  CHECK(f.job.counters().contributions_forgotten == 1);
  f.SayHello(0, 1);
  f.Contribute(0, f.Part("w", 1), 1);  // It has to declare the tensor again first.
  CHECK(f.RefusedCount(RefusedReason::kNotDeclared) == 1);
  f.SayDeclare(0, f.DeclareOf("w", 0, kLargeCount), 1);
  CHECK(f.Seen<AllocateMemory>().empty());
  f.Contribute(0, f.Part("w", 1), 1);
  CHECK(f.Seen<Sum>().size() == 1);
  CHECK(f.Results(0, 1).size() == 1);
}

TEST_CASE(
    "AggregatorCore: a member that was away while its round was summed gets the result when it "
    "asks",
    "[aggregation]") {
  JobFixture f;
  f.sums_at_once = false;
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  f.Contribute(1, "w", 1);
  f.job.OnDisconnect(Conn(0), f.effects);
  f.Perform();
  f.FinishSums();
  CHECK(f.Results(0).empty());
  CHECK(f.Results(1).size() == 1);
  f.Contribute(1, "w", 2);  // The others continue.
  f.SayHello(0, 1);
  f.SayDeclare(0, f.DeclareOf("w", 0, kLargeCount), 1);
  f.Contribute(0, f.Part("w", 1), 1);
  REQUIRE(f.Results(0, 1).size() == 1);
  CHECK(f.Results(0, 1)[0].entry.round == Round{1});
  f.Contribute(0, f.Part("w", 2), 1);
  CHECK(f.sums_under_way.size() == 1);
}

TEST_CASE("AggregatorCore: a result is not overwritten while it is being written to anybody",
          "[aggregation]") {
  JobFixture f;
  f.writes_at_once = false;
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  f.Contribute(1, "w", 1);
  REQUIRE(f.writes_under_way.size() == 2);
  f.Contribute(0, "w", 2);
  f.Contribute(1, "w", 2);
  CHECK(f.Seen<Sum>().size() == 1);
  f.job.OnWriteDone(f.writes_under_way[0], f.effects);
  f.job.OnWriteDone(f.writes_under_way[0], f.effects);  // A repetition has no effect.
  f.Perform();
  CHECK(f.Seen<Sum>().size() == 1);
  SECTION("All writes are done") { f.job.OnWriteDone(f.writes_under_way[1], f.effects); }
  SECTION("The connection is lost") { f.job.OnDisconnect(Conn(1), f.effects); }
  f.Perform();
  CHECK(f.Seen<Sum>().size() == 2);
  CHECK(f.job.counters().sums_held_back > 0);
}

TEST_CASE("AggregatorCore: a sum that ends after its view is thrown away", "[aggregation]") {
  JobFixture f;
  f.sums_at_once = false;
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  f.Contribute(1, "w", 1);
  f.NextView();
  f.effects_seen.clear();
  f.FinishSums();
  CHECK(f.Seen<SendResult>().empty());
  CHECK(f.job.counters().sums_stale == 1);
}

TEST_CASE("AggregatorCore: a broadcast copies the root node's bytes to those who want them",
          "[aggregation]") {
  JobFixture f({2, 2});
  f.StartWith("w", kLargeCount, Op::kCopy, /*root=*/3);
  const auto empty = [&f](uint32_t node, bool wants_result) {
    wire::Contribute part = f.Part("w", 1);
    part.mode = Mode::kCopy;
    part.form = Form::kEmpty;
    part.wants_result = wants_result;
    f.Contribute(node, part);
  };
  wire::Contribute source = f.Part("w", 1);
  source.mode = Mode::kCopy;
  source.wants_result = false;
  f.Contribute(0, source);  // It is not the root's node.
  CHECK(f.RefusedCount(RefusedReason::kWrongMode) == 1);
  f.Contribute(0, "w", 1);  // A sum is refused too.
  CHECK(f.RefusedCount(RefusedReason::kWrongMode) == 2);
  empty(0, true);
  f.Contribute(1, source);
  REQUIRE(f.Seen<CopyResult>().size() == 1);
  CHECK(f.Seen<CopyResult>()[0].source == f.allocated[2]);
  REQUIRE(f.Results(0).size() == 1);
  CHECK(f.Results(0)[0].entry.form == Form::kWritten);
  CHECK(f.Results(0)[0].entry.sum_epoch == Epoch{1});
  CHECK(f.Results(0)[0].entry.rank_count == 1);
  REQUIRE(f.Results(1).size() == 1);
  CHECK(f.Results(1)[0].entry.form == Form::kEmpty);
  CHECK(f.job.counters().summed_bytes == 0);
}

TEST_CASE("AggregatorCore: all members hear who is waited for, at growing intervals",
          "[aggregation]") {
  JobFixture f({1, 1, 1});
  f.StartWith("w", kLargeCount);
  // At this tick nobody waits. The job must not remember that for long.
  f.job.OnTick(f.now_ns, f.effects);
  f.Contribute(0, "w", 1);
  std::vector<int64_t> notices_at;
  for (int64_t second = 0; second <= 200; ++second) {
    f.effects_seen.clear();
    f.job.OnTick(f.now_ns + second * 1'000'000'000, f.effects);
    f.Perform();
    const auto notices = f.Sent<wire::Waiting>(Conn(0));
    if (notices.empty()) continue;
    notices_at.push_back(second);
    CHECK(notices[0].missing_nodes == std::vector<uint32_t>{1, 2});
    CHECK(notices[0].round == Round{1});
    CHECK(notices[0].waited_ns == static_cast<uint64_t>(second) * 1'000'000'000);
    CHECK(f.Sent<wire::Waiting>(Conn(1)).size() == 1);  // It learns that others wait for it.
  }
  CHECK(notices_at == std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 124, 184});
  const JobStatus status = f.job.Status(f.now_ns + 5'000'000'000, false);
  REQUIRE(status.open_rounds.size() == 1);
  CHECK(status.open_rounds[0].tensor == "w");
  CHECK(status.open_rounds[0].missing == std::vector<NodeRank>{NodeRank{1}, NodeRank{2}});
  CHECK(status.open_rounds[0].waited_ns == 5'000'000'000);
  f.Contribute(1, "w", 1);
  f.Contribute(2, "w", 1);
  CHECK(f.job.Status(f.now_ns, false).open_rounds.empty());
  CHECK(f.job.Status(f.now_ns, true).tensors[0].round_summed == Round{1});
}

TEST_CASE("AggregatorCore: a notice says how long each awaited member has had no connection",
          "[aggregation]") {
  constexpr int64_t kSecond = 1'000'000'000;
  JobFixture f({1, 1, 1});
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  struct Told {
    int64_t second;
    std::vector<uint64_t> absent_s;
  };
  std::vector<Told> told;
  const int64_t start_ns = f.now_ns;
  const auto until = [&](int64_t second) {
    for (; f.now_ns <= start_ns + second * kSecond; f.now_ns += kSecond / 4) {
      f.effects_seen.clear();
      f.job.OnTick(f.now_ns, f.effects);
      f.Perform();
      for (const wire::Waiting& notice : f.Sent<wire::Waiting>(Conn(0))) {
        CHECK(notice.missing_nodes == std::vector<uint32_t>{1, 2});
        Told& last = told.emplace_back(Told{(f.now_ns - start_ns) / kSecond, {}});
        for (const uint64_t ns : notice.absent_ns) last.absent_s.push_back(ns / kSecond);
      }
    }
  };
  until(70);
  REQUIRE(told.size() == 7);  // The last one came at 64 s. The next is due at 124 s.
  CHECK(told.back().absent_s == std::vector<uint64_t>{0, 0});
  told.clear();
  // Node 2 dies: notices say so soon, and repeatedly.
  f.job.OnDisconnect(Conn(2), f.effects);
  until(83);
  std::vector<int64_t> seconds;
  for (const Told& each : told) seconds.push_back(each.second);
  CHECK(seconds == std::vector<int64_t>{70, 74, 78, 82});
  CHECK(told.back().absent_s == std::vector<uint64_t>{0, 12});
  // Node 2 had only lost its connection: nobody is absent any more.
  f.SayHello(2, 1);
  f.SayReport(2, {}, 1);
  told.clear();
  until(130);
  for (const Told& each : told) CHECK(each.absent_s == std::vector<uint64_t>{0, 0});
  CHECK(told.size() == 0);
  // Time in which this process sleeps does not count as absence.
  f.job.OnDisconnect(Conn(2, 1), f.effects);
  f.now_ns += 1000 * kSecond;
  until(1140);
  REQUIRE(!told.empty());
  CHECK(told.front().absent_s[1] <= 2);
}

TEST_CASE("AggregatorCore: a notice never says a longer absence than there was", "[aggregation]") {
  constexpr int64_t kTickNs = 250'000'000;
  JobFixture f({1, 1});
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  const auto tick = [&f] {
    f.effects_seen.clear();
    f.now_ns += kTickNs;
    f.job.OnTick(f.now_ns, f.effects);
    f.Perform();
    return f.job.members()[1].absent_ns;
  };
  tick();
  // It goes just before a tick, so it was here for the time since the last one.
  f.job.OnDisconnect(Conn(1), f.effects);
  CHECK(tick() == 0);
  CHECK(tick() == kTickNs);
  // It comes and goes between two ticks.
  f.SayHello(1, 1);
  f.job.OnDisconnect(Conn(1, 1), f.effects);
  CHECK(tick() == 0);
  CHECK(tick() == kTickNs);
  // In a new view the time begins afresh.
  f.NextView();
  CHECK(tick() == 0);
  CHECK(tick() == kTickNs);
}

TEST_CASE(
    "AggregatorCore: members also wait for a round that opens when the previous one is summed",
    "[aggregation]") {
  JobFixture f({1, 1});
  f.StartWith("w", kLargeCount);
  f.Contribute(0, "w", 1);
  f.Contribute(1, "w", 1);
  f.Contribute(0, "w", 2);
  for (const int64_t second : {0, 1}) {
    f.effects_seen.clear();
    f.job.OnTick(f.now_ns + second * 1'000'000'000, f.effects);
    f.Perform();
  }
  REQUIRE(f.Sent<wire::Waiting>(Conn(0)).size() == 1);
  CHECK(f.Sent<wire::Waiting>(Conn(0))[0].round == Round{2});
}

TEST_CASE("AggregatorCore: members may push tensors in different orders", "[aggregation]") {
  JobFixture f;
  f.Start();
  for (const uint32_t node : {0u, 1u}) {
    for (const char* name : {"a", "b"}) f.SayDeclare(node, f.DeclareOf(name, node));
  }
  f.Contribute(0, "a", 1);
  f.Contribute(1, "b", 1);
  f.Contribute(0, "b", 1);
  f.Contribute(1, "a", 1);
  CHECK(f.Seen<Sum>().size() == 2);
}

}  // namespace
}  // namespace talweg::aggregation
