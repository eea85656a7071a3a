// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_ASK_ALL_H_
#define TALWEG_CLIENTS_CLI_ASK_ALL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace talweg::cli {

// Calls ask(i) for each i below `count`, at most `at_once` at the same time, each on some thread.
// Returns when all calls have. One that takes long holds up no other, as long as some thread is
// left.
inline void AskAll(size_t count, size_t at_once, const std::function<void(size_t)>& ask) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(count, at_once); ++i) {
    threads.emplace_back([&] {
      for (size_t mine = next++; mine < count; mine = next++) ask(mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_ASK_ALL_H_
