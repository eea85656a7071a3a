// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/recovery.h"

#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"

namespace talweg::aggregation {
namespace {

struct Fixture : CoreParts {
  Fixture() {
    EnterAll();
    declarations.OnView();
    recovery.OnView();
  }

  wire::Report HeldUpTo(const AggregatorTensor& tensor, uint64_t round) const {
    return {.key = tensor.key,
            .held = Round{round},
            .held_epoch = Epoch{1},
            .contributed = Round{round}};
  }
  void SayReport(uint32_t member, std::vector<wire::Report> reports, uint8_t flags = 0) {
    wire::Frame frame;
    frame.header = {.type = wire::FrameType::kReport, .flags = flags};
    frame.entries = std::move(reports);
    recovery.OnReport(Conn(member), MemberIndex{member}, frame, out);
  }

  MemoryBudget budget{kGiB};
  TensorMemory memory{&config, &present, &budget};
  Declarations declarations{&config, &present, &attendance, &memory, &tensors, &counters};
  Recovery recovery{&present, &attendance, &declarations, &tensors, &counters};
};

TEST_CASE("Recovery: rounds are decided when all have reported, then declarations are answered",
          "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t");
  for (Declaration& declaration : f.tensors.at(tensor.key).declarations) {
    declaration.answered = false;
  }
  f.SayReport(0, {f.HeldUpTo(tensor, 4)});
  CHECK(f.recovery.HasReported(MemberIndex{0}));
  CHECK_FALSE(f.recovery.is_complete());
  CHECK(f.out.empty());
  f.SayReport(1, {f.HeldUpTo(tensor, 4)});
  CHECK(f.recovery.is_complete());
  REQUIRE(f.Sent<wire::Declared>().size() == 2);
  CHECK(f.Sent<wire::Declared>()[0].second.held == Round{4});
  REQUIRE(f.Sent<wire::Decision>().size() == 2);
  CHECK(f.Sent<wire::Decision>()[0].second.round == Round{5});
  CHECK(std::holds_alternative<wire::Declared>(std::get<Send>(f.out[0]).entry));
}

TEST_CASE("Recovery: a report that broke off does not count", "[aggregation]") {
  Fixture f;
  const AggregatorTensor& tensor = f.Answered("t");
  f.SayReport(0, {f.HeldUpTo(tensor, 7)}, wire::kFlagMore);
  CHECK_FALSE(f.recovery.HasReported(MemberIndex{0}));
  f.recovery.OnLost(MemberIndex{0});
  f.SayReport(0, {});
  f.SayReport(1, {f.HeldUpTo(tensor, 4)});
  REQUIRE(f.tensors.at(tensor.key).decision.has_value());
  CHECK(f.tensors.at(tensor.key).decision->round == Round{5});
}

TEST_CASE("Recovery: a report of a tensor that its member has not declared is unexpected",
          "[aggregation]") {
  Fixture f;
  AggregatorTensor& tensor = f.Answered("t");
  tensor.declarations[0] = {};
  f.SayReport(0, {f.HeldUpTo(tensor, 4)});
  CHECK(f.counters.frames_unexpected == 1);
}

}  // namespace
}  // namespace talweg::aggregation
