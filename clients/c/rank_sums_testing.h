// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_RANK_SUMS_TESTING_H_
#define TALWEG_CLIENTS_C_RANK_SUMS_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/testing/fake_agent.h"

// Shared by the tests of tensors that the ranks sum.
namespace talweg::c {

inline shm::FakeAgent::Options SummingOptions(const TestDirectory& directory, uint32_t ranks) {
  shm::FakeAgent::Options options = AgentOptions(directory, ranks);
  options.ranks_sum = true;
  return options;
}

inline talweg_tensor Declare(const TestClient& client, uint64_t count,
                             talweg_dtype dtype = TALWEG_I32, talweg_op op = TALWEG_SUM,
                             uint32_t root = 0, const char* name = "t") {
  talweg_tensor tensor = 0;
  INFO(talweg_last_error());
  REQUIRE(talweg_declare(client.get(), name, dtype, op, root, count, 0, kGenerousNs, &tensor) ==
          TALWEG_OK);
  return tensor;
}

inline talweg_round Push(const TestClient& client, talweg_tensor tensor, const void* data) {
  talweg_round round = 0;
  const talweg_status status =
      talweg_push_pull(client.get(), tensor, data, TALWEG_DECLARED_PRIORITY, kGenerousNs, &round);
  INFO(talweg_last_error());
  REQUIRE(status == TALWEG_OK);
  return round;
}

// (Whole vectors are compared in double parentheses: Catch would print them.)
template <typename T>
std::vector<T> Take(const TestClient& client, talweg_tensor tensor, talweg_round round,
                    size_t count) {
  std::vector<T> out(count);
  const talweg_status status = talweg_wait(client.get(), tensor, round, out.data(), kGenerousNs);
  INFO(talweg_last_error());
  REQUIRE(status == TALWEG_OK);
  return out;
}

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_RANK_SUMS_TESTING_H_
