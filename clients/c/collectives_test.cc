// SPDX-License-Identifier: Apache-2.0

// Every collective, over groups, in parts of several lengths, with signatures: summed by the agent
// and by the ranks.

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
#include "clients/c/in_place_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/collective.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

using Part = std::vector<int32_t>;

// What a collective is, for talweg_declare_collective.
talweg_collective ToC(const Collective& collective, uint32_t root = 0) {
  talweg_collective c{};
  c.struct_bytes = sizeof(c);
  c.dtype = static_cast<talweg_dtype>(collective.dtype);
  c.op = static_cast<talweg_op>(collective.op);
  c.gives = static_cast<talweg_share>(collective.gives);
  c.gets = static_cast<talweg_share>(collective.gets);
  c.root_rank = root;
  c.element_count = collective.element_count;
  return c;
}

Collective Named(std::string_view name, uint64_t count, Op op = Op::kSum) {
  for (const CollectiveRow& row : kCollectives) {
    if (row.name != name) continue;
    Collective collective = {DType::kI32, Op::kCopy, row.gives, row.gets, count};
    if (!collective.copies()) collective.op = op;
    return collective;
  }
  FAIL("there is no " << name);
  return {};
}

// Some ranks of a node, all in this process, and one tensor of theirs.
class Group {
 public:
  Group(const std::vector<TestClient>& clients, std::vector<uint32_t> ranks,
        const Collective& collective, uint32_t root, const std::string& name)
      : ranks_(std::move(ranks)), collective_(collective) {
    for (uint32_t place = 0; place < size(); ++place) {
      members_.push_back(clients[ranks_[place]].get());
      if (ranks_[place] == root) root_ = place;
    }
    talweg_collective c = ToC(collective, root);
    if (size() < clients.size()) {
      c.rank_count = size();
      c.ranks = ranks_.data();
    }
    for (talweg_client* member : members_) {
      const talweg_status status =
          talweg_declare_collective(member, name.c_str(), &c, 0, kGenerousNs, &tensor_);
      INFO(talweg_last_error());
      REQUIRE(status == TALWEG_OK);
    }
  }

  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  talweg_client* member(uint32_t place) const { return members_[place]; }
  talweg_tensor tensor() const { return tensor_; }
  uint32_t part_count() const { return collective_.part_count(size()); }
  bool Gives(uint32_t place, uint32_t part) const {
    return collective_.Gives(part, place, size(), root_);
  }

  // `length(place, part)`: how many elements a rank gives as a part.
  template <typename Length>
  void Push(const Length& length, RoundSignature signature = 0) {
    for (uint32_t place = 0; place < size(); ++place) {
      PushOne(
          place, [&](uint32_t part) { return length(place, part); }, signature);
    }
  }
  template <typename Length>
  void PushOne(uint32_t place, const Length& length, RoundSignature signature = 0) {
    if (given_.size() <= round_) given_.resize(round_ + 1);
    given_[round_].resize(size());
    std::vector<std::optional<Part>>& parts = given_[round_][place];
    parts.assign(part_count(), std::nullopt);
    Part data;
    std::vector<uint64_t> lengths;
    for (uint32_t part = 0; part < part_count(); ++part) {
      if (!Gives(place, part)) continue;
      Part values(length(part));
      std::iota(values.begin(), values.end(),
                static_cast<int32_t>(1000 * place + 100 * part + 7 * round_));
      data.insert(data.end(), values.begin(), values.end());
      lengths.push_back(values.size() * sizeof(int32_t));
      parts[part] = values;
    }
    CHECK(talweg_parts_given(member(place), tensor_) == lengths.size());
    talweg_round round = 0;
    const talweg_status status =
        talweg_push_parts(member(place), tensor_, data.data(), lengths.data(), signature,
                          TALWEG_DECLARED_PRIORITY, kGenerousNs, &round);
    INFO(talweg_last_error());
    REQUIRE(status == TALWEG_OK);
    CHECK(round == round_ + 1);
  }
  void Next() { ++round_; }

