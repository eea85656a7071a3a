// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/slot_memory.h"

#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/runtime/clock.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/loopback/loopback_transport.h"

namespace talweg::aggregator {
namespace {

// What became of memory that is not to come any more.
absl::Status OutcomeOf(SlotMemory memory) {
  absl::Status outcome = absl::UnknownError("it is still to come");
  memory.WhenMapped([&outcome](const absl::Status& status) { outcome = status; });
  return outcome;
}

TEST_CASE("SlotPool: small memory shares registrations, and large memory has its own",
          "[aggregator]") {
  runtime::MonotonicClock clock;
  auto made = transport::NewFabricTransport({}, &clock, nullptr);
  REQUIRE(made.ok());
  SlotPool pool(made->get(), &AnonymousMemory());
  const SlotMemory a = pool.Allocate(100);
  const SlotMemory b = pool.Allocate(1);
  const SlotMemory large = pool.Allocate(10 * kMiB);
  const SlotMemory c = pool.Allocate(64);
  CHECK(a.ref().key == b.ref().key);
  CHECK(b.bytes().data() == a.bytes().data() + 128);
  CHECK(c.ref().key == a.ref().key);
  CHECK_FALSE(large.ref().key == a.ref().key);
  CHECK(large.bytes().size() == 10 * kMiB);
  CHECK(a.Slice(10, 90).length == 90);
  CHECK(OutcomeOf(pool.Allocate(uint64_t{1} << 62)).code() == absl::StatusCode::kResourceExhausted);
}

// Maps when the test says so.
class LateSource final : public MemorySource {
 public:
  void Map(size_t bytes, std::weak_ptr<const void> wanted, Then then) override {
    asked.push_back({bytes, std::move(wanted), std::move(then)});
  }
  void Come(size_t place) {
    asked.at(place).then(MapAnonymous(asked.at(place).bytes, asked.at(place).wanted));
  }

  struct Asked {
    size_t bytes;
    std::weak_ptr<const void> wanted;
    Then then;
  };
  std::vector<Asked> asked;
};

TEST_CASE("SlotPool: memory that comes later comes to all who share it", "[aggregator]") {
  const auto network = transport::NewLoopbackNetwork();
  const auto transport = network->NewTransport();
  LateSource source;
  auto pool = std::make_optional<SlotPool>(transport.get(), &source);
  std::vector<std::string> come;
  const auto says = [&come](const std::string& who) {
    return [&come, who](const absl::Status& status) {
      come.push_back(who + (status.ok() ? "" : ": " + std::string(status.message())));
    };
  };
  SlotMemory first = pool->Allocate(100);
  SlotMemory second = pool->Allocate(200);
  first.WhenMapped(says("first"));
  second.WhenMapped(says("second"));
  REQUIRE(source.asked.size() == 1);
  CHECK(second.size() == 200);
  CHECK(come.empty());
  source.Come(0);
  CHECK(come == std::vector<std::string>{"first", "second"});
  CHECK(second.ref().key == first.ref().key);

  // A mapping that could not be made is not shared any further.
  come.clear();
  SlotMemory large = pool->Allocate(kMiB);
  large.WhenMapped(says("large"));
  source.asked.at(1).then(absl::ResourceExhaustedError("no memory"));
  large.WhenMapped(says("late"));
  CHECK(come == std::vector<std::string>{"large: no memory", "late: no memory"});

  // Nobody waits for what is released, and a mapping may come after the pool's end.
  SlotMemory released = pool->Allocate(2 * kMiB);
  CHECK_FALSE(source.asked.at(2).wanted.expired());
  released = {};
  CHECK(source.asked.at(2).wanted.expired());
  SlotMemory kept = pool->Allocate(3 * kMiB);
  pool.reset();
  source.Come(2);
  source.Come(3);
  CHECK(kept.bytes().size() == 3 * kMiB);
}

}  // namespace
}  // namespace talweg::aggregator
