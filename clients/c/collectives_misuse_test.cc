// SPDX-License-Identifier: Apache-2.0

// Collectives whose ranks disagree or ask for what cannot be, and waits that end too soon.

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/collectives_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/collective.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

TEST_CASE("Ranks that disagree all get the same error, and go on") {
  const bool ranks_sum = GENERATE(false, true);
  PartsNode node(3, ranks_sum);
  constexpr size_t kCount = 10;
  const auto full = [](uint32_t) { return kCount; };
  const auto mismatch = [](Group& group, const std::string& first, const std::string& second) {
    std::vector<uint64_t> lengths(9);
    Part out(9 * kCount);
    for (uint32_t place = 0; place < group.size(); ++place) {
      CAPTURE(place);
      talweg_client* const member = group.member(place);
      const auto wait = [&](talweg_round round) {
        return place == 0
                   ? talweg_wait_lengths(member, group.tensor(), round, lengths.data(), kGenerousNs)
               : place == 1 ? talweg_wait_parts(member, group.tensor(), round, out.data(),
                                                out.size() * sizeof(int32_t), kGenerousNs)
                            : talweg_wait(member, group.tensor(), round, nullptr, kGenerousNs);
      };
      talweg_round round = 1;
      while (wait(round) == TALWEG_INVALID_ARGUMENT) ++round;
      CHECK(wait(round) == TALWEG_MISMATCH);  // It returns the same as before.
      CHECK_THAT(talweg_last_error(),
                 Contains("'t'") && Contains("round " + std::to_string(round)) &&
                     Contains("rank 0 has pushed " + first) && Contains(second));
      CHECK(talweg_ranks_summed(member, group.tensor()) == 0);
      const void* data = nullptr;
      uint64_t bytes = 0;
      CHECK(talweg_result(member, group.tensor(), round, &data, &bytes) != TALWEG_OK);
    }
    group.Next();
  };
  const auto good_round = [&](Group& group) {
    group.Push([](uint32_t, uint32_t) { return kCount; }, 5);
    group.TakeAll();
  };
  SECTION("Signatures differ already in the first round") {
    const Collective gather = Named("all_gather", kCount);
    Group group = node.World(gather);
    for (int twice = 0; twice < 2; ++twice) {
      group.PushOne(0, full, SignatureOf(gather, 100));
      group.PushOne(1, full, SignatureOf(gather, 100));
      group.PushOne(2, full, SignatureOf(Collective::Of(DType::kBF16, Op::kSum, 0), 7));
      mismatch(group, "i32 all_gather, rows of 100", "rank 2 has pushed bf16[7] sum");
      good_round(group);
    }
    group.PushOne(0, full, SignatureOf(gather, 100));
    group.PushOne(1, full);
    group.PushOne(2, full);
    mismatch(group, "i32 all_gather, rows of 100", "rank 1 has pushed without a signature");
    good_round(group);
  }
  SECTION("Lengths of parts that are combined differ") {
    Group group = node.World(Named(GENERATE("all_reduce", "reduce", "reduce_scatter"), kCount), 2);
    good_round(group);
    for (int twice = 0; twice < 2; ++twice) {
      group.PushOne(0, full);
      group.PushOne(1, [](uint32_t) { return size_t{4}; });
      group.PushOne(2, full);
      mismatch(group, "40 bytes", "rank 1 has pushed 16 bytes");
      good_round(group);
      // Only one part has another length.
      if (group.part_count() == 1) continue;
      group.PushOne(0, full);
      group.PushOne(1, full);
      group.PushOne(2, [](uint32_t part) { return part == 2 ? size_t{0} : kCount; });
      mismatch(group, "40 bytes", "rank 2 has pushed 0 bytes");
      good_round(group);
    }
  }
}

