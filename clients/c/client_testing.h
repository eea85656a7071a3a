// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_CLIENT_TESTING_H_
#define TALWEG_CLIENTS_C_CLIENT_TESTING_H_

#include <string>
#include <thread>
#include <utility>

#include "clients/c/talweg.h"
#include "libs/base/test_directory.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {

inline constexpr int64_t kSecondNs = 1'000'000'000;
// Long enough for a loaded machine. Only a test that fails takes so long.
inline constexpr int64_t kGenerousNs = 60 * kSecondNs;

inline shm::FakeAgent::Options AgentOptions(const TestDirectory& directory, uint32_t ranks) {
  shm::FakeAgent::Options options;
  options.server.socket_path = directory.Path("agent.sock");
  options.server.local_rank_count = ranks;
  options.server.incarnation = Incarnation(0x1234);
  return options;
}

// Owns a client: says goodbye and frees it.
class TestClient {
 public:
  TestClient() = default;
  TestClient(const std::string& socket, uint32_t local_rank, int64_t timeout_ns = kGenerousNs) {
    talweg_options options;
    talweg_options_init(&options);
    options.agent_socket = socket.c_str();
    options.local_rank = local_rank;
    options.timeout_ns = timeout_ns;
    status_ = talweg_connect(&options, &client_);
    if (status_ != TALWEG_OK) error_ = talweg_last_error();
  }
  TestClient(TestClient&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)),
        status_(other.status_),
        error_(other.error_) {}
  TestClient& operator=(TestClient&&) = delete;
  ~TestClient() {
    if (client_ != nullptr) talweg_shutdown(client_, kGenerousNs);
    talweg_free(client_);
  }

  talweg_client* get() const { return client_; }
  talweg_client* Release() { return std::exchange(client_, nullptr); }
  talweg_status status() const { return status_; }
  const std::string& error() const { return error_; }

 private:
  talweg_client* client_ = nullptr;
  talweg_status status_ = TALWEG_INTERNAL;
  std::string error_;
};

// Returns how many waits of the client have slept, those for declarations included.
inline uint64_t WaitsSlept(talweg_client* client) {
  talweg_statistics statistics{.struct_bytes = sizeof(talweg_statistics)};
  return talweg_get_statistics(client, &statistics) == TALWEG_OK ? statistics.waits_slept : 0;
}

// Returns when `count` more waits than `before` sleep or have slept, so that the test's next action
// wakes sleepers.
inline void AwaitSleepers(talweg_client* client, uint64_t before, uint64_t count) {
  while (WaitsSlept(client) < before + count) std::this_thread::yield();
}

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_CLIENT_TESTING_H_
