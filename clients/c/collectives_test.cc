// SPDX-License-Identifier: Apache-2.0

// Every collective, over groups, in parts of several lengths, with signatures. The agent sums, or
// the ranks do.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/collectives_testing.h"
#include "clients/c/in_place_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/collective.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

TEST_CASE("Every collective gives every rank what it gets, part by part") {
  const bool ranks_sum = GENERATE(false, true);
  const uint32_t ranks = GENERATE(1u, 2u, 3u, 4u);
  PartsNode node(ranks, ranks_sum);
  for (const CollectiveRow& row : kCollectives) {
    for (const uint32_t root : std::set<uint32_t>{0, ranks - 1}) {
      CAPTURE(row.name, ranks, ranks_sum, root);
      constexpr size_t kCount = 37;
      Group group = node.World(Named(row.name, kCount, Op::kMax), root,
                               std::string(row.name) + std::to_string(root));
      const auto full = [](uint32_t, uint32_t) { return kCount; };
      const bool is_reduction = row.gives == Share::kWhole;
      for (int round = 0; round < 4; ++round) {
        // Ranks that give the same part give it at the same length.
        const auto ragged = [&](uint32_t place, uint32_t part) {
          return size_t{(is_reduction ? 5 : 11 * place) + 3 * part +
                        9 * static_cast<size_t>(round)} %
                 (kCount + 1);
        };
        round % 2 == 0 ? group.Push(full)
                       : group.Push(ragged, 0x77u + static_cast<uint64_t>(round));
        group.TakeAll();
      }
      group.Push([](uint32_t, uint32_t) { return size_t{0}; });
      group.TakeAll();
      group.Push(full, 9);
      group.TakeAll();
    }
  }
}

TEST_CASE("Tensors without elements work the same way") {
  PartsNode node(3, GENERATE(false, true));
  for (const CollectiveRow& row : kCollectives) {
    CAPTURE(row.name);
    Group group = node.World(Named(row.name, 0), 1, std::string(row.name));
    for (int round = 0; round < 3; ++round) {
      group.Push([](uint32_t, uint32_t) { return size_t{0}; }, static_cast<uint64_t>(round));
      group.TakeAll();
    }
  }
  for (const TestClient& client : node.clients) {
    const talweg_tensor tensor = Declare(client, 0, TALWEG_F32, TALWEG_SUM, 0, "old");
    CHECK(talweg_tensor_bytes(client.get(), tensor) == 0);
    CHECK(Push(client, tensor, nullptr) == 1);
  }
  for (const TestClient& client : node.clients) {
    const talweg_tensor tensor = Declare(client, 0, TALWEG_F32, TALWEG_SUM, 0, "old");
    const void* data = nullptr;
    uint64_t bytes = 1;
    CHECK(talweg_wait(client.get(), tensor, 1, nullptr, kGenerousNs) == TALWEG_OK);
    CHECK(talweg_result(client.get(), tensor, 1, &data, &bytes) == TALWEG_OK);
    CHECK(bytes == 0);
  }
}

TEST_CASE("Groups of ranks are served at the same time") {
  const bool ranks_sum = GENERATE(false, true);
  PartsNode node(4, ranks_sum);
  for (const CollectiveRow& row : kCollectives) {
    CAPTURE(row.name, ranks_sum);
    const Collective collective = Named(row.name, 20);
    Group even(node.clients, {0, 2}, collective, 2, std::string(row.name) + " even");
    Group odd(node.clients, {1, 3}, collective, 1, std::string(row.name) + " odd");
    Group most(node.clients, {0, 1, 3}, collective, 3, std::string(row.name) + " most");
    Group alone(node.clients, {2}, collective, 2, std::string(row.name) + " alone");
    Group all(node.clients, Ranks(4), collective, 3, std::string(row.name) + " all");
    for (int round = 0; round < 3; ++round) {
      for (Group* group : {&even, &odd, &most, &alone, &all}) {
        group->Push([&](uint32_t, uint32_t) { return size_t{20} - static_cast<size_t>(round); });
      }
      for (Group* group : {&all, &alone, &most, &odd, &even}) group->TakeAll();
    }
  }
}