TEST_CASE("Ranks that sum agree on a mismatch with an agent that has seen it first") {
  PartsNode node(2, true);
  node.agent.HoldRounds();
  Group group = node.World(Named("all_reduce", 4));
  const auto full = [](uint32_t) { return size_t{4}; };
  for (int twice = 0; twice < 2; ++twice) {
    const int before = node.agent.seen().pushes;
    group.PushOne(0, full, 1);
    group.PushOne(1, full, 2);
    CHECK(talweg_poll(group.member(0), group.tensor(), 99) == TALWEG_INVALID_ARGUMENT);
    std::vector<talweg_status> statuses(2);
    std::thread agent([&] {
      node.agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == before + 2; });
      node.agent.AbortRound("t", shm::RankStatus::kMismatch, "they differ");
    });
    const talweg_round round = twice == 0 ? 1 : 3;
    for (uint32_t place = 0; place < 2; ++place) {
      statuses[place] =
          talweg_wait(group.member(place), group.tensor(), round, nullptr, kGenerousNs);
    }
    agent.join();
    CHECK(statuses == std::vector<talweg_status>(2, TALWEG_MISMATCH));
    group.Next();
    group.Push([](uint32_t, uint32_t) { return size_t{4}; }, 3);
    node.agent.ReleaseRounds();
    group.TakeAll();
    node.agent.HoldRounds();
  }
}

TEST_CASE("A declaration that makes no collective is refused with the reason") {
  PartsNode node(3, GENERATE(false, true));
  talweg_client* const client = node.clients[1].get();
  talweg_tensor tensor = 0;
  const auto declare = [&](const talweg_collective& c, const char* name = "x") {
    return talweg_declare_collective(client, name, &c, 0, kGenerousNs, &tensor);
  };
  talweg_collective good = ToC(Named("gather", 3), 2);
  talweg_collective c = good;
  const std::vector<uint32_t> ranks = {1, 2, 1, 7};
  c.ranks = ranks.data();
  std::string text;
  SECTION("There is no such combination") {
    c.gets = TALWEG_SHARE_COLUMN;
    text = "no collective that gives 3 and gets 5";
  }
  SECTION("A collective that copies has a sum") {
    c.op = TALWEG_SUM;
    text = "with operation 1";
  }
  SECTION("There are no such shares") {
    c.gets = static_cast<talweg_share>(258);
    text = "share 3 or 258";
  }
  SECTION("There is no such dtype") {
    c.dtype = static_cast<talweg_dtype>(257);
    text = "dtype 257";
  }
  SECTION("There is no such encoding") {
    c.encoding = static_cast<talweg_encoding>(99);
    text = "there is no encoding 99";
  }
  SECTION("An encoding that rounds, for what is copied") {
    c.encoding = TALWEG_AS_INT8;
    text = "the encoding int8 rounds, and is for sums and averages of f32, not for i32 copy";
  }
  SECTION("The encoding is out of range") {
    c.encoding = static_cast<talweg_encoding>(257);
    text = "encoding 257";
  }
  SECTION("Patience, for what is copied") {
    c.patience_ms = 20;
    text =
        "i32 gather cannot leave late ranks out; sums and averages of f32 and f64 to all ranks can";
  }
  SECTION("Patience is out of range") {
    c.patience_ms = 65536;
    text = "a patience of 65536 ms; it is at most 65535 ms";
  }
  SECTION("The struct is older") {
    c.struct_bytes = 0;
    text = "struct_bytes is not set";
  }
  SECTION("The group has no address") {
    c.rank_count = 2;
    c.ranks = nullptr;
    text = "`ranks` is NULL";
  }
  SECTION("The group is in another order") {
    c.rank_count = 3;
    text = "rank 1 after rank 2";
  }
  SECTION("The group lacks this rank") {
    c.rank_count = 1;
    c.ranks = ranks.data() + 1;
    text = "this rank, 1, is not in its group";
  }
  SECTION("The group has a rank that does not exist") {
    c.rank_count = 2;
    c.ranks = ranks.data() + 2;
    text = "rank 7 of its group does not exist: the job has 3 ranks";
  }
  SECTION("The root is outside the group") {
    c.rank_count = 2;
    c.root_rank = 0;
    text = "root rank 0 is not in its group of 2 ranks";
  }
  SECTION("The tensor is too large") {
    c.element_count = uint64_t{1} << 32;
    text = "16 GiB";
  }
  CHECK(declare(c) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains(text));
  CHECK(talweg_parts_given(client, 77) == 0);
  CHECK(talweg_parts_got(client, 77) == 0);
  // A name belongs to one tensor and one group.
  REQUIRE(declare(good) == TALWEG_OK);
  CHECK(declare(good) == TALWEG_OK);
  talweg_collective other = good;
  other.gets = TALWEG_SHARE_WHOLE;
  CHECK(declare(other) == TALWEG_MISMATCH);
  other = good;
  other.encoding = TALWEG_RUNS;
  CHECK(declare(other) == TALWEG_MISMATCH);
  other.struct_bytes =
      offsetof(talweg_collective, patience_ms);  // A version before 1.6 ends there.
  CHECK(declare(other) == TALWEG_OK);
  other = good;
  other.rank_count = 2;
  other.ranks = ranks.data();
  CHECK(declare(other) == TALWEG_MISMATCH);
}

