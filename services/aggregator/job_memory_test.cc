// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/job_memory.h"

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/transport/loopback/loopback_transport.h"

namespace talweg::aggregator {
namespace {

using aggregation::AllocationId;

constexpr view::MemberIdentity kMember{NodeRank{0}, Incarnation{100}};

TEST_CASE("JobMemory: members and results have registrations of their own", "[aggregator]") {
  const auto network = transport::NewLoopbackNetwork();
  const auto transport = network->NewTransport();
  JobMemory memory(JobId{1}, transport.get(), &AnonymousMemory(), {});
  const auto slots =
      memory.Allocate({.id = AllocationId{1}, .member = kMember, .bytes = 100}, Epoch{1});
  const auto more =
      memory.Allocate({.id = AllocationId{2}, .member = kMember, .bytes = 100}, Epoch{1});
  const auto result = memory.Allocate({.id = AllocationId{3}, .bytes = 100}, Epoch{1});
  REQUIRE(slots.ok());
  REQUIRE(more.ok());
  REQUIRE(result.ok());
  CHECK(slots->key == more->key);
  CHECK(slots->key != result->key);
  CHECK(memory.held_bytes() == 300);
  CHECK_FALSE(memory.Of(AllocationId{0}).valid());

  // Inline bytes go to their place in the slots.
  const std::vector<std::byte> bytes(4, std::byte{7});
  memory.Store({.slots = AllocationId{1}, .offset_bytes = 8, .travel_bytes = 4}, bytes);
  CHECK(memory.Of(AllocationId{1}).bytes()[7] == std::byte{0});
  CHECK(std::memcmp(memory.Of(AllocationId{1}).bytes().data() + 8, bytes.data(), 4) == 0);

  // A reader of released memory keeps it.
  const SlotMemory kept = memory.Of(AllocationId{1});
  memory.Release(AllocationId{1});
  CHECK(memory.held_bytes() == 200);
  CHECK(kept.bytes()[8] == std::byte{7});
}

TEST_CASE("JobMemory: a member that comes back has another registration", "[aggregator]") {
  const auto network = transport::NewLoopbackNetwork();
  const auto transport = network->NewTransport();
  JobMemory memory(JobId{1}, transport.get(), &AnonymousMemory(), {});
  const auto first =
      memory.Allocate({.id = AllocationId{1}, .member = kMember, .bytes = 100}, Epoch{1});
  memory.ForgetPoolsBut({});
  const auto second =
      memory.Allocate({.id = AllocationId{2}, .member = kMember, .bytes = 100}, Epoch{2});
  CHECK(first->key != second->key);
}

}  // namespace
}  // namespace talweg::aggregator
