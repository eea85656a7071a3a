// SPDX-License-Identifier: Apache-2.0
// Tensors that the ranks of a node sum over their own contributions.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/in_place_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/layout/rank_sums.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;
using shm::InPlaceLine;

TEST_CASE("In place: every rank finds the same bits where its contribution was") {
  const size_t count = GENERATE(size_t{1}, size_t{1001}, size_t{32'768}, size_t{300'001});
  const uint32_t ranks = GENERATE(1, 2, 3);
  const Node node(ranks, count, TALWEG_F32, TALWEG_AVERAGE);
  std::vector<const void*> first;
  for (const TestClient& client : node.clients) {
    CHECK(talweg_sums_in_place(client.get(), node.tensor) == 1);
    first.push_back(talweg_contribution(client.get(), node.tensor));
  }
  for (talweg_round round = 1; round <= 4; ++round) {
    std::vector<float> expected(count);
    for (uint32_t i = 0; i < ranks; ++i) {
      const std::span<float> own = Buffer<float>(node.clients[i], node.tensor);
      CHECK(own.data() == first[i]);
      for (size_t k = 0; k < count; ++k) {
        own[k] = std::ldexp(static_cast<float>(i + k % 77 + round), 9 * static_cast<int>(i));
        expected[k] += own[k];
      }
      // Half of the pushes come from the buffer, and half are copied there.
      const std::vector<float> apart(own.begin(), own.end());
      if ((round + i) % 2 == 0) std::fill(own.begin(), own.end(), -1.0f);
      const void* data = (round + i) % 2 == 0 ? apart.data() : nullptr;
      CHECK(Push(node.clients[i], node.tensor, data) == round);
    }
    for (float& value : expected) value /= static_cast<float>(ranks);
    for (uint32_t i = 0; i < ranks; ++i) {
      const TestClient& client = node.clients[(i + round) % ranks];
      const std::span<float> own = Buffer<float>(client, node.tensor);
      if (round == 4) {
        // The result can also be copied to memory of the caller's.
        CHECK((Take<float>(client, node.tensor, round, count) == expected));
      } else {
        void* out = round == 3 ? own.data() : nullptr;
        REQUIRE(talweg_wait(client.get(), node.tensor, round, out, kGenerousNs) == TALWEG_OK);
      }
      CHECK((std::vector<float>(own.begin(), own.end()) == expected));
      const void* result = nullptr;
      uint64_t bytes = 0;
      REQUIRE(talweg_result(client.get(), node.tensor, round, &result, &bytes) == TALWEG_OK);
      CHECK((result == own.data() && bytes == own.size_bytes()));
      CHECK(talweg_ranks_summed(client.get(), node.tensor) == ranks);
    }
  }
}