TEST_CASE("A push with impossible lengths is refused, and nothing is pushed") {
  PartsNode node(2, GENERATE(false, true));
  Group group = node.World(Named("all_to_all", 4));
  const Part data(8);
  talweg_round round = 0;
  for (const std::vector<uint64_t>& lengths :
       {std::vector<uint64_t>{16, 20}, {16, 7}, {UINT64_MAX, 0}, {uint64_t{1} << 32, 0}}) {
    CHECK(talweg_push_parts(group.member(0), group.tensor(), data.data(), lengths.data(), 0, 0,
                            kGenerousNs, &round) == TALWEG_INVALID_ARGUMENT);
    CHECK_THAT(talweg_last_error(), Contains("at most 16 bytes, in elements of 4"));
  }
  const uint64_t one[] = {0, 1};
  CHECK(talweg_push_parts(group.member(0), group.tensor(), data.data(), one, 0, 0, kGenerousNs,
                          &round) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains(": 1 byte as number 1 of the 2 parts that this rank"));
  group.Push([](uint32_t place, uint32_t part) { return size_t{place + part} % 5; });
  group.TakeAll();
}

TEST_CASE("A wait that times out leaves the round open, whatever it waits for") {
  const bool ranks_sum = GENERATE(false, true);
  PartsNode node(2, ranks_sum);
  Group group = node.World(Named("all_gather", 8));
  for (int round = 0; round < 3; ++round) {
    const auto length = [&](uint32_t part) { return size_t{part + 1} * 2; };
    group.PushOne(1, length, 6);
    const auto number = static_cast<talweg_round>(round + 1);
    std::vector<uint64_t> lengths(2);
    Part out(16);
    for (const int64_t timeout_ns : {int64_t{0}, int64_t{1'000'000}}) {
      CHECK(talweg_wait_lengths(group.member(1), group.tensor(), number, lengths.data(),
                                timeout_ns) == TALWEG_TIMEOUT);
      CHECK(talweg_wait_parts(group.member(1), group.tensor(), number, out.data(), 64,
                              timeout_ns) == TALWEG_TIMEOUT);
    }
    talweg_round ignored = 0;
    CHECK(talweg_push_parts(group.member(1), group.tensor(), out.data(), nullptr, 6, 0, kGenerousNs,
                            &ignored) == TALWEG_BUSY);
    group.PushOne(0, length, 6);
    group.TakeAll();
  }
}

TEST_CASE("Ranks that see rounds complete compare them while the agent does nothing") {
  PartsNode node(3, true);
  Group group = node.World(Named("gather", 8), 1);
  group.Push([](uint32_t, uint32_t) { return size_t{8}; }, 1);
  group.TakeAll();
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 3; });
  node.agent.Pause();
  for (uint64_t round = 0; round < 5; ++round) {
    group.Push([&](uint32_t place, uint32_t) { return size_t{place + round} % 9; }, round);
    group.TakeAll();
    group.PushOne(
        0, [](uint32_t) { return size_t{8}; }, 1);
    group.PushOne(
        1, [](uint32_t) { return size_t{8}; }, 2);
    group.PushOne(
        2, [](uint32_t) { return size_t{8}; }, 2);
    for (uint32_t place = 0; place < 3; ++place) {
      CHECK(talweg_wait_parts(group.member(place), group.tensor(), 3 + 2 * round, nullptr, 0,
                              kGenerousNs) == TALWEG_MISMATCH);
    }
    group.Next();
  }
  node.agent.Resume();
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 33; });
  CHECK(node.agent.seen().counters.protocol_errors == 0);
}

}  // namespace
}  // namespace talweg::c
