// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/slot_memory.h"

#include <cstdint>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/runtime/clock.h"
#include "libs/transport/libfabric/fabric_transport.h"

namespace talweg::aggregator {
namespace {

TEST_CASE("SlotPool: small memory shares registrations, and large memory has its own",
          "[aggregator]") {
  runtime::MonotonicClock clock;
  auto made = transport::NewFabricTransport({}, &clock, nullptr);
  REQUIRE(made.ok());
  SlotPool pool(made->get(), &AnonymousMemory());
  const auto a = pool.Allocate(100);
  const auto b = pool.Allocate(1);
  const auto large = pool.Allocate(10 * kMiB);
  const auto c = pool.Allocate(64);
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  REQUIRE(large.ok());
  REQUIRE(c.ok());
  CHECK(a->ref().key == b->ref().key);
  CHECK(b->bytes().data() == a->bytes().data() + 128);
  CHECK(c->ref().key == a->ref().key);
  CHECK_FALSE(large->ref().key == a->ref().key);
  CHECK(large->bytes().size() == 10 * kMiB);
  CHECK(a->Slice(10, 90).length == 90);
  CHECK_FALSE(pool.Allocate(uint64_t{1} << 62).ok());
}

}  // namespace
}  // namespace talweg::aggregator