TEST_CASE("In place: the bits are those of a sum into other memory") {
  constexpr size_t kCount = 70'001;
  const talweg_op op = GENERATE(TALWEG_AVERAGE, TALWEG_SUM, TALWEG_MIN);
  const Node node(3, kCount, TALWEG_BF16, op);
  talweg_tensor apart = 0;
  for (const TestClient& client : node.clients) {
    apart = Declare(client, kCount, TALWEG_BF16, op, 0, "apart");
  }
  for (uint32_t i = 0; i < 3; ++i) {
    std::vector<uint16_t> values(kCount);  // There are infinities and NaNs among them.
    for (size_t k = 0; k < kCount; ++k) values[k] = static_cast<uint16_t>(k * 40'503 + i * 977);
    Push(node.clients[i], node.tensor, values.data());
    Push(node.clients[i], apart, values.data());
  }
  const std::vector<uint16_t> expected = Take<uint16_t>(node.clients[0], apart, 1, kCount);
  for (const TestClient& client : node.clients) {
    CHECK((Take<uint16_t>(client, node.tensor, 1, kCount) == expected));
  }
}

TEST_CASE("In place: every rank gets the root's bytes in a broadcast") {
  constexpr size_t kCount = 40'000;
  const Node node(3, kCount, TALWEG_I32, TALWEG_BROADCAST, 1);
  for (int32_t i = 0; i < 3; ++i) {
    const std::vector<int32_t> values(kCount, 10 + i);
    Push(node.clients[static_cast<size_t>(i)], node.tensor, values.data());
  }
  for (const TestClient& client : node.clients) {
    CHECK((Take<int32_t>(client, node.tensor, 1, kCount) == std::vector<int32_t>(kCount, 11)));
  }
}

TEST_CASE("In place: a rank that has its result may overwrite it at once") {
  const uint32_t ranks = GENERATE(2, 3);
  constexpr size_t kCount = 300'003;
  constexpr talweg_round kRounds = 60;
  const Node node(ranks, kCount);
  std::vector<std::thread> threads;
  std::vector<talweg_round> right(ranks);
  for (uint32_t i = 0; i < ranks; ++i) {
    threads.emplace_back([&, i] {
      const TestClient& client = node.clients[i];
      const std::span<int32_t> data = Buffer(client, node.tensor);
      for (talweg_round r = 1; r <= kRounds; ++r) {
        for (size_t k = 0; k < kCount; ++k) data[k] = static_cast<int32_t>(k * (i + 1) ^ r);
        talweg_round pushed = 0;
        if (talweg_push_pull(client.get(), node.tensor, nullptr, 0, kGenerousNs, &pushed) !=
                TALWEG_OK ||
            talweg_wait(client.get(), node.tensor, r, nullptr, kGenerousNs) != TALWEG_OK) {
          return;
        }
        bool same = true;
        // It begins with the piece that was done last.
        for (size_t k = kCount; k-- > 0;) {
          int32_t sum = 0;
          for (uint32_t j = 0; j < ranks; ++j) sum += static_cast<int32_t>(k * (j + 1) ^ r);
          same = same && data[k] == sum;
        }
        right[i] += same;
        std::memset(data.data(), 0xff, data.size_bytes());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i < ranks; ++i) CHECK(right[i] == kRounds);
}

TEST_CASE("In place: several threads wait for one round") {
  constexpr size_t kCount = 700'003;
  const Node node(2, kCount);
  for (talweg_round round = 1; round <= 5; ++round) {
    const std::vector<int32_t> ones(kCount, 1), twos(kCount, 2);
    Push(node.clients[0], node.tensor, ones.data());
    Push(node.clients[1], node.tensor, twos.data());
    std::vector<talweg_status> statuses(6, TALWEG_INTERNAL);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < statuses.size(); ++i) {
      threads.emplace_back([&, i] {
        statuses[i] =
            talweg_wait(node.clients[i % 2].get(), node.tensor, round, nullptr, kGenerousNs);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(statuses == std::vector<talweg_status>(6, TALWEG_OK));
    for (const TestClient& client : node.clients) {
      const std::span<int32_t> own = Buffer(client, node.tensor);
      CHECK((std::vector<int32_t>(own.begin(), own.end()) == std::vector<int32_t>(kCount, 3)));
    }
  }
}

TEST_CASE("In place: nobody needs a rank that has pushed and does not wait") {
  constexpr size_t kCount = 300'000;
  const Node node(2, kCount);
  const TestClient& slow = node.clients[0];
  const TestClient& fast = node.clients[1];
  Push(slow, node.tensor, std::vector<int32_t>(kCount, 1).data());
  Push(fast, node.tensor, std::vector<int32_t>(kCount, 2).data());
  CHECK((Take<int32_t>(fast, node.tensor, 1, kCount) == std::vector<int32_t>(kCount, 3)));
  Push(fast, node.tensor, std::vector<int32_t>(kCount, 7).data());  // This is one round ahead.
  CHECK((Take<int32_t>(slow, node.tensor, 1, kCount) == std::vector<int32_t>(kCount, 3)));
  Push(slow, node.tensor, std::vector<int32_t>(kCount, 5).data());
  CHECK((Take<int32_t>(slow, node.tensor, 2, kCount) == std::vector<int32_t>(kCount, 12)));
  CHECK((Take<int32_t>(fast, node.tensor, 2, kCount) == std::vector<int32_t>(kCount, 12)));
}

TEST_CASE("In place: a rank in the middle of a piece is waited for, but not for ever") {
  constexpr size_t kCount = 100'000;  // Four pieces.
  constexpr uint64_t kPieces = 4;
  const Node node(2, kCount);
  for (const TestClient& client : node.clients) {
    Push(client, node.tensor, std::vector<int32_t>(kCount, 1).data());
  }
  const TestClient& waiter = node.clients[1];
  while (talweg_poll(waiter.get(), node.tensor, 1) == TALWEG_PENDING) std::this_thread::yield();
  // This looks as if rank 0 had been stopped in the middle of the first piece.
  InPlaceLine& line = node.Line();
  line.begun = InPlaceLine::Pack(1, 1);
  REQUIRE(talweg_wait(waiter.get(), node.tensor, 1, nullptr, 0) == TALWEG_TIMEOUT);
  CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("round 1") && Contains("again"));
  CHECK(InPlaceLine::Pieces(line.begun, 1) == kPieces);
  CHECK(InPlaceLine::Pieces(line.done, 1) == kPieces - 1);
  CHECK(Buffer(waiter, node.tensor)[kCount - 1] == 2);
  talweg_round ignored = 0;
  CHECK(talweg_push_pull(waiter.get(), node.tensor, nullptr, 0, kGenerousNs, &ignored) ==
        TALWEG_BUSY);
  SECTION("The rank goes on") {
    const uint64_t piece = shm::kInPlacePieceBytes / sizeof(int32_t);
    std::thread other([&] {
      while (line.sleepers == 0) std::this_thread::yield();
      for (const TestClient& client : node.clients) {
        const std::span<int32_t> own = Buffer(client, node.tensor);
        std::fill(own.begin(), own.begin() + piece, 2);
      }
      line.done = InPlaceLine::Pack(1, kPieces);
    });
    REQUIRE(talweg_wait(waiter.get(), node.tensor, 1, nullptr, kGenerousNs) == TALWEG_OK);
    other.join();
    const std::span<int32_t> own = Buffer(waiter, node.tensor);
    CHECK((std::vector<int32_t>(own.begin(), own.end()) == std::vector<int32_t>(kCount, 2)));
  }
  SECTION("The job fails") {
    talweg_status status = TALWEG_OK;
    std::string text;
    std::thread other([&] {
      status = talweg_wait(waiter.get(), node.tensor, 1, nullptr, kGenerousNs);
      text = talweg_last_error();
    });
    while (line.sleepers == 0) std::this_thread::yield();
    const_cast<FakeAgent&>(node.agent).FailAll(shm::RankStatus::kJobFailed, "rank 0 has died");
    other.join();
    CHECK(status == TALWEG_JOB_FAILED);
    CHECK_THAT(text, Contains("rank 0 has died"));
  }
}

TEST_CASE("In place: a rank that says goodbye leaves no piece half done") {
  constexpr size_t kCount = 3'000'000;
  for (int life = 0; life < 10; ++life) {
    Node node(2, kCount);
    for (const TestClient& client : node.clients) {
      Push(client, node.tensor, std::vector<int32_t>(kCount, 1).data());
    }
    InPlaceLine& line = node.Line();
    talweg_client* const leaver = node.clients[1].Release();
    talweg_status waited = TALWEG_INTERNAL;
    std::thread other([&] { waited = talweg_wait(leaver, node.tensor, 1, nullptr, kGenerousNs); });
    while (InPlaceLine::Pieces(line.begun, 1) == 0) std::this_thread::yield();
    REQUIRE(talweg_shutdown(leaver, kGenerousNs) == TALWEG_OK);
    const uint64_t begun = InPlaceLine::Pieces(line.begun, 1);
    CHECK(InPlaceLine::Pieces(line.done, 1) == begun);
    // The other rank does the remaining pieces.
    CHECK((Take<int32_t>(node.clients[0], node.tensor, 1, kCount) ==
           std::vector<int32_t>(kCount, 2)));
    other.join();
    CHECK((waited == TALWEG_OK || waited == TALWEG_CLOSED));
    talweg_free(leaver);
  }
}

TEST_CASE("In place: a round that is complete is given out though the agent is gone") {
  constexpr size_t kCount = 300'000;
  const TestDirectory directory;
  auto agent = std::make_unique<FakeAgent>(SummingOptions(directory, 2));
  const TestClient zero(agent->socket_path(), 0);
  const TestClient one(agent->socket_path(), 1);
  const talweg_tensor tensor = DeclareInPlace(zero, kCount);
  REQUIRE(DeclareInPlace(one, kCount) == tensor);
  // The first round makes their memory known to each other.
  for (int round = 1; round <= 2; ++round) {
    for (const TestClient* client : {&zero, &one}) {
      Push(*client, tensor, std::vector<int32_t>(kCount, round).data());
    }
    if (round == 1) {
      CHECK(Take<int32_t>(zero, tensor, 1, kCount)[9] == 2);
      CHECK(Take<int32_t>(one, tensor, 1, kCount)[9] == 2);
    }
  }
  while (talweg_poll(zero.get(), tensor, 2) == TALWEG_PENDING) std::this_thread::yield();
  agent.reset();
  CHECK((Take<int32_t>(one, tensor, 2, kCount) == std::vector<int32_t>(kCount, 4)));
  CHECK((Take<int32_t>(zero, tensor, 2, kCount) == std::vector<int32_t>(kCount, 4)));
}

TEST_CASE("In place: a rank that declares with talweg_declare takes part") {
  constexpr size_t kCount = 50'000;
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, 2));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const talweg_tensor tensor = DeclareInPlace(zero, kCount);
  REQUIRE(Declare(one, kCount) == tensor);
  CHECK(talweg_sums_in_place(one.get(), tensor) == 1);
  for (int32_t round = 1; round <= 4; ++round) {
    const auto number = static_cast<talweg_round>(round);
    const std::vector<int32_t> expected(kCount, 3 * round);
    Push(zero, tensor, std::vector<int32_t>(kCount, round).data());
    Push(one, tensor, std::vector<int32_t>(kCount, 2 * round).data());
    if (round % 2 == 0) {
      CHECK((Take<int32_t>(one, tensor, number, kCount) == expected));
    } else {
      REQUIRE(talweg_wait(one.get(), tensor, number, nullptr, kGenerousNs) == TALWEG_OK);
      const void* result = nullptr;
      uint64_t bytes = 0;
      REQUIRE(talweg_result(one.get(), tensor, number, &result, &bytes) == TALWEG_OK);
      CHECK(std::memcmp(result, expected.data(), bytes) == 0);
    }
    REQUIRE(talweg_wait(zero.get(), tensor, number, nullptr, kGenerousNs) == TALWEG_OK);
    const std::span<int32_t> own = Buffer(zero, tensor);
    CHECK((std::vector<int32_t>(own.begin(), own.end()) == expected));
  }
}

TEST_CASE("In place: a rank hears if another has declared two buffers, or if its agent is older") {
  const TestDirectory directory;
  FakeAgent::Options options = SummingOptions(directory, 2);
  options.knows_in_place = GENERATE(true, false);
  FakeAgent agent(std::move(options));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  Declare(zero, 9);
  talweg_tensor tensor = 0;
  CHECK(TryDeclare(one, 9, &tensor) == TALWEG_UNSUPPORTED);
  CHECK_THAT(talweg_last_error(),
             Contains("'t'") && Contains("release") && Contains("another rank"));
  // A rank that copies can use the tensor all the same.
  tensor = Declare(one, 9);
  CHECK(talweg_sums_in_place(one.get(), tensor) == 0);
  Push(zero, tensor, std::vector<int32_t>(9, 1).data());
  Push(one, tensor, std::vector<int32_t>(9, 1).data());
  CHECK(Take<int32_t>(one, tensor, 1, 9)[8] == 2);
}

TEST_CASE("In place: where the agent sums, the result is copied to the contribution") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 2));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const talweg_tensor tensor = DeclareInPlace(zero, 1000);
  // Ranks need not agree on it there.
  REQUIRE(Declare(one, 1000) == tensor);
  CHECK(talweg_sums_in_place(zero.get(), tensor) == 0);
  for (talweg_round round = 1; round <= 3; ++round) {
    const std::span<int32_t> own = Buffer(zero, tensor);
    std::fill(own.begin(), own.end(), 4);
    Push(zero, tensor, nullptr);
    Push(one, tensor, std::vector<int32_t>(1000, 5).data());
    REQUIRE(talweg_wait(zero.get(), tensor, round, round == 2 ? own.data() : nullptr,
                        kGenerousNs) == TALWEG_OK);
    CHECK((std::vector<int32_t>(own.begin(), own.end()) == std::vector<int32_t>(1000, 9)));
    CHECK((Take<int32_t>(one, tensor, round, 1000) == std::vector<int32_t>(1000, 9)));
  }
  CHECK(talweg_detach(zero.get(), tensor) == TALWEG_UNSUPPORTED);
  CHECK_THAT(talweg_last_error(), Contains("'t'"));
}