  // What a rank must get of the open round.
  std::vector<Part> Expected(uint32_t place) const {
    std::vector<Part> parts;
    for (uint32_t part = 0; part < part_count(); ++part) {
      if (!collective_.Gets(part, place, size(), root_)) continue;
      std::optional<Part> sum;
      for (uint32_t giver = 0; giver < size(); ++giver) {
        const std::optional<Part>& given = given_[round_][giver][part];
        if (!given) continue;
        if (!sum) {
          sum = given;
          continue;
        }
        for (size_t k = 0; k < sum->size(); ++k) {
          (*sum)[k] = collective_.op == Op::kMax ? std::max((*sum)[k], (*given)[k])
                                                 : (*sum)[k] + (*given)[k];
        }
      }
      parts.push_back(*sum);
    }
    return parts;
  }
  // What it gets; the round is taken.
  std::vector<Part> Take(uint32_t place) const {
    const uint32_t count = talweg_parts_got(member(place), tensor_);
    std::vector<uint64_t> lengths(count);
    for (int twice = 0; twice < 2; ++twice) {
      std::fill(lengths.begin(), lengths.end(), 1);
      const talweg_status status =
          talweg_wait_lengths(member(place), tensor_, round_ + 1, lengths.data(), kGenerousNs);
      INFO(talweg_last_error());
      REQUIRE(status == TALWEG_OK);
    }
    Part out(std::accumulate(lengths.begin(), lengths.end(), uint64_t{0}) / sizeof(int32_t) + 1,
             -7);
    const uint64_t bytes = (out.size() - 1) * sizeof(int32_t);
    if (bytes > 0) {
      CHECK(talweg_wait_parts(member(place), tensor_, round_ + 1, out.data(), bytes - 1,
                              kGenerousNs) == TALWEG_INVALID_ARGUMENT);
      CHECK_THAT(talweg_last_error(), Contains("the round stays open"));
      CHECK(talweg_wait_parts(member(place), tensor_, round_ + 1, nullptr, bytes, kGenerousNs) ==
            TALWEG_INVALID_ARGUMENT);
    }
    const talweg_status status = talweg_wait_parts(
        member(place), tensor_, round_ + 1, bytes == 0 ? nullptr : out.data(), bytes, kGenerousNs);
    INFO(talweg_last_error());
    REQUIRE(status == TALWEG_OK);
    CHECK(out.back() == -7);
    std::vector<Part> parts;
    auto next = out.begin();
    for (const uint64_t length : lengths) {
      const auto elements = static_cast<ptrdiff_t>(length / sizeof(int32_t));
      parts.emplace_back(next, next + elements);
      next += elements;
    }
    return parts;
  }
  void TakeAll() {
    for (uint32_t place = 0; place < size(); ++place) {
      CAPTURE(place);
      CHECK((Take(place) == Expected(place)));
    }
    Next();
  }

 private:
  const std::vector<uint32_t> ranks_;
  const Collective collective_;
  std::vector<talweg_client*> members_;
  uint32_t root_ = 0;
  talweg_tensor tensor_ = 0;
  size_t round_ = 0;  // The open one's number, less 1.
  std::vector<std::vector<std::vector<std::optional<Part>>>> given_;  // By round, place, part.
};

std::vector<uint32_t> Ranks(uint32_t count) {
  std::vector<uint32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0u);
  return ranks;
}

struct PartsNode {
  PartsNode(uint32_t ranks, bool ranks_sum)
      : agent(ranks_sum ? SummingOptions(directory, ranks) : AgentOptions(directory, ranks)) {
    for (uint32_t i = 0; i < ranks; ++i) clients.emplace_back(agent.socket_path(), i);
  }
  Group World(const Collective& collective, uint32_t root = 0, const std::string& name = "t") {
    return Group(clients, Ranks(static_cast<uint32_t>(clients.size())), collective, root, name);
  }
  TestDirectory directory;
  FakeAgent agent;
  std::vector<TestClient> clients;
};

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
        // Ranks that give the same part give it the same length.
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

