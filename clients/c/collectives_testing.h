// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_COLLECTIVES_TESTING_H_
#define TALWEG_CLIENTS_C_COLLECTIVES_TESTING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/collective.h"
#include "libs/shm/testing/fake_agent.h"

// Ranks of a node that push parts of a tensor, and the parts that each must get.
namespace talweg::c {

using Part = std::vector<int32_t>;

// Returns a collective for talweg_declare_collective.
inline talweg_collective ToC(const Collective& collective, uint32_t root = 0) {
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

inline Collective Named(std::string_view name, uint64_t count, Op op = Op::kSum) {
  for (const CollectiveRow& row : kCollectives) {
    if (row.name != name) continue;
    Collective collective = {DType::kI32, Op::kCopy, row.gives, row.gets, count};
    if (!collective.copies()) collective.op = op;
    return collective;
  }
  FAIL("there is no " << name);
  return {};
}

// Some ranks of a node, all in this process, with one tensor.
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

  // `length(place, part)` is how many elements the rank at `place` gives as `part`.
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

  // Returns what a rank must get from the open round.
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
  // Returns what the rank gets. Takes the round.
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
      CHECK_THAT(talweg_last_error(), Catch::Matchers::Contains("the round stays open"));
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

inline std::vector<uint32_t> Ranks(uint32_t count) {
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
  shm::FakeAgent agent;
  std::vector<TestClient> clients;
};

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_COLLECTIVES_TESTING_H_