TEST_CASE("In one place: a result from other nodes comes to its contribution without a copy") {
  const size_t count = GENERATE(size_t{1}, size_t{1001}, size_t{300'001});
  LonelyRank rank(count);
  CHECK(talweg_sums_in_place(rank.client.get(), rank.tensor) == 1);
  const std::span<int32_t> own = Buffer(rank.client, rank.tensor);
  CHECK(reinterpret_cast<uintptr_t>(own.data()) % 4096 == 0);
  for (talweg_round round = 1; round <= 3; ++round) {
    std::fill(own.begin(), own.end(), 4);
    rank.Round(std::byte{static_cast<uint8_t>(round)});
    const auto expected = static_cast<int32_t>(round * 0x01010101);
    CHECK((std::vector<int32_t>(own.begin(), own.end()) == std::vector<int32_t>(count, expected)));
    CHECK(Buffer(rank.client, rank.tensor).data() == own.data());
    const void* result = nullptr;
    uint64_t bytes = 0;
    REQUIRE(talweg_result(rank.client.get(), rank.tensor, round, &result, &bytes) == TALWEG_OK);
    CHECK(result == own.data());
  }
  talweg_statistics statistics = {.struct_bytes = sizeof(statistics)};
  REQUIRE(talweg_get_statistics(rank.client.get(), &statistics) == TALWEG_OK);
  CHECK(statistics.bytes_copied == 0);
  // With other memory, a rank copies in and out.
  Push(rank.client, rank.tensor, std::vector<int32_t>(count, 9).data());
  CHECK((Take<int32_t>(rank.client, rank.tensor, 4, count) == std::vector<int32_t>(count, 9)));
}

TEST_CASE("In one place: a rank that keeps a result gets the next ones elsewhere") {
  constexpr size_t kCount = 5000;
  LonelyRank rank(kCount);
  const std::span<int32_t> kept = Buffer(rank.client, rank.tensor);
  rank.Round(std::byte{1});
  REQUIRE(talweg_detach(rank.client.get(), rank.tensor) == TALWEG_OK);
  const std::span<int32_t> own = Buffer(rank.client, rank.tensor);
  CHECK(own.data() != kept.data());
  rank.Round(std::byte{2});
  CHECK(
      (std::vector<int32_t>(kept.begin(), kept.end()) == std::vector<int32_t>(kCount, 0x01010101)));
  CHECK((std::vector<int32_t>(own.begin(), own.end()) == std::vector<int32_t>(kCount, 0x02020202)));
  const void* result = nullptr;
  uint64_t bytes = 0;
  REQUIRE(talweg_result(rank.client.get(), rank.tensor, 2, &result, &bytes) == TALWEG_OK);
  CHECK(result == own.data());
}

TEST_CASE("In place: tensors that are summed otherwise keep their own results") {
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, 2));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  constexpr size_t kCount = 30'000;
  for (const TestClient* client : {&zero, &one}) {
    Declare(*client, kCount, TALWEG_I32, TALWEG_SUM, 0, "apart");
    DeclareInPlace(*client, kCount);
    Declare(*client, kCount, TALWEG_I32, TALWEG_SUM, 0, "apart too");
  }
  for (talweg_round round = 1; round <= 2; ++round) {
    for (talweg_tensor tensor = 0; tensor < 3; ++tensor) {
      for (const TestClient* client : {&zero, &one}) {
        const auto value = static_cast<int32_t>(tensor + round);
        CHECK(Push(*client, tensor, std::vector<int32_t>(kCount, value).data()) == round);
      }
    }
    for (talweg_tensor tensor = 0; tensor < 3; ++tensor) {
      const auto sum = static_cast<int32_t>(2 * (tensor + round));
      for (const TestClient* client : {&zero, &one}) {
        CHECK((Take<int32_t>(*client, tensor, round, kCount) == std::vector<int32_t>(kCount, sum)));
      }
    }
  }
}

TEST_CASE("In place: invalid arguments are refused") {
  talweg_tensor tensor = 0;
  const talweg_declaration declaration{"t", TALWEG_I32, TALWEG_SUM, 0, 0, 1};
  CHECK(talweg_declare_all_in_place(nullptr, &declaration, 1, 0, &tensor) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("talweg_declare_all_in_place"));
  CHECK(talweg_detach(nullptr, 0) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_sums_in_place(nullptr, 0) == 0);
  const Node node(1, 5);
  CHECK(talweg_sums_in_place(node.clients[0].get(), 77) == 0);
  CHECK(talweg_detach(node.clients[0].get(), 77) == TALWEG_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace talweg::c
