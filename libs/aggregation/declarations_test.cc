// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/declarations.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"

namespace talweg::aggregation {
namespace {

struct Fixture : CoreParts {
  Fixture() {
    EnterAll();
    declarations.OnView();
  }
  void Declare(uint32_t member, const wire::Declare& declare) {
    declarations.OnDeclare(Conn(member), MemberIndex{member}, declare, out);
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
