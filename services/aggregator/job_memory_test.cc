// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/job_memory.h"

#include <absl/status/statusor.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/transport/loopback/loopback_transport.h"

namespace talweg::aggregator {
namespace {

using aggregation::AllocationId;

constexpr view::MemberIdentity kMember{NodeRank{0}, Incarnation{100}};

// A job's memory, and where it has come.
struct Fixture {
  Fixture() {
    memory.SetOnAllocated([this](const aggregation::AllocateMemory& asked,
                                 const absl::StatusOr<wire::RemoteRef>& ref) {
      REQUIRE(ref.ok());
      refs[asked.id] = *ref;
    });
  }
  wire::RemoteRef Allocate(uint64_t id, std::optional<view::MemberIdentity> member, Epoch epoch) {
    memory.Allocate({.id = AllocationId{id}, .member = member, .bytes = 100}, epoch);
    return refs.at(AllocationId{id});
  }

  std::unique_ptr<transport::LoopbackNetwork> network = transport::NewLoopbackNetwork();
  std::unique_ptr<transport::Transport> transport = network->NewTransport();
  JobMemory memory{JobId{1}, transport.get(), &AnonymousMemory(), {}};
  std::map<AllocationId, wire::RemoteRef> refs;
};

TEST_CASE("JobMemory: members and results have registrations of their own", "[aggregator]") {
  Fixture f;
  JobMemory& memory = f.memory;
  const wire::RemoteRef slots = f.Allocate(1, kMember, Epoch{1});
  const wire::RemoteRef more = f.Allocate(2, kMember, Epoch{1});
  const wire::RemoteRef result = f.Allocate(3, std::nullopt, Epoch{1});
  CHECK(slots.key == more.key);
  CHECK(slots.key != result.key);
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
  Fixture f;
  const wire::RemoteRef first = f.Allocate(1, kMember, Epoch{1});
  f.memory.ForgetPoolsBut({});
  CHECK(first.key != f.Allocate(2, kMember, Epoch{2}).key);
}

// Keeps what is asked for.
class LateSource final : public MemorySource {
 public:
  void Map(size_t /*bytes*/, std::weak_ptr<const void> /*wanted*/, Then then) override {
    asked.push_back(std::move(then));
  }
  std::vector<Then> asked;
};

TEST_CASE("JobMemory: memory that is released before it comes is not told of", "[aggregator]") {
  const auto network = transport::NewLoopbackNetwork();
  const auto transport = network->NewTransport();
  LateSource source;
  JobMemory memory(JobId{1}, transport.get(), &source, {});
  std::vector<std::pair<uint64_t, bool>> told;
  memory.SetOnAllocated([&told](const aggregation::AllocateMemory& asked,
                                const absl::StatusOr<wire::RemoteRef>& ref) {
    told.emplace_back(asked.id.value(), ref.ok());
  });
  memory.Allocate({.id = AllocationId{1}, .member = kMember, .bytes = 100}, Epoch{1});
  memory.Allocate({.id = AllocationId{2}, .member = kMember, .bytes = 100}, Epoch{1});
  memory.Allocate({.id = AllocationId{3}, .bytes = 100}, Epoch{1});
  REQUIRE(source.asked.size() == 2);
  CHECK(memory.held_bytes() == 300);
  memory.Release(AllocationId{1});
  source.asked[0](MapAnonymous(256 * 1024, std::make_shared<int>()));
  source.asked[1](absl::ResourceExhaustedError("no memory"));
  CHECK(told == std::vector<std::pair<uint64_t, bool>>{{2, true}, {3, false}});
}

}  // namespace
}  // namespace talweg::aggregator
