// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/notices.h"

#include <optional>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"

namespace talweg::aggregation {
namespace {

struct Fixture : CoreParts {
  Fixture() {
    EnterAll();
    recovery.OnView();
    notices.OnView(0);
  }
  void ReportAll() {
    for (uint32_t i = 0; i < view.members.size(); ++i) {
      recovery.OnReport(Conn(i), MemberIndex{i}, {}, out);
    }
    out.clear();
  }
  // To round 3.
  static wire::Contribute ContributionTo(const AggregatorTensor& tensor) {
    return {.key = tensor.key,
            .round = Round{3},
            .rank_count = 1,
            .length_bytes = 16,
            .mode = wire::Mode::kSum,
            .form = wire::Form::kWritten};
  }
  size_t NoticesBy(int64_t now_ns) {
    out.clear();
    notices.OnTick(now_ns, out);
    return Sent<wire::Waiting>().size();
  }

  MemoryBudget budget{kGiB};
  TensorMemory memory{&config, &present, &budget};
  Declarations declarations{&config, &present, &attendance, &memory, &tensors, &counters};
  Recovery recovery{&present, &attendance, &declarations, &tensors, &counters};
  Sessions sessions{&config, &present, &attendance, &counters,
                    [](ConnectionId, std::optional<MemberIndex>, Effects&) {}};
  Notices notices{&config, &present, &attendance, &recovery, &sessions, &tensors, &counters};
};

TEST_CASE(
    "Notices: a round that waits is announced after 1, 2, 4 ... seconds, until it waits no more",
    "[aggregation]") {
  Fixture f;
  f.ReportAll();
  AggregatorTensor& tensor = f.Answered("t");
  const wire::Contribute given = Fixture::ContributionTo(tensor);
  tensor.local[0].round.OnContribution(MemberIndex{0}, given, 0);
  CHECK(f.NoticesBy(f.kSecond - 1) == 0);
  CHECK(f.NoticesBy(f.kSecond) == 2);
  CHECK(f.Sent<wire::Waiting>()[0].second.missing_nodes == std::vector<uint32_t>{1});
  CHECK(f.Sent<wire::Waiting>()[0].second.round == Round{3});
  CHECK(f.NoticesBy(2 * f.kSecond - 1) == 0);
  CHECK(f.NoticesBy(2 * f.kSecond) == 2);

  tensor.local[0].round.Forget(MemberIndex{0});
  CHECK(f.NoticesBy(100 * f.kSecond) == 0);
  // Without an event, Notices does not look at rounds again.
  tensor.local[0].round.OnContribution(MemberIndex{0}, given, 100 * f.kSecond);
  CHECK(f.NoticesBy(200 * f.kSecond) == 0);
  f.notices.OnEvent();
  CHECK(f.NoticesBy(200 * f.kSecond) == 2);
}

TEST_CASE("Notices: a member is told to hurry again with each notice", "[aggregation]") {
  Fixture f;
  f.ReportAll();
  AggregatorTensor& tensor = f.Answered("t");
  tensor.agreed->collective.patience_ms = 5;
  tensor.local[0].round.OnContribution(MemberIndex{0}, Fixture::ContributionTo(tensor), 0);
  const auto hurried = [&] {
    std::vector<ConnectionId> told;
    for (const auto& [connection, waiting] : f.Sent<wire::Waiting>()) {
      if (waiting.hurries()) told.push_back(connection);
    }
    return told;
  };
  f.NoticesBy(f.kSecond);
  CHECK(hurried().empty());  // Less than half are there, as far as this test says.
  tensor.hurried = Round{3};
  f.NoticesBy(2 * f.kSecond);
  CHECK(hurried() == std::vector{f.Conn(1)});
}

TEST_CASE("Notices: members that have reported hear whom the epoch waits for", "[aggregation]") {
  Fixture f;
  f.recovery.OnReport(f.Conn(0), MemberIndex{0}, {}, f.out);
  CHECK(f.NoticesBy(f.kSecond - 1) == 0);
  REQUIRE(f.NoticesBy(f.kSecond) == 1);
  CHECK(f.Sent<wire::Waiting>()[0].first == f.Conn(0));
  CHECK(f.Sent<wire::Waiting>()[0].second.missing_nodes == std::vector<uint32_t>{1});
}

}  // namespace
}  // namespace talweg::aggregation