TEST_CASE("A rank that is ahead leaves alone what the others still read") {
  const bool ranks_sum = GENERATE(false, true);
  PartsNode node(2, ranks_sum);
  Group group = node.World(Named("all_to_all", 8));
  const auto length = [](uint32_t, uint32_t part) { return size_t{2 * part + 1} % 9; };
  group.Push(length, 1);
  group.TakeAll();
  for (int round = 0; round < 6; ++round) {
    group.Push([&](uint32_t place, uint32_t part) { return (length(place, part) + round) % 9; },
               static_cast<uint64_t>(round));
    CHECK((group.Take(0) == group.Expected(0)));
    const std::vector<Part> expected = group.Expected(1);
    // This round has the other parity, other lengths and another signature than the one that the
    // slow rank has open.
    group.Next();
    group.PushOne(
        0, [](uint32_t) { return size_t{8}; }, 1000);
    if (!ranks_sum) {
      node.agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes % 2 == 1; });
    }
    Part out(16);
    uint64_t bytes = 0;
    for (const Part& part : expected) bytes += part.size() * sizeof(int32_t);
    const auto number = static_cast<talweg_round>(2 + 2 * round);
    REQUIRE(talweg_wait_parts(group.member(1), group.tensor(), number, out.data(), bytes,
                              kGenerousNs) == TALWEG_OK);
    Part flat;
    for (const Part& part : expected) flat.insert(flat.end(), part.begin(), part.end());
    out.resize(flat.size());
    CHECK((out == flat));
    group.PushOne(
        1, [](uint32_t) { return size_t{8}; }, 1000);
    group.TakeAll();
  }
}

