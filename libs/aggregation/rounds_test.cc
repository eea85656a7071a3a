// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/rounds.h"

#include <optional>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"

namespace talweg::aggregation {
namespace {

constexpr uint64_t kLargeCount = 16 * kKiB;  // Its results are written, not sent inside frames.

struct Fixture : CoreParts {
  Fixture() { EnterAll(); }

  ContributionTally Contribute(uint32_t member, const AggregatorTensor& tensor, uint64_t round) {
    wire::Frame frame;
    frame.header = {.type = wire::FrameType::kContribute, .job = config.job, .epoch = view.epoch};
    frame.entries = std::vector{wire::Contribute{.key = tensor.key,
                                                 .round = Round{round},
                                                 .slice = SliceIndex{0},
                                                 .rank_count = 1,
                                                 .length_bytes = tensor.local[0].length_bytes,
                                                 .travel_bytes = tensor.local[0].length_bytes,
                                                 .mode = wire::Mode::kSum,
                                                 .form = wire::Form::kWritten}};
    const Session session = {.state = SessionState::kActive, .epoch = view.epoch};
    return rounds.OnContributions(Conn(member), session, MemberIndex{member}, frame, now_ns, out);
  }
  void FinishSum() {
    const Sum sum = Of<Sum>().back();
    rounds.OnSummed(sum.id, sum.length_bytes, out);
  }
  // Both members contribute to two rounds. The first round's result is being written to them.
  void BeginSecondRound(const AggregatorTensor& tensor) {
    for (const uint64_t round : {1, 2}) {
      Contribute(0, tensor, round);
      Contribute(1, tensor, round);
      if (round == 1) FinishSum();
    }
  }

  int64_t now_ns = 0;
  Rounds rounds{&config, &present, &attendance, &tensors, &counters};
};

TEST_CASE("Rounds: contributions are summed in member order when all have come", "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t", kLargeCount);
  CHECK(f.Contribute(1, tensor, 1).taken_bytes == 4 * kLargeCount);
  CHECK(f.Of<Sum>().empty());
  f.Contribute(0, tensor, 1);
  REQUIRE(f.Of<Sum>().size() == 1);
  const uint32_t bytes = 4 * kLargeCount;
  CHECK(f.Of<Sum>()[0].inputs ==
        std::vector<SumInput>{{AllocationId{100}, 1, bytes}, {AllocationId{101}, 1, bytes}});
  f.FinishSum();
  REQUIRE(f.Of<SendResult>().size() == 2);
  CHECK(f.Of<SendResult>()[0].connection == f.Conn(0));
  CHECK(f.rounds.writes_under_way() == 2);
}

TEST_CASE("Rounds: the member whose contribution comes last is noted", "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t");
  for (uint64_t round = 1; round <= 3; ++round) {
    f.Contribute(round == 2 ? 1 : 0, tensor, round);
    f.now_ns += 500;
    f.Contribute(round == 2 ? 0 : 1, tensor, round);
    f.now_ns += 10'000;  // Until the next round begins.
    f.FinishSum();
  }
  CHECK(f.rounds.latecomers().sum_count() == 3);
  const auto members = f.rounds.latecomers().ByMember(2);
  CHECK(members[0].last_count == 1);
  CHECK(members[1].last_count == 2);
  CHECK(members[1].behind_ns == 1000);
  f.rounds.OnView();
  CHECK(f.rounds.latecomers().sum_count() == 0);
}

TEST_CASE("Rounds: when half are there, the others are told to hurry", "[aggregation]") {
  Fixture f;
  AggregatorTensor& tensor = f.Answered("t");
  f.Contribute(0, tensor, 1);
  CHECK(f.Sent<wire::Waiting>().empty());  // This tensor waits for all.
  f.Contribute(1, tensor, 1);
  f.FinishSum();
  tensor.agreed->collective.patience_ms = 5;
  f.Contribute(1, tensor, 2);
  const auto told = f.Sent<wire::Waiting>();
  REQUIRE(told.size() == 1);
  CHECK(told[0].first == f.Conn(0));
  CHECK(told[0].second.key == tensor.key);
  CHECK(told[0].second.round == Round{2});
  CHECK(told[0].second.missing_nodes == std::vector{f.view.members[0].id.node.value()});
  f.Contribute(0, tensor, 2);
  f.FinishSum();
  f.Contribute(0, tensor, 3);
  CHECK(f.Sent<wire::Waiting>().size() == 2);
}

TEST_CASE("Rounds: a sum waits for the writes of the previous result", "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t", kLargeCount);
  f.BeginSecondRound(tensor);
  CHECK(f.Of<Sum>().size() == 1);
  const auto results = f.Of<SendResult>();
  f.rounds.OnWriteDone(results[0].write, f.out);
  CHECK(f.Of<Sum>().size() == 1);
  // A write to a closed connection no longer reads.
  f.rounds.OnLost(f.Conn(1), std::nullopt, f.out);
  CHECK(f.Of<Sum>().size() == 2);
  CHECK(f.rounds.writes_under_way() == 0);
}

TEST_CASE("Rounds: nothing is summed once the job is over", "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t", kLargeCount);
  f.BeginSecondRound(tensor);
  f.rounds.OnClosed();
  // The second sum waits for writes that end with their connections.
  f.rounds.OnLost(f.Conn(0), std::nullopt, f.out);
  f.rounds.OnLost(f.Conn(1), std::nullopt, f.out);
  CHECK(f.rounds.writes_under_way() == 0);
  CHECK(f.Of<Sum>().size() == 1);
}

TEST_CASE("Rounds: the contributions of a lost connection are forgotten", "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t");
  f.Contribute(0, tensor, 1);
  f.rounds.OnLost(f.Conn(0), MemberIndex{0}, f.out);
  CHECK(f.counters.contributions_forgotten == 1);
  f.Contribute(1, tensor, 1);
  CHECK(f.Of<Sum>().empty());
  f.Contribute(0, tensor, 1);
  CHECK(f.Of<Sum>().size() == 1);
}

TEST_CASE("Rounds: a refusal is sent to the member, and its credit comes back", "[aggregation]") {
  Fixture f;
  AggregatorTensor& tensor = f.Answered("t");
  tensor.declarations[0].answered = false;
  CHECK(f.Contribute(0, tensor, 1).refused == 1);
  REQUIRE(f.Sent<wire::Refused>().size() == 1);
  CHECK(f.Sent<wire::Refused>()[0].second.reason == wire::RefusedReason::kNotDeclared);
  REQUIRE(f.Of<ReturnCredit>().size() == 1);
  CHECK(f.Of<ReturnCredit>()[0].bytes == 16);
}

TEST_CASE("Rounds: a sum of an older epoch, or of a job that is over, is thrown away",
          "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t");
  f.Contribute(0, tensor, 1);
  f.Contribute(1, tensor, 1);
  SECTION("The sum is of an older epoch") { f.NextEpoch(); }
  SECTION("The job is over") { f.rounds.OnClosed(); }
  f.FinishSum();
  CHECK(f.counters.sums_stale == 1);
  CHECK(f.Of<SendResult>().empty());
}

}  // namespace
}  // namespace talweg::aggregation