TEST_CASE("Tensors of no elements go the same way") {
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

TEST_CASE("Ranks that say different things are told so, all alike, and go on") {
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
      CHECK(wait(round) == TALWEG_MISMATCH);  // Again as before.
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
  SECTION("signatures, in the first round already") {
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
  SECTION("lengths of what is combined") {
    Group group = node.World(Named(GENERATE("all_reduce", "reduce", "reduce_scatter"), kCount), 2);
    good_round(group);
    for (int twice = 0; twice < 2; ++twice) {
      group.PushOne(0, full);
      group.PushOne(1, [](uint32_t) { return size_t{4}; });
      group.PushOne(2, full);
      mismatch(group, "40 bytes", "rank 1 has pushed 16 bytes");
      good_round(group);
      // One part only.
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

TEST_CASE("Groups of ranks are served side by side") {
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

TEST_CASE("What makes no collective is refused, and says why") {
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
  SECTION("no such combination") {
    c.gets = TALWEG_SHARE_COLUMN;
    text = "no collective that gives 3 and gets 5";
  }
  SECTION("a copy that sums") {
    c.op = TALWEG_SUM;
    text = "with operation 1";
  }
  SECTION("shares out of this world") {
    c.gets = static_cast<talweg_share>(258);
    text = "share 3 or 258";
  }
  SECTION("a dtype out of this world") {
    c.dtype = static_cast<talweg_dtype>(257);
    text = "dtype 257";
  }
  SECTION("an older struct") {
    c.struct_bytes = 0;
    text = "struct_bytes is not set";
  }
  SECTION("a group that is nowhere") {
    c.rank_count = 2;
    c.ranks = nullptr;
    text = "`ranks` is NULL";
  }
  SECTION("a group in another order") {
    c.rank_count = 3;
    text = "rank 1 after rank 2";
  }
  SECTION("a group without this rank") {
    c.rank_count = 1;
    c.ranks = ranks.data() + 1;
    text = "this rank, 1, is not in its group";
  }
  SECTION("a group with a rank that is none") {
    c.rank_count = 2;
    c.ranks = ranks.data() + 2;
    text = "rank 7 of its group does not exist: the job has 3 ranks";
  }
  SECTION("a root out of the group") {
    c.rank_count = 2;
    c.root_rank = 0;
    text = "root rank 0 is not in its group of 2 ranks";
  }
  SECTION("too much") {
    c.element_count = uint64_t{1} << 32;
    text = "16 GiB";
  }
  CHECK(declare(c) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains(text));
  CHECK(talweg_parts_given(client, 77) == 0);
  CHECK(talweg_parts_got(client, 77) == 0);
  // A name is one tensor's, and one group's.
  REQUIRE(declare(good) == TALWEG_OK);
  CHECK(declare(good) == TALWEG_OK);
  talweg_collective other = good;
  other.gets = TALWEG_SHARE_WHOLE;
  CHECK(declare(other) == TALWEG_MISMATCH);
  other = good;
  other.rank_count = 2;
  other.ranks = ranks.data();
  CHECK(declare(other) == TALWEG_MISMATCH);
}

TEST_CASE("A push with lengths that cannot be is refused, and nothing is pushed") {
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
  group.Push([](uint32_t place, uint32_t part) { return size_t{place + part} % 5; });
  group.TakeAll();
}

TEST_CASE("A wait that times out leaves the round, whatever it waits for") {
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

TEST_CASE("A rank that is ahead leaves what the others still read") {
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
    // The other parity, with other lengths and another signature, of what the slow rank has open.
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

TEST_CASE("A tensor that was declared as before is pushed with a shorter length") {
  const bool ranks_sum = GENERATE(false, true);
  const bool in_place = GENERATE(false, true);
  // Also so large that the ranks share the sums, or what has come of it is told.
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

TEST_CASE("A broadcast is as long as its root says, to who says nothing as well") {
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

// One rank's part of a run in which nobody keeps step but by the rounds themselves: every
// collective in an order of its own, lengths and signatures of each round.
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

  // What a rank gives as a part of a round; every fifth round is full.
  Part Given(size_t i, uint64_t round, uint32_t rank, uint32_t part) const {
    const size_t by_rank = collectives_[i].copies() ? rank : 0;
    const size_t length = round % 5 == 0 ? kCount : (7 * by_rank + 3 * part + round) % (kCount + 1);
    return Part(length, static_cast<int32_t>(1000 * rank + 10 * part + round));
  }
  // Every seventh round of a tensor is one of which the last rank says something else.
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
