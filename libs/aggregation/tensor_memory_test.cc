// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/tensor_memory.h"

#include <memory>
#include <optional>
#include <string>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"

namespace talweg::aggregation {
namespace {

constexpr uint64_t kSlotBytes = 64;  // Four f32 fill a part of one slot.

struct Fixture : CoreParts {
  explicit Fixture(uint64_t budget_bytes = kGiB) : budget(budget_bytes) {}

  MemoryBudget budget;
  std::optional<TensorMemory> memory{std::in_place, &config, &present, &budget};
};

TEST_CASE("TensorMemory: a placed tensor has room for each member and the result",
          "[aggregation]") {
  Fixture f;
  AggregatorTensor& tensor = f.Declared("t");
  CHECK(f.memory->Place(tensor, f.out).empty());
  f.memory->EnsureSlots(tensor, MemberIndex{0}, f.out);
  f.memory->EnsureSlots(tensor, MemberIndex{0}, f.out);
  CHECK(tensor.reserved_bytes == 3 * kSlotBytes);
  CHECK(f.budget.used_bytes() == 3 * kSlotBytes);
  CHECK(f.memory->place().used_tensors() == 1);
  const auto asked = f.Of<AllocateMemory>();
  REQUIRE(asked.size() == 2);
  CHECK_FALSE(asked[0].member.has_value());
  CHECK(asked[1].member == f.view.members[0].id);
  const TensorMemory::Use* const use = f.memory->Find(asked[1].id);
  REQUIRE(use != nullptr);
  TensorMemory::OnAllocated(tensor, *use, wire::RemoteRef{3, 4});
  CHECK(tensor.slots.at(f.view.members[0].id).ref == wire::RemoteRef{3, 4});
  CHECK_FALSE(tensor.HasMemoryFor(f.view.members[0].id));
  TensorMemory::OnAllocated(tensor, *f.memory->Find(asked[0].id), {});
  CHECK(tensor.HasMemoryFor(f.view.members[0].id));
  CHECK_FALSE(tensor.HasMemoryFor(f.view.members[1].id));

  f.memory->ReleaseAll(tensor, f.out);
  CHECK(f.Of<ReleaseMemory>().size() == 2);
  CHECK(f.memory->Find(asked[1].id) == nullptr);
  CHECK(f.budget.used_bytes() == 0);
  CHECK_FALSE(tensor.Placed());
}

TEST_CASE("TensorMemory: slots of members that are gone, or do not want them, are released",
          "[aggregation]") {
  Fixture f;
  AggregatorTensor& tensor = f.Declared("t");
  REQUIRE(f.memory->Place(tensor, f.out).empty());
  f.memory->EnsureSlots(tensor, MemberIndex{0}, f.out);
  f.memory->EnsureSlots(tensor, MemberIndex{1}, f.out);
  tensor.declarations[0] = {};
  f.memory->ReleaseUnused(tensor, f.out);
  REQUIRE(f.Of<ReleaseMemory>().size() == 1);
  CHECK(tensor.slots.contains(f.view.members[1].id));

  f.view.members.pop_back();
  f.NextEpoch();
  f.memory->ReleaseDeparted(tensor, f.out);
  CHECK(tensor.slots.empty());
  CHECK(tensor.result != AllocationId{0});
  // No member wants the tensor, so its result goes, too.
  tensor.declarations.assign(1, {});
  f.memory->ReleaseUnused(tensor, f.out);
  CHECK(tensor.result == AllocationId{0});
  CHECK(f.Of<ReleaseMemory>().size() == 3);
}

TEST_CASE(
    "TensorMemory: a tensor without room reserves nothing, and the text says whose rule that is",
    "[aggregation]") {
  Fixture f(4 * kSlotBytes);
  AggregatorTensor& first = f.Declared("first");
  CHECK(f.memory->Place(first, f.out).empty());
  AggregatorTensor& second = f.Declared("second");
  const std::string of_all = f.memory->Place(second, f.out);
  CHECK(of_all.find("raise the aggregator's memory_bytes_max") != std::string::npos);
  CHECK(second.reserved_bytes == 0);
  CHECK(f.budget.used_bytes() == 3 * kSlotBytes);

  const auto tenant = std::make_shared<PlaceBudget>(view::PlaceLimit{.tensors_max = 1});
  f.memory->SetQuota({.tenant = "them"}, tenant);
  CHECK(tenant->used_tensors() == 1);
  const std::string of_tenant = f.memory->Place(second, f.out);
  CHECK(of_tenant.find("tenant 'them' has 1 of the tensors_max=1") != std::string::npos);

  f.memory.reset();
  CHECK(f.budget.used_bytes() == 0);
  CHECK(tenant->used_tensors() == 0);
}

}  // namespace
}  // namespace talweg::aggregation