TEST_CASE("A tensor of talweg_declare can be pushed with a shorter length") {
  const bool ranks_sum = GENERATE(false, true);
  const bool in_place = GENERATE(false, true);
  // Large counts are those where ranks share the sums, or where arrivals are announced.
  const size_t count = GENERATE(size_t{100}, size_t{700'000});
  CAPTURE(ranks_sum, in_place, count);
  PartsNode node(3, ranks_sum);
  talweg_tensor tensor = 0;
  for (const TestClient& client : node.clients) {
    tensor = in_place ? DeclareInPlace(client, count) : Declare(client, count);
  }
  talweg_round round = 0;
  for (const size_t used : {count, count / 2, size_t{0}, size_t{3}, count - 1, count}) {
    ++round;
    const uint64_t bytes = used * sizeof(int32_t);
    for (const TestClient& client : node.clients) {
      Part data(count, static_cast<int32_t>(talweg_rank(client.get()) + round));
      const std::span<int32_t> buffer = Buffer(client, tensor);
      if (in_place) std::fill(buffer.begin(), buffer.end(), data[0]);
      talweg_round pushed = 0;
      REQUIRE(talweg_push_parts(client.get(), tensor, in_place ? nullptr : data.data(), &bytes, 0,
                                TALWEG_DECLARED_PRIORITY, kGenerousNs, &pushed) == TALWEG_OK);
      REQUIRE(pushed == round);
    }
    const auto sum = static_cast<int32_t>(3 + 3 * round);
    for (const TestClient& client : node.clients) {
      uint64_t length = 1;
      REQUIRE(talweg_wait_lengths(client.get(), tensor, round, &length, kGenerousNs) == TALWEG_OK);
      CHECK(length == bytes);
      const int32_t own = static_cast<int32_t>(talweg_rank(client.get()) + round);
      Part out(count, -1);
      if (in_place) {
        REQUIRE(talweg_wait_parts(client.get(), tensor, round, nullptr, 0, kGenerousNs) ==
                TALWEG_OK);
        const std::span<int32_t> buffer = Buffer(client, tensor);
        out.assign(buffer.begin(), buffer.end());
      } else {
        REQUIRE(talweg_wait(client.get(), tensor, round, out.data(), kGenerousNs) == TALWEG_OK);
        const void* data = nullptr;
        uint64_t got = 1;
        REQUIRE(talweg_result(client.get(), tensor, round, &data, &got) == TALWEG_OK);
        CHECK(got == bytes);
        CHECK(std::equal(out.begin(), out.begin() + static_cast<ptrdiff_t>(used),
                         static_cast<const int32_t*>(data)));
      }
      const auto end = out.begin() + static_cast<ptrdiff_t>(used);
      CHECK(std::count(out.begin(), end, sum) == static_cast<ptrdiff_t>(used));
      CHECK(std::count(end, out.end(), in_place ? own : -1) ==
            static_cast<ptrdiff_t>(count - used));
    }
  }
}

TEST_CASE("A broadcast is as long as its root says, even for ranks that name no length") {
  const bool ranks_sum = GENERATE(false, true);
  PartsNode node(2, ranks_sum);
  talweg_tensor tensor = 0;
  for (const TestClient& client : node.clients) {
    tensor = Declare(client, 10, TALWEG_I32, TALWEG_BROADCAST, 1);
  }
  for (const uint64_t bytes : {uint64_t{40}, uint64_t{8}, uint64_t{40}}) {
    const Part data(10, static_cast<int32_t>(bytes));
    talweg_round round = 0;
    REQUIRE(talweg_push_parts(node.clients[1].get(), tensor, data.data(), &bytes, 0, 0, kGenerousNs,
                              &round) == TALWEG_OK);
    REQUIRE(Push(node.clients[0], tensor, nullptr) == round);
    Part out(10, -1);
    REQUIRE(talweg_wait(node.clients[0].get(), tensor, round, out.data(), kGenerousNs) ==
            TALWEG_OK);
    const auto elements = static_cast<ptrdiff_t>(bytes / sizeof(int32_t));
    CHECK(std::count(out.begin(), out.end(), data[0]) == elements);
    CHECK(std::count(out.begin() + elements, out.end(), -1) == 10 - elements);
    REQUIRE(talweg_wait(node.clients[1].get(), tensor, round, nullptr, kGenerousNs) == TALWEG_OK);
  }
}

TEST_CASE("A result in place is the one part that a rank gets") {
  PartsNode node(2, GENERATE(false, true));
  Group scatter = node.World(Named("reduce_scatter", 5), 0, "scatter");
  scatter.Push([](uint32_t, uint32_t) { return size_t{4}; });
  for (uint32_t place = 0; place < 2; ++place) {
    const Part expected = scatter.Take(place)[0];
    const void* data = nullptr;
    uint64_t bytes = 0;
    REQUIRE(talweg_result(scatter.member(place), scatter.tensor(), 1, &data, &bytes) == TALWEG_OK);
    REQUIRE(bytes == 16);
    CHECK(std::equal(expected.begin(), expected.end(), static_cast<const int32_t*>(data)));
  }
  Group gather = node.World(Named("all_gather", 5), 0, "gather");
  gather.Push([](uint32_t, uint32_t) { return size_t{5}; });
  gather.TakeAll();
  const void* data = nullptr;
  uint64_t bytes = 0;
  CHECK(talweg_result(gather.member(0), gather.tensor(), 1, &data, &bytes) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("2 parts") && Contains("talweg_wait_parts"));
}

TEST_CASE("Large parts are summed and copied in the same way") {
  const bool ranks_sum = GENERATE(false, true);
  PartsNode node(3, ranks_sum);
  constexpr size_t kCount = 300'001;
  for (const CollectiveRow& row : kCollectives) {
    CAPTURE(row.name, ranks_sum);
    Group group = node.World(Named(row.name, kCount), 2, std::string(row.name));
    for (const size_t length : {kCount, kCount - 7}) {
      group.Push([&](uint32_t, uint32_t) { return length; });
      group.TakeAll();
    }
  }
}

// One rank's part of a run. Only the rounds keep the ranks in step. Each rank has an order of its
// own for the collectives, and each round has its own lengths and signatures.
class Walk {
 public:
  Walk(talweg_client* client, uint32_t ranks) : client_(client), ranks_(ranks) {
    for (const CollectiveRow& row : kCollectives) {
      collectives_.push_back(Named(row.name, kCount));
      talweg_collective c = ToC(collectives_.back(), ranks - 1);
      talweg_tensor tensor = 0;
      if (talweg_declare_collective(client, std::string(row.name).c_str(), &c, 0, kGenerousNs,
                                    &tensor) != TALWEG_OK) {
        error_ = talweg_last_error();
      }
      tensors_.push_back(tensor);
    }
  }

  std::string Run(uint64_t rounds, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<size_t> order(tensors_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (uint64_t round = 1; round <= rounds && error_.empty(); ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) Push(i, round);
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) Take(i, round);
    }
    return error_;
  }

 private:
  static constexpr size_t kCount = 33;

  // Returns what a rank gives as a part of a round. Every fifth round is full.
  Part Given(size_t i, uint64_t round, uint32_t rank, uint32_t part) const {
    const size_t by_rank = collectives_[i].copies() ? rank : 0;
    const size_t length = round % 5 == 0 ? kCount : (7 * by_rank + 3 * part + round) % (kCount + 1);
    return Part(length, static_cast<int32_t>(1000 * rank + 10 * part + round));
  }
  // In every seventh round of a tensor the last rank has another signature.
  bool Differs(size_t i, uint64_t round) const { return ranks_ > 1 && (round + i) % 7 == 0; }

  void Push(size_t i, uint64_t round) {
    const uint32_t rank = talweg_rank(client_);
    Part data;
    std::vector<uint64_t> lengths;
    for (uint32_t part = 0; part < collectives_[i].part_count(ranks_); ++part) {
      if (!collectives_[i].Gives(part, rank, ranks_, ranks_ - 1)) continue;
      const Part given = Given(i, round, rank, part);
      data.insert(data.end(), given.begin(), given.end());
      lengths.push_back(given.size() * sizeof(int32_t));
    }
    const uint64_t signature = Differs(i, round) && rank == ranks_ - 1 ? 999 : round;
    talweg_round pushed = 0;
    Expect(talweg_push_parts(client_, tensors_[i], data.data(),
                             round % 5 == 0 ? nullptr : lengths.data(), signature, 0, kGenerousNs,
                             &pushed) == TALWEG_OK);
  }

  void Take(size_t i, uint64_t round) {
    Part out((ranks_ * ranks_ + 1) * kCount);
    const uint64_t bytes = out.size() * sizeof(int32_t);
    const talweg_status status =
        talweg_wait_parts(client_, tensors_[i], round, out.data(), bytes, kGenerousNs);
    if (Differs(i, round)) return Expect(status == TALWEG_MISMATCH);
    Expect(status == TALWEG_OK);
    const Part expected = Expected(i, round);
    if (!error_.empty() || std::equal(expected.begin(), expected.end(), out.begin())) return;
    error_ = std::string(collectives_[i].name()) + ", round " + std::to_string(round) + " is wrong";
  }

  Part Expected(size_t i, uint64_t round) const {
    const Collective& collective = collectives_[i];
    Part all;
    for (uint32_t part = 0; part < collective.part_count(ranks_); ++part) {
      if (!collective.Gets(part, talweg_rank(client_), ranks_, ranks_ - 1)) continue;
      std::optional<Part> sum;
      for (uint32_t rank = 0; rank < ranks_; ++rank) {
        if (!collective.Gives(part, rank, ranks_, ranks_ - 1)) continue;
        const Part given = Given(i, round, rank, part);
        if (!sum) {
          sum = given;
          continue;
        }
        for (size_t k = 0; k < sum->size(); ++k) (*sum)[k] += given[k];
      }
      all.insert(all.end(), sum->begin(), sum->end());
    }
    return all;
  }

  void Expect(bool right) {
    if (!right && error_.empty()) error_ = std::string("unexpected: ") + talweg_last_error();
  }

  talweg_client* const client_;
  const uint32_t ranks_;
  std::vector<Collective> collectives_;
  std::vector<talweg_tensor> tensors_;
  std::string error_;
};

TEST_CASE("Ranks push and wait in orders of their own, and each gets what it must") {
  const bool ranks_sum = GENERATE(false, true);
  const uint32_t ranks = GENERATE(2u, 4u);
  CAPTURE(ranks, ranks_sum);
  PartsNode node(ranks, ranks_sum);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < ranks; ++i) {
    threads.emplace_back([&, i] { errors[i] = Walk(node.clients[i].get(), ranks).Run(60, i + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == std::vector<std::string>(ranks));
  CHECK(node.agent.seen().counters.protocol_errors == 0);
}

}  // namespace
}  // namespace talweg::c
