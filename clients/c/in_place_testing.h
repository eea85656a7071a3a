// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_IN_PLACE_TESTING_H_
#define TALWEG_CLIENTS_C_IN_PLACE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/layout/rank_sums.h"
#include "libs/shm/testing/fake_agent.h"

// Shared by the tests of tensors that are summed in place.
namespace talweg::c {

inline talweg_status TryDeclare(const TestClient& client, uint64_t count, talweg_tensor* tensor,
                                talweg_dtype dtype = TALWEG_I32, talweg_op op = TALWEG_SUM,
                                uint32_t root = 0) {
  const talweg_declaration declaration{"t", dtype, op, root, 0, count};
  return talweg_declare_all_in_place(client.get(), &declaration, 1, kGenerousNs, tensor);
}

inline talweg_tensor DeclareInPlace(const TestClient& client, uint64_t count,
                                    talweg_dtype dtype = TALWEG_I32, talweg_op op = TALWEG_SUM,
                                    uint32_t root = 0) {
  talweg_tensor tensor = 0;
  const talweg_status status = TryDeclare(client, count, &tensor, dtype, op, root);
  INFO(talweg_last_error());
  REQUIRE(status == TALWEG_OK);
  return tensor;
}

template <typename T = int32_t>
std::span<T> Buffer(const TestClient& client, talweg_tensor tensor) {
  return {static_cast<T*>(talweg_contribution(client.get(), tensor)),
          talweg_tensor_bytes(client.get(), tensor) / sizeof(T)};
}

// Returns how a tensor of `bytes` bytes lies in each rank's arena.
inline shm::RankSumShape InPlaceShape(uint64_t bytes, uint32_t ranks) {
  return shm::RankSumShape::Of(
      shm::BufferShape::Of(Collective::Of(DType::kU8, Op::kSum, bytes), ranks), ranks,
      /*in_place=*/true);
}

// A node's ranks, all in this process.
struct Node {
  Node(uint32_t ranks, uint64_t count, talweg_dtype dtype = TALWEG_I32, talweg_op op = TALWEG_SUM,
       uint32_t root = 0)
      : agent(SummingOptions(directory, ranks)) {
    for (uint32_t i = 0; i < ranks; ++i) clients.emplace_back(agent.socket_path(), i);
    for (const TestClient& client : clients) {
      tensor = DeclareInPlace(client, count, dtype, op, root);
    }
  }

  // Returns the line in local rank 0's arena that ranks read while they wait for each other's
  // pieces.
  shm::InPlaceLine& Line() const {
    const uint64_t bytes = talweg_tensor_bytes(clients[0].get(), tensor);
    const shm::RankSumShape shape = InPlaceShape(bytes, static_cast<uint32_t>(clients.size()));
    return *reinterpret_cast<shm::InPlaceLine*>(Buffer<char>(clients[0], tensor).data() +
                                                shape.line_offset());
  }

  TestDirectory directory;
  shm::FakeAgent agent;
  std::vector<TestClient> clients;
  talweg_tensor tensor = 0;
};

// A node's only rank, whose results come from other nodes into its contribution buffer.
struct LonelyRank {
  explicit LonelyRank(uint64_t count) : agent(Options(directory)), client(agent.socket_path(), 0) {
    tensor = DeclareInPlace(client, count);
  }

  // Contributes the buffer's bytes. Each byte of the result is `byte`.
  void Round(std::byte byte) {
    agent.HoldRounds();
    const talweg_round round = Push(client, tensor, nullptr);
    agent.WaitUntil(
        [&](const shm::FakeAgent::Seen& seen) { return seen.pushes >= static_cast<int>(round); });
    agent.Arrive("t", 0, talweg_tensor_bytes(client.get(), tensor), byte);
    agent.ReleaseRounds();
    REQUIRE(talweg_wait(client.get(), tensor, round, nullptr, kGenerousNs) == TALWEG_OK);
  }

  static shm::FakeAgent::Options Options(const TestDirectory& directory) {
    shm::FakeAgent::Options options = AgentOptions(directory, 1);
    options.one_place = true;
    return options;
  }

  TestDirectory directory;
  shm::FakeAgent agent;
  TestClient client;
  talweg_tensor tensor = 0;
};

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_IN_PLACE_TESTING_H_
