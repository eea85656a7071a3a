// SPDX-License-Identifier: Apache-2.0

// Parts that lie apart, a part that its giver gets itself, and whole calls in one round. The agent
// sums, or the ranks do.

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg_exchange.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;
using Part = std::vector<int32_t>;

struct Node {
  Node(uint32_t ranks, bool ranks_sum)
      : agent(ranks_sum ? SummingOptions(directory, ranks) : AgentOptions(directory, ranks)) {
    for (uint32_t i = 0; i < ranks; ++i) clients.emplace_back(agent.socket_path(), i);
  }
  talweg_tensor Declare(talweg_share gives, talweg_share gets, uint64_t count,
                        talweg_dtype dtype = TALWEG_I32, talweg_op op = TALWEG_BROADCAST) {
    talweg_collective c{};
    c.struct_bytes = sizeof(c);
    c.dtype = dtype;
    c.op = op;
    c.gives = gives;
    c.gets = gets;
    c.element_count = count;
    talweg_tensor tensor = 0;
    const std::string name = "t" + std::to_string(declared++);
    for (const TestClient& client : clients) {
      REQUIRE(talweg_declare_collective(client.get(), name.c_str(), &c, 0, kGenerousNs, &tensor) ==
              TALWEG_OK);
    }
    return tensor;
  }
  talweg_client* rank(uint32_t i) const { return clients[i].get(); }
  uint32_t size() const { return static_cast<uint32_t>(clients.size()); }

  TestDirectory directory;
  FakeAgent agent;
  std::vector<TestClient> clients;
  int declared = 0;
};

