// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/declarations.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"
#include "libs/base/fingerprint.h"

namespace talweg::aggregation {
namespace {

struct Fixture : CoreParts {
  Fixture() {
    EnterAll();
    declarations.OnView();
  }
  bool Declare(uint32_t member, const wire::Declare& declare) {
    return declarations.OnDeclare(Conn(member), MemberIndex{member}, declare, out);
  }
  void AllocateAll() {
    for (const AllocateMemory& asked : Of<AllocateMemory>()) {
      declarations.OnAllocated(asked.id, wire::RemoteRef{asked.id.value(), 0}, out);
    }
  }

  MemoryBudget budget{kGiB};
  TensorMemory memory{&config, &present, &budget};
  Declarations declarations{&config, &present, &attendance, &memory, &tensors, &counters};
};

TEST_CASE("Declarations: a declaration is answered when rounds are decided and its slots are there",
          "[aggregation]") {
  Fixture f;
  f.Declare(0, f.DeclareOf("t"));
  SECTION("The rounds are decided first") {
    f.declarations.AnswerAll(f.out);
    CHECK(f.Sent<wire::Declared>().empty());
    f.AllocateAll();
  }
  SECTION("The slots are allocated first") {
    f.AllocateAll();
    CHECK(f.Sent<wire::Declared>().empty());
    f.declarations.AnswerAll(f.out);
  }
  REQUIRE(f.Sent<wire::Declared>().size() == 1);
  CHECK(f.Sent<wire::Declared>()[0].first == f.Conn(0));
  CHECK(f.Sent<wire::Declared>()[0].second.status == wire::DeclaredStatus::kOk);
  // It is answered once.
  f.AllocateAll();
  CHECK(f.Sent<wire::Declared>().size() == 1);
}

TEST_CASE("Declarations: nobody is answered before there is memory for the result",
          "[aggregation]") {
  Fixture f;
  f.declarations.AnswerAll(f.out);
  f.Declare(0, f.DeclareOf("t"));
  f.Declare(1, f.DeclareOf("t"));
  const auto asked = f.Of<AllocateMemory>();
  REQUIRE(asked.size() == 3);
  REQUIRE_FALSE(asked[0].member.has_value());
  const auto come = [&f](const AllocateMemory& memory) {
    f.declarations.OnAllocated(memory.id, wire::RemoteRef{memory.id.value(), 0}, f.out);
  };
  come(asked[1]);
  CHECK(f.Sent<wire::Declared>().empty());
  come(asked[0]);  // Member 1's slots are still to come.
  REQUIRE(f.Sent<wire::Declared>().size() == 1);
  CHECK(f.Sent<wire::Declared>()[0].first == f.Conn(0));
  come(asked[2]);
  REQUIRE(f.Sent<wire::Declared>().size() == 2);
  CHECK(f.Sent<wire::Declared>()[1].first == f.Conn(1));
}

TEST_CASE("Declarations: all members that have declared a tensor hear that they disagree",
          "[aggregation]") {
  Fixture f;
  f.declarations.AnswerAll(f.out);
  f.Declare(0, f.DeclareOf("t", 4));
  f.Declare(1, f.DeclareOf("t", 5));
  CHECK(f.counters.tensors_poisoned == 1);
  const auto failed = f.Sent<wire::Failed>();
  REQUIRE(failed.size() == 2);
  CHECK(failed[0].first == f.Conn(0));
  CHECK(failed[1].first == f.Conn(1));
  CHECK(failed[0].second.code == wire::FailedCode::kMismatch);
  // Later members hear it too, in the next epoch as well.
  f.NextEpoch();
  f.EnterAll();
  f.declarations.OnView();
  f.Declare(0, f.DeclareOf("t", 4));
  CHECK(f.Sent<wire::Failed>().size() == 3);
}

TEST_CASE("Declarations: whoever asks again about a failed tensor is noticed", "[aggregation]") {
  Fixture f;
  f.declarations.AnswerAll(f.out);
  CHECK(f.Declare(0, f.DeclareOf("t", 4)));
  CHECK(f.Declare(0, f.DeclareOf("t", 5)));  // It is told now that the tensor has failed.
  CHECK(f.Declare(1, f.DeclareOf("t", 4)));
  CHECK_FALSE(f.Declare(0, f.DeclareOf("t", 4)));
  CHECK_FALSE(f.Declare(1, f.DeclareOf("t", 4)));
  CHECK(f.Sent<wire::Failed>().size() == 4);  // It is answered all the same.
  SECTION("A member asks once on each connection") {
    f.declarations.OnLost(MemberIndex{0});
    CHECK(f.Declare(0, f.DeclareOf("t", 4)));
  }
  SECTION("A member asks once in each epoch") {
    f.NextEpoch();
    f.EnterAll();
    f.declarations.OnView();
    CHECK(f.Declare(0, f.DeclareOf("t", 4)));
  }
  SECTION("A key that is not the name's") {
    wire::Declare other = f.DeclareOf("u");
    other.key = TensorKey{7};
    CHECK_FALSE(f.Declare(0, other));
  }
}

TEST_CASE("Declarations: names and groups take no more than they may", "[aggregation]") {
  Fixture f;
  f.config.record_bytes_max = 100;
  wire::Declare large = f.DeclareOf("large");
  for (uint32_t rank = 0; rank < 8; ++rank) large.group.push_back({NodeRank{0}, LocalRank{rank}});
  CHECK(f.Declare(0, large));
  CHECK(f.Sent<wire::Declared>().empty());
  wire::Declare other = large;
  other.name = "other";
  other.key = TensorKey{Fingerprint64(other.name)};
  CHECK(f.Declare(0, other));
  REQUIRE(f.Sent<wire::Declared>().size() == 1);
  CHECK(f.Sent<wire::Declared>()[0].second.status == wire::DeclaredStatus::kOverBudget);
  CHECK(f.Sent<wire::Declared>()[0].second.text ==
        "tensor 'other': job 'job' has tensors whose names and groups take 69 bytes at "
        "aggregator 'agg', and they may take 100 bytes: declare fewer tensors, or smaller groups");
  CHECK(f.tensors.size() == 1);
  CHECK(f.counters.declares_over_budget == 1);
  // The first tensor goes on, and smaller ones find room.
  CHECK(f.Declare(1, large));
  CHECK(f.Declare(0, f.DeclareOf("small")));
  CHECK(f.tensors.size() == 2);
  // So does why a tensor has failed, if it is short.
  f.declarations.OnFailed(MemberIndex{0}, {.key = large.key, .text = std::string(2000, 'x')},
                          f.out);
  REQUIRE(f.Sent<wire::Failed>().size() == 1);
  CHECK(f.Sent<wire::Failed>()[0].second.text == std::string(256, 'x'));
}

TEST_CASE("Declarations: the declarations of a lost connection are forgotten", "[aggregation]") {
  Fixture f;
  f.Declare(0, f.DeclareOf("t"));
  f.Declare(1, f.DeclareOf("t"));
  f.declarations.OnLost(MemberIndex{0});
  const AggregatorTensor& tensor = f.tensors.begin()->second;
  CHECK_FALSE(tensor.DeclaredBy(MemberIndex{0}));
  CHECK(tensor.DeclaredBy(MemberIndex{1}));
}

TEST_CASE("Declarations: a tensor fails when its memory is refused", "[aggregation]") {
  Fixture f;
  f.Declare(0, f.DeclareOf("t"));
  f.declarations.OnAllocationRefused(f.Of<AllocateMemory>()[0].id, "mmap says no", f.out);
  REQUIRE(f.Sent<wire::Declared>().size() == 1);
  CHECK(f.Sent<wire::Declared>()[0].second.status == wire::DeclaredStatus::kOverBudget);
  CHECK(f.Sent<wire::Declared>()[0].second.text.find("mmap says no") != std::string::npos);
}

}  // namespace
}  // namespace talweg::aggregation
