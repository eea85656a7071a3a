// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_COMPLETIONS_TESTING_H_
#define TALWEG_CLIENTS_C_COMPLETIONS_TESTING_H_

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/talweg.h"

// Shared by the tests of a client's descriptor.
namespace talweg::c {

inline bool IsReadable(int fd, int64_t timeout_ns = 0) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, static_cast<int>(timeout_ns / 1'000'000)) == 1;
}

inline int CompletionFd(const TestClient& client) {
  int fd = -1;
  const talweg_status status = talweg_completion_fd(client.get(), &fd);
  INFO(talweg_last_error());
  REQUIRE(status == TALWEG_OK);
  return fd;
}

inline void Watch(const TestClient& client, talweg_tensor tensor, talweg_round round,
                  uint64_t tag) {
  const talweg_status status = talweg_watch(client.get(), tensor, round, tag);
  INFO(talweg_last_error());
  REQUIRE(status == TALWEG_OK);
}

// Returns the tags that talweg_completed gives now.
inline std::vector<uint64_t> Tags(const TestClient& client, size_t capacity = 64) {
  std::vector<uint64_t> tags(capacity);
  size_t count = 0;
  const talweg_status status = talweg_completed(client.get(), tags.data(), tags.size(), &count);
  INFO(talweg_last_error());
  REQUIRE((status == TALWEG_OK || count == 0));
  tags.resize(count);
  return tags;
}

// Sleeps on the descriptor until it has `count` tags, and returns them.
inline std::vector<uint64_t> AwaitTags(const TestClient& client, int fd, size_t count) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(kGenerousNs);
  std::vector<uint64_t> all;
  while (all.size() < count) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end - Clock::now());
    if (!IsReadable(fd, std::max<int64_t>(0, left.count()))) {
      FAIL("told of " << all.size() << " of " << count << " rounds");
    }
    const std::vector<uint64_t> tags = Tags(client);
    all.insert(all.end(), tags.begin(), tags.end());
  }
  return all;
}

// Sleeps on the descriptor until the client's health has ended, and returns how.
inline talweg_status AwaitEnd(const TestClient& client, int fd) {
  for (;;) {
    if (!IsReadable(fd, kGenerousNs)) FAIL("not told that the client's health has ended");
    uint64_t tag = 0;
    size_t count = 0;
    const talweg_status status = talweg_completed(client.get(), &tag, 1, &count);
    if (status == TALWEG_OK) continue;
    CHECK(count == 0);
    return status;
  }
}

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_COMPLETIONS_TESTING_H_