int32_t Value(uint32_t giver, uint32_t getter, uint32_t i, int round) {
  return static_cast<int32_t>(10'000'000 * round + 1'000'000 * giver + 100'000 * getter + i);
}

// The places of a rank's parts, each with other memory before and after it.
struct Apart {
  Apart(uint32_t parts, uint32_t count) : memory(parts, Part(count + 2, -1)) {
    for (Part& part : memory) {
      places.push_back(part.data() + 1);
      lengths.push_back(count * sizeof(int32_t));
    }
  }
  bool EdgesAreWhole() const {
    for (const Part& part : memory) {
      if (part.front() != -1 || part.back() != -1) return false;
    }
    return true;
  }
  std::vector<Part> memory;
  std::vector<void*> places;
  std::vector<uint64_t> lengths;
};

TEST_CASE("Parts come from their own places, and go to the caller's places") {
  const bool ranks_sum = GENERATE(false, true);
  const bool knows_place = GENERATE(false, true);
  // Some are small, and some are large enough to be copied around the caches.
  const uint32_t count = GENERATE(5u, 40'001u);
  Node node(3, ranks_sum);
  const uint32_t n = node.size();
  const talweg_tensor all_to_all = node.Declare(TALWEG_SHARE_ROW, TALWEG_SHARE_COLUMN, count);
  const talweg_tensor gather = node.Declare(TALWEG_SHARE_OWN, TALWEG_SHARE_WHOLE, count);
  CHECK(talweg_parts_held(node.rank(0), all_to_all) == (ranks_sum ? n : n * n));
  CHECK(talweg_parts_held(node.rank(0), gather) == (ranks_sum ? 1 : n));
  CHECK(talweg_parts_held(node.rank(0), 77) == 0);
  for (const talweg_tensor tensor : {all_to_all, gather}) {
    const uint32_t given = tensor == gather ? 1 : n;
    for (int round = 1; round <= 4; ++round) {
      std::vector<Apart> in(n, Apart(given, count));
      std::vector<Apart> out(n, Apart(n, count));
      std::vector<talweg_round> rounds(n);
      for (uint32_t r = 0; r < n; ++r) {
        for (uint32_t part = 0; part < given; ++part) {
          for (uint32_t i = 0; i < count; ++i) {
            in[r].memory[part][i + 1] = Value(r, given == 1 ? 0 : part, i, round);
          }
        }
        // Finds the places anew, because an Apart that was copied has other ones.
        for (uint32_t part = 0; part < given; ++part) {
          in[r].places[part] = in[r].memory[part].data() + 1;
        }
        for (uint32_t part = 0; part < n; ++part) {
          out[r].places[part] = out[r].memory[part].data() + 1;
        }
        REQUIRE(talweg_push_places(node.rank(r), tensor, in[r].places.data(), in[r].lengths.data(),
                                   knows_place ? out[r].places[r] : nullptr, 0, 0, kGenerousNs,
                                   &rounds[r]) == TALWEG_OK);
        // The caller may change what it gave.
        for (Part& part : in[r].memory) std::fill(part.begin(), part.end(), -2);
      }
      for (uint32_t r = 0; r < n; ++r) {
        REQUIRE(talweg_wait_places(node.rank(r), tensor, rounds[r], out[r].places.data(),
                                   out[r].lengths.data(), kGenerousNs) == TALWEG_OK);
        CHECK(out[r].EdgesAreWhole());
        for (uint32_t giver = 0; giver < n; ++giver) {
          Part wanted(count + 2, -1);
          for (uint32_t i = 0; i < count; ++i) {
            wanted[i + 1] = Value(giver, given == 1 ? 0 : r, i, round);
          }
          CHECK((out[r].memory[giver] == wanted));
        }
      }
    }
  }
}

TEST_CASE("A rank's own part may already lie in its result, or in the way") {
  Node node(2, GENERATE(false, true));
  constexpr uint32_t kCount = 20'000;
  const uint64_t bytes = kCount * sizeof(int32_t);
  const talweg_tensor tensor = node.Declare(TALWEG_SHARE_ROW, TALWEG_SHARE_COLUMN, kCount);
  // The result overwrites the input. With a `shift`, the rank's own part is not at its final place.
  const uint32_t shift = GENERATE(0u, 7u, 10'000u);
  std::vector<Part> memory;
  std::vector<talweg_round> rounds(2);
  for (uint32_t r = 0; r < 2; ++r) {
    memory.emplace_back(2 * kCount + shift);
    std::iota(memory[r].begin(), memory[r].end(), static_cast<int32_t>(1'000'000 * r));
    const void* const in[] = {memory[r].data(), memory[r].data() + kCount};
    const uint64_t lengths[] = {bytes, bytes};
    REQUIRE(talweg_push_places(node.rank(r), tensor, in, lengths,
                               memory[r].data() + shift + r * kCount, 0, 0, kGenerousNs,
                               &rounds[r]) == TALWEG_OK);
  }
  for (uint32_t r = 0; r < 2; ++r) {
    void* const out[] = {memory[r].data() + shift, memory[r].data() + shift + kCount};
    const uint64_t rooms[] = {bytes, bytes};
    REQUIRE(talweg_wait_places(node.rank(r), tensor, rounds[r], out, rooms, kGenerousNs) ==
            TALWEG_OK);
    for (uint32_t giver = 0; giver < 2; ++giver) {
      Part wanted(kCount);
      std::iota(wanted.begin(), wanted.end(), static_cast<int32_t>(1'000'000 * giver + r * kCount));
      const auto* const got = memory[r].data() + shift + giver * kCount;
      CHECK(std::memcmp(got, wanted.data(), bytes) == 0);
    }
  }
}

TEST_CASE("A place with too little room leaves the round open") {
  Node node(2, GENERATE(false, true));
  const talweg_tensor tensor = node.Declare(TALWEG_SHARE_OWN, TALWEG_SHARE_WHOLE, 8);
  Part data(8, 3);
  const void* const in[] = {data.data()};
  const uint64_t length = 12;
  talweg_round round = 0;
  for (uint32_t r = 0; r < 2; ++r) {
    REQUIRE(talweg_push_places(node.rank(r), tensor, in, &length, nullptr, 0, 0, kGenerousNs,
                               &round) == TALWEG_OK);
  }
  Part first(8, -1);
  Part second(8, -1);
  void* const out[] = {first.data(), second.data()};
  const uint64_t little[] = {12, 8};
  CHECK(talweg_wait_places(node.rank(0), tensor, round, out, little, kGenerousNs) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("12 bytes") && Contains("room for 8"));
  CHECK((second == Part(8, -1)));
  const uint64_t enough[] = {12, 12};
  REQUIRE(talweg_wait_places(node.rank(0), tensor, round, out, enough, kGenerousNs) == TALWEG_OK);
  CHECK((second == Part{3, 3, 3, -1, -1, -1, -1, -1}));
  CHECK(talweg_wait_places(node.rank(1), tensor, round, nullptr, nullptr, kGenerousNs) ==
        TALWEG_INVALID_ARGUMENT);
}

// A call of `ranks` that all have the same `words`.
struct Exchange {
  Exchange(std::string said, const void* data, uint64_t data_bytes, uint64_t all_bytes)
      : words(std::move(said)), all(all_bytes) {
    call.struct_bytes = sizeof(call);
    call.words = words.data();
    call.word_bytes = words.size();
    call.data = data;
    call.data_bytes = data_bytes;
    call.all = all.data();
    call.all_bytes = all.size();
    call.op = TALWEG_BROADCAST;
    call.dtype = TALWEG_F32;
  }
  std::string words;
  std::vector<char> all;
  talweg_exchange_call call{};
};

TEST_CASE("A whole call is one round if all ranks have the same words") {
  const bool ranks_sum = GENERATE(false, true);
  Node node(3, ranks_sum);
  const talweg_tensor tensor = node.Declare(TALWEG_SHARE_OWN, TALWEG_SHARE_WHOLE, 4096, TALWEG_U8);
  const talweg_tensor sums =
      node.Declare(TALWEG_SHARE_WHOLE, TALWEG_SHARE_WHOLE, 100, TALWEG_F32, TALWEG_AVERAGE);
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<std::vector<float>> data(3, std::vector<float>(100));
    std::vector<std::vector<float>> out(3, std::vector<float>(300, -1));
    std::vector<std::vector<float>> expected(3, std::vector<float>(100));
    std::vector<std::thread> threads;
    std::vector<talweg_status> statuses(3, TALWEG_INTERNAL);
    std::vector<int> alike(3, -1);
    const bool combines = ranks_sum && repeat % 2 == 1;
    for (uint32_t r = 0; r < 3; ++r) {
      for (uint32_t i = 0; i < 100; ++i) {
        data[r][i] = 0.1f * static_cast<float>(r + 1) + 1e7f / static_cast<float>(i + 1 + repeat);
      }
      threads.emplace_back([&, r] {
        Exchange exchange("a call of any", data[r].data(), 400, 2000);
        exchange.call.out = out[r].data();
        // The halves of two ranks, or the last elements of an average.
        exchange.call.offset = combines ? 40 : 200;
        exchange.call.bytes = combines ? 360 : 200;
        if (combines) exchange.call.op = TALWEG_AVERAGE;
        talweg_round round = 0;
        statuses[r] =
            talweg_exchange(node.rank(r), tensor, &exchange.call, kGenerousNs, &round, &alike[r]);
        talweg_push_pull(node.rank(r), sums, data[r].data(), 0, kGenerousNs, &round);
        talweg_wait(node.rank(r), sums, round, expected[r].data(), kGenerousNs);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t r = 0; r < 3; ++r) {
      CHECK(statuses[r] == TALWEG_OK);
      CHECK(alike[r] == 1);
      if (combines) {
        // The bits are those of the tensor that the ranks sum.
        CHECK(std::memcmp(out[r].data(), expected[r].data() + 10, 360) == 0);
        CHECK(out[r][90] == -1);
        continue;
      }
      for (uint32_t giver = 0; giver < 3; ++giver) {
        CHECK(std::memcmp(out[r].data() + giver * 50, data[giver].data() + 50, 200) == 0);
      }
      CHECK(out[r][150] == -1);
    }
  }
}

TEST_CASE("Ranks with different words see all of them, and none gets a result") {
  Node node(2, GENERATE(false, true));
  const talweg_tensor tensor = node.Declare(TALWEG_SHARE_OWN, TALWEG_SHARE_WHOLE, 4096, TALWEG_U8);
  const std::vector<float> data(10, 2);
  const std::string other = GENERATE("a CALL", "another call");
  std::vector<float> out(20, -1);
  std::vector<std::thread> threads;
  std::vector<int> alike(2, -1);
  std::vector<std::string> said(2);
  for (uint32_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Exchange exchange(r == 0 ? "a call" : other, data.data(), 40, 1000);
      exchange.call.out = out.data() + 10 * r;
      exchange.call.bytes = 20;
      talweg_round round = 0;
      talweg_exchange(node.rank(r), tensor, &exchange.call, kGenerousNs, &round, &alike[r]);
      said[r].assign(exchange.all.data() + 46, other.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK((alike == std::vector<int>{0, 0}));
  CHECK((out == std::vector<float>(20, -1)));
  CHECK((said == std::vector<std::string>{other, other}));
}

TEST_CASE("A call that times out can be waited for and finished like any round") {
  Node node(2, GENERATE(false, true));
  const talweg_tensor tensor = node.Declare(TALWEG_SHARE_OWN, TALWEG_SHARE_WHOLE, 4096, TALWEG_U8);
  const std::vector<float> data(10, 2);
  std::vector<float> out(20, -1);
  Exchange first("words", data.data(), 40, 1000);
  first.call.out = out.data();
  first.call.bytes = 40;
  talweg_round round = 0;
  int alike = -1;
  CHECK(talweg_exchange(node.rank(0), tensor, &first.call, 1'000'000, &round, &alike) ==
        TALWEG_TIMEOUT);
  CHECK(alike == 0);
  CHECK(round == 1);
  Exchange second = first;
  second.call.words = second.words.data();
  second.call.all = second.all.data();
  talweg_round other = 0;
  REQUIRE(talweg_exchange(node.rank(1), tensor, &second.call, kGenerousNs, &other, &alike) ==
          TALWEG_OK);
  CHECK(alike == 1);
  REQUIRE(talweg_wait_parts(node.rank(0), tensor, round, first.all.data(), first.all.size(),
                            kGenerousNs) == TALWEG_OK);
  std::fill(out.begin(), out.end(), -1.0f);
  first.call.data = nullptr;
  REQUIRE(talweg_finish_exchange(node.rank(0), tensor, &first.call, &alike) == TALWEG_OK);
  CHECK(alike == 1);
  CHECK((out == std::vector<float>(20, 2)));
}

TEST_CASE("A call that cannot be made is refused, and nothing is pushed") {
  Node node(1, false);
  const talweg_tensor tensor = node.Declare(TALWEG_SHARE_OWN, TALWEG_SHARE_WHOLE, 4096, TALWEG_U8);
  const std::vector<char> data(20'000);
  std::vector<char> out(20'000);
  Exchange exchange("words", data.data(), 40, 4096);
  exchange.call.out = out.data();
  exchange.call.bytes = 40;
  std::string text;
  SECTION("The call is too large") {
    exchange.call.data_bytes = TALWEG_EXCHANGE_BYTES_MAX;
    text = "TALWEG_EXCHANGE_BYTES_MAX";
  }
  SECTION("It asks for more than is given") {
    exchange.call.offset = 8;
    text = "outside of the data";
  }
  SECTION("There is no data") {
    exchange.call.data = nullptr;
    text = "`data` is NULL";
  }
  SECTION("There is no place for the result") {
    exchange.call.out = nullptr;
    text = "`out` is NULL";
  }
  SECTION("There is no such reduction") {
    exchange.call.op = static_cast<talweg_op>(99);
    text = "no such reduction";
  }
  SECTION("The bytes are not a number of whole elements") {
    exchange.call.op = TALWEG_SUM;
    exchange.call.bytes = 39;
    text = "whole elements";
  }
  SECTION("The struct is too short") {
    exchange.call.struct_bytes = 8;
    text = "struct_bytes";
  }
  talweg_round round = 7;
  int alike = 0;
  CHECK(talweg_exchange(node.rank(0), tensor, &exchange.call, kGenerousNs, &round, &alike) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains(text));
  // The tensor's first round is still to come.
  Exchange good("words", data.data(), 40, 4096);
  good.call.out = out.data();
  good.call.bytes = 40;
  REQUIRE(talweg_exchange(node.rank(0), tensor, &good.call, kGenerousNs, &round, &alike) ==
          TALWEG_OK);
  CHECK(round == 1);
  CHECK(alike == 1);
}

TEST_CASE("Only ranks that read each other's contributions combine them") {
  Node node(2, false);
  const talweg_tensor tensor = node.Declare(TALWEG_SHARE_OWN, TALWEG_SHARE_WHOLE, 4096, TALWEG_U8);
  const std::vector<float> data(10);
  std::vector<float> out(10);
  Exchange exchange("words", data.data(), 40, 4096);
  exchange.call.out = out.data();
  exchange.call.bytes = 40;
  exchange.call.op = TALWEG_SUM;
  talweg_round round = 0;
  int alike = 0;
  CHECK(talweg_exchange(node.rank(0), tensor, &exchange.call, kGenerousNs, &round, &alike) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("only the ranks of one node"));
}

}  // namespace
}  // namespace talweg::c
